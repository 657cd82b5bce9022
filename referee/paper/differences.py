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
            both = {record.seed for record in groups[first]} & {record.seed for record in groups[name]}
            if len(both) >= least:
                deployed_pairs = [
                    (f"{deployed[first]}{shift}", f"{deployed[name]}{shift}") for shift in ("", "-shift-100")
                ]
                rows.append(
                    [f"{first} − {name}", *(compare(groups[first], groups[name], *p) for p in deployed_pairs + pairs)]
                )
        yield from table([title, *views], rows)


def difference(group: Group, rival_group: Group, view: str, rival_view: str = "") -> str:
    """Return the mean difference over clients in points, with its 95 % interval; a dash unless two have the view.

    ``rival_view`` is the view of ``rival_group`` if it is not ``view``.
    """
    estimate = paired(by_seed(group, view), by_seed(rival_group, rival_view or view))
    return estimate.text(sign="+") if estimate and estimate.count > 1 else "–"


def difference_by_seed(group: Group, rival_group: Group, view: str, rival_view: str = "") -> str:
    """Return the same difference with the 95 % interval over seeds; a dash with fewer than three."""
    estimate = paired_by_seed(by_seed(group, view), by_seed(rival_group, rival_view or view))
    return estimate.text(sign="+") if estimate and estimate.count >= SEEDS else "–"


def by_seed(group: Group, view: str) -> dict[int, dict[str, float]]:
    """Return seed → client → accuracy in a view."""
    return {record.seed: record.of_clients(view) for record in group}
