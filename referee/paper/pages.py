"""Results pages of papers: ``python -m referee.paper --pages`` makes them from their templates and the stored runs.

A paper's page, ``referee/results/NAME.md``, comes from ``referee/templates/NAME.md``, whose text quotes
``referee/results/NAME.ndjson`` (:mod:`referee.paper.quotes`). All tables of the plan are on an appendix page,
``referee/results/tables/NAME.md``.
"""

from __future__ import annotations

from pathlib import Path

from referee.checkout import RESULTS, ROOT, render
from referee.paper import analyses
from referee.paper.plan import read_plan
from referee.paper.quotes import quotes
from referee.paper.report import all_tables, read_results

PLANS = ROOT / "referee" / "papers"


def pages() -> dict[Path, str]:
    """Return path → text of each page.

    Raises:
        ConfigError: A template quotes what the runs do not say.
    """
    texts = {}
    for file in sorted(PLANS.glob("*.toml")):
        name, plan = file.stem, read_plan(file)
        results = read_results(RESULTS / f"{name}.ndjson")
        values = {"name": name, "on": quotes(plan, results), "analyses": analyses}
        texts[RESULTS / f"{name}.md"] = render(f"{name}.md", **values)
        tables = "\n".join(all_tables(plan, results))
        texts[RESULTS / "tables" / f"{name}.md"] = render("paper-tables.md", title=plan.title, name=name, tables=tables)
    return texts
