"""Results pages: ``python -m referee.paper --pages`` makes them from their templates and the stored runs.

A paper's page, ``referee/results/NAME.md``, comes from ``referee/paper/pages/NAME.md``, whose text quotes
``referee/results/NAME.ndjson`` (:mod:`referee.paper.quotes`). All tables of the plan are on an appendix page,
``referee/results/tables/NAME.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jinja2

from referee.paper import analyses
from referee.paper.plan import read_plan
from referee.paper.quotes import quotes
from referee.paper.report import all_tables, read_results

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLANS, RESULTS, TEMPLATES = ROOT / "referee" / "papers", ROOT / "referee" / "results", HERE / "pages"
NOTE = "<!-- Made by `python -m referee.paper --pages` from {source}: do not edit. -->"


WORDS = """\
Accuracy in %: mean over clients, ± standard deviation over seeds; in brackets, the standard deviation over clients.
*kept*: the model that a client holds after it last trained. *received*: the server's, before any local step. *trained*:
after local steps in the closing round. *deployed*: the one of these that a user of the method predicts with. *pooled*:
the trained model on a sample of all clients' test data. bottom 10 %: of the trained models. MB: payloads of training,
all clients and rounds. Differences are paired over clients, with 95 % intervals; where there are three seeds, a second
table has intervals over seeds. Clients of one federation are not independent. Runs whose rates no trials chose are
older than the calibrated rates: one rate served all methods.
"""


def pages() -> Iterator[tuple[Path, str]]:
    """Yield path and text of each page.

    Raises:
        ConfigError: A template quotes what the runs do not say.
    """
    loader = jinja2.FileSystemLoader(TEMPLATES)
    made = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    made.trim_blocks = made.lstrip_blocks = True
    for source in sorted(TEMPLATES.glob("[a-z]*.md")):
        name, data = source.stem, RESULTS / f"{source.stem}.ndjson"
        plan, results = read_plan(PLANS / f"{name}.toml"), read_results(data)
        place = source.relative_to(ROOT).as_posix()
        text = made.get_template(source.name).render(name=name, on=quotes(plan, results), analyses=analyses)
        yield RESULTS / source.name, f"{NOTE.format(source=place)}\n{text}"
        text = "\n".join([f"# {plan.title}: all tables", "", WORDS, *all_tables(plan, results)])
        yield RESULTS / "tables" / source.name, f"{NOTE.format(source=f'referee/results/{data.name}')}\n{text}"
