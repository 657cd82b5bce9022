"""Tables of the paired differences of a block's first variant to the others, over clients and over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sepal.protocol.views import VIEWS
from sepal.report.markdown import table
from sepal.study.record import RunRecord
from sepal.study.statistics import paired, paired_by_seed

Group = Sequence[RunRecord]  # the seeds of one variant in one cell
MODELS = ("kept", *VIEWS[:2])
SEEDS = 3  # fewer give no interval (:func:`sepal.study.results.paired_by_seed`)


def difference_tables(groups: Mapping[str, Group], deployed: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of two tables: differences with intervals over clients; over seeds, where there are three.

    Args:
        groups: Variant → its runs; all are compared with the first one.
        deployed: Variant → view of the model that its user predicts with.
    """
    first, *others = groups
    pairs = [(view, view) for view in (*MODELS, *(f"{view}-shift-100" for view in MODELS))]
    views = ["deployed", "deployed-shift-100", *(view for view, _ in pairs)]
    for title, least, compare in (
        ("paired difference, points", 1, difference),
        ("paired difference, points, interval over seeds", SEEDS, difference_by_seed),
    ):
        rows = []
        for name in others:
            both = {one.seed for one in groups[first]} & {one.seed for one in groups[name]}
            if len(both) >= least:
                own = [(f"{deployed[first]}{shift}", f"{deployed[name]}{shift}") for shift in ("", "-shift-100")]
                rows.append([f"{first} − {name}", *(compare(groups[first], groups[name], *p) for p in own + pairs)])
        yield from table([title, *views], rows)


def difference(ours: Group, theirs: Group, view: str, other: str = "") -> str:
    """Return the mean difference over clients in points, with its 95 % interval; a dash unless two have the view.

    ``other`` is the view of ``theirs`` if it is not ``view``.
    """
    found = paired(by_seed(ours, view), by_seed(theirs, other or view))
    return found.text(sign="+") if found and found.count > 1 else "–"


def difference_by_seed(ours: Group, theirs: Group, view: str, other: str = "") -> str:
    """Return the same difference with the 95 % interval over seeds; a dash with fewer than three."""
    found = paired_by_seed(by_seed(ours, view), by_seed(theirs, other or view))
    return found.text(sign="+") if found and found.count >= SEEDS else "–"


def by_seed(group: Group, view: str) -> dict[int, dict[str, float]]:
    """Return seed → client → accuracy in a view."""
    return {one.seed: one.of_clients(view) for one in group}
