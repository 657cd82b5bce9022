"""The tables of a comparison and what is said about it, for any medium: terminal, Markdown and HTML render them.

Nothing is called better or worse unless the interval over seeds excludes zero, which takes at least three seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sepal.protocol.views import CLOSING_VIEWS
from sepal.report.convergence import convergence, marked
from sepal.report.sizes import decimals, size
from sepal.runs.places import IN_PROCESS
from sepal.strategies import registry
from sepal.study.comparison import Comparison
from sepal.study.divergence import divergence
from sepal.study.frontier import CLOSE_TO, YardstickArrivals, close_to
from sepal.study.majority import warning
from sepal.study.results import DIRECTIONS, LEAST_POINTS, Variant
from sepal.study.statistics import Estimate
from sepal.tasks.scoring import Measure, headline, measure_of

LEGEND = (
    "{} on test data{}. deployed: the model that a user of a deployed "
    "client predicts with (kept, received or trained, depending on the method); kept: the model that a client keeps "
    "if it does not take the last download; received: as the server sends it; trained: after the client's own steps; "
    "pooled: trained, on everybody's test data. MB: payloads of training, all clients and rounds. Multiply-adds: 10⁹ "
    "of training a client."
)


def title_of(measure: Measure) -> str:
    """Return ``Accuracy in %``, the headline at the beginning of a sentence."""
    return f"{measure.name.capitalize()}{measure.in_unit}"


def legend(comparison: Comparison) -> str:
    """Return how to read a comparison's tables."""
    several = any(len(variant.results) > 1 for variant in comparison.all_variants())
    return LEGEND.format(title_of(comparison.measure), ", mean ± standard deviation over seeds" * several)


ACCURACIES = ("deployed", *reversed(CLOSING_VIEWS))
EDGE = "(edge)"
EDGE_WORDS = "the least or the largest value that was tried; a wider [grid] may find a better one"
NEAREST = "within one standard error of the best, the rate nearest to the calibrated one is chosen"
NONE = "–"
HOURS = "simulated\nhours"
FEW = {1: "One seed is too few", 2: "Two seeds are too few"}


@dataclass(frozen=True)
class TextTable:
    """A table whose first column names the rows. Line breaks in heads are where a narrow medium breaks them."""

    head: tuple[str, ...]
    rows: list[list[str]]

    def columns(self, figures: bool) -> list[int]:
        """Return the columns after the first; of ``figures``, those without one in any row are left out."""
        return [n for n in range(1, len(self.head)) if not figures or any(row[n] != NONE for row in self.rows)]


def accuracy_table(variants: Sequence[Variant]) -> TextTable:
    """Return the accuracy of a cell's variants: deployed, in each view, and of the worst 10 %."""
    rows = []
    for variant in variants:
        estimates = [*(variant.accuracy(view) for view in ACCURACIES), variant.accuracy("deployed", "bottom_decile")]
        rows.append([marked(variant), *(_text(estimate, variant.measure) for estimate in estimates)])
    return TextTable((variants[0].measure.axis, *ACCURACIES, "worst 10 %\ndeployed"), rows)


def cost_table(variants: Sequence[Variant]) -> TextTable:
    """Return the cost of a cell's variants: MB, multiply-adds, rounds and MB to the target, MB to near FedAvg-FT.

    With a profile of devices also simulated hours, to the end and to the target.
    """
    target = f"{aim(variants)}\n{variants[0].view}"
    near = close_to(variants)
    within = f"MB to\nwithin 1\n{step(variants)[2:]} of\n{near.label if near else CLOSE_TO}"
    timed = any(variant.profile for variant in variants)
    hour_heads = [HOURS, f"{HOURS} to\n{target}"] if timed else []
    byte_heads = ("MB up", "MB down", "multiply-\nadds, 10⁹", f"rounds to\n{target}", f"MB to\n{target}", within)
    heads = ("cost", *byte_heads, *hour_heads)
    rows = []
    for variant in variants:
        sizes = [*(variant.megabytes(way) for way in DIRECTIONS), variant.multiply_adds]
        sent, hours = variant.megabytes_to, variant.hours
        reached = [variant.reached(variant.rounds_to, 1), variant.reached(sent, decimals(sent.mean if sent else 0))]
        spent = [hours_text(hours), _reached_hours(variant) if hours else NONE] if timed else []
        rows.append([variant.label, *map(size, sizes), *reached, _megabytes_near(near, variant), *spent])
    return TextTable(heads, rows)


def hours_text(estimate: Estimate | None) -> str:
    """Return simulated hours; a dash where they are not known."""
    return estimate.text(decimals(estimate.mean), 1.0) if estimate else NONE


def _reached_hours(variant: Variant) -> str:
    hours = variant.hours_to
    return variant.reached(hours, decimals(hours.mean if hours else 0))


def step(variants: Sequence[Variant]) -> str:
    """Return what counts as close to the yardstick."""
    return "1 point" if variants[0].measure.percent else "1 %"


def _megabytes_near(near: YardstickArrivals | None, variant: Variant) -> str:
    arrival = near.reached.get(variant.label) if near else None
    return "≤ " * arrival.at_most + size(arrival.megabytes) if arrival else NONE


def aim(variants: Sequence[Variant]) -> str:
    """Return the target of a cell's variants with its unit."""
    measure, target = variants[0].measure, variants[0].target
    return f"{100 * target:.0f} %" if measure.percent else measure.text(target)


def basis(variants: Sequence[Variant]) -> str:
    """Return a line on how rounds and MB to the target are counted, or why there are none; empty if none is needed."""
    counts = [variant.evaluations(variant.view) for variant in variants]
    enough = [count for count in counts if count >= LEAST_POINTS]
    if not enough and len(variants) > 1:
        why = f"these runs have {max(counts)} (evaluate-every)"
        return f"No rounds or MB to {aim(variants)} are shown: that takes {LEAST_POINTS} full evaluations, and {why}."
    if not enough:
        return ""
    most = "" if min(enough) == max(enough) else f" to {max(enough)}"
    words = f"Rounds and MB to {aim(variants)}: the first of {min(enough)}{most} full evaluations that reaches it"
    words += "; ≤: the rounds just before it were not evaluated." if any(v.at_most for v in variants) else "."
    if near := close_to(variants):
        words += f" MB to within {step(variants)} of {near.label}: until the deployed models' mean over seeds reaches "
        words += f"{variants[0].measure.text(near.target)} and stays there; a dash: it never does."
    return words


def difference_table(comparison: Comparison, cell: str) -> TextTable:
    """Return the paired differences of a cell's first variant to the others; no rows if there are none."""
    views, measure = ("deployed", "kept", "received", "trained"), comparison.measure
    differences = {view: dict(comparison.differences(cell, view)) for view in views}
    labels = dict.fromkeys(label for pairs in differences.values() for label in pairs)
    rows = [
        [
            label,
            *(differences[view][label].shown(measure, "+") if label in differences[view] else NONE for view in views),
        ]
        for label in labels
    ]
    return TextTable(
        (f"paired difference over {comparison.paired_over(cell)},\n{measure.points}, 95 % interval", *views), rows
    )


def tuning_table(comparison: Comparison) -> TextTable:
    """Return what was searched before the runs: a row for each search; no rows if there was none."""
    rows, number = [], comparison.measure.number
    for search in comparison.tuning:
        values = ", ".join(f"{name}: {'failed' if mean is None else number(mean)}" for name, mean in search.values)
        chosen = f"{search.chosen or 'nothing'}{f' {EDGE}' * search.edge}"
        rows.append([search.cell, search.label, search.view, values, chosen])
    return TextTable(("setting", "method", "view", "tried", "chosen"), rows)


def tuning_title(comparison: Comparison) -> str:
    """Return what the rows of :func:`tuning_table` are."""
    seeds = sorted({seed for search in comparison.tuning for seed in search.seeds})
    metric = f"{comparison.measure.name} on validation data{comparison.measure.in_unit}"
    return f"Searched before the runs, with seeds {', '.join(map(str, seeds))}: {metric}"


def tuning_note(comparison: Comparison) -> str:
    """Return what is to be said of the values chosen; empty if they are the best and none is at the edge."""
    notes = [f"{EDGE}: {EDGE_WORDS}"] if any(search.edge for search in comparison.tuning) else []
    for search in comparison.tuning:
        means = {name: mean for name, mean in search.values if mean is not None}
        if search.chosen in means and means[search.chosen] < max(means.values()):
            return "; ".join([*notes, NEAREST])
    return "; ".join(notes)


def _text(estimate: Estimate | None, measure: Measure) -> str:
    return estimate.shown(measure) if estimate else NONE


def no_better(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield a line for each variant that is no better than its clients' most frequent label."""
    for variant in variants:
        summaries = [result.stored.summary or {} for result in variant.results]
        if words := warning(summaries, variant.deployed, variant.first.stored.config["lr"]):
            yield f"{variant.label}: {words}."


def rates_of_others(variants: Sequence[Variant]) -> str:
    """Return a line that names the variants whose rate was calibrated for another method; empty if there are none."""
    runs = {variant.label: variant.first.stored for variant in variants if variant.first.stored.rate_of}
    words = ", ".join(f"{label} (lr = {run.config['lr']:g}, for {run.rate_of})" for label, run in runs.items())
    advice = "differences may be the rate's; `sepal tune`, or `tune = true` in a plan, searches each method's own"
    return f"Rate calibrated for another method: {words}: {advice}." if words else ""


def diverged(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield a line for each variant in which clients' training diverged."""
    for variant in variants:
        if words := divergence([result.stored.summary or {} for result in variant.results]):
            yield f"{variant.label}: {words}."


def rounds_run(variants: Sequence[Variant]) -> str:
    """Return a line with the rounds of each variant if a run ended before its limit, or nothing."""
    limits = {variant.label: variant.first.stored.config["rounds"] for variant in variants}
    words = [f"{variant.label} {variant.rounds:.4g} of at most {limits[variant.label]}" for variant in variants]
    stopped = any(variant.stopped for variant in variants)
    return f"rounds that were run, mean over seeds: {', '.join(words)}" if stopped else ""


def remarks(comparison: Comparison, cell: str) -> Iterator[str]:
    """Yield what is said about a cell's tables: convergence, rounds, conclusions."""
    variants = comparison.variants(cell)
    yield from no_better(variants)
    yield from diverged(variants)
    yield from convergence(variants)
    yield from filter(None, (rates_of_others(variants), rounds_run(variants), basis(variants)))
    yield from conclusions(comparison, cell)


def without_yardsticks(comparison: Comparison) -> str:
    """Return a line that names the yardsticks that are not among the runs; empty if all are, or for a single run."""
    methods = {result.stored.config["method"] for result in comparison.results}
    absent = [name for name in registry.YARDSTICKS if name not in methods]
    if not absent or len(comparison.results) < 2:  # a single run compares nothing
        return ""
    return f"Without {' and '.join(absent)}: add {'them' if len(absent) > 1 else 'it'} to `methods`."


def conclusions(comparison: Comparison, cell: str) -> Iterator[str]:
    """Yield sentences about the first variant of a cell and each other, in the views that they deploy."""
    variants = comparison.variants(cell)
    if not variants:
        return
    (first, *others), measure = variants, comparison.measure
    words: dict[str, list[str]] = {"better than": [], "worse than": [], "no clear difference from": []}
    few: dict[int, list[Variant]] = {}
    seeds = set()
    for rival in others:
        difference = first.difference_by_seed(rival, "deployed")
        if difference is None:
            continue
        if difference.spread is None:
            few.setdefault(difference.count, []).append(rival)
            continue
        seeds.add(difference.count)
        clear = abs(difference.mean) > difference.spread
        kind = (
            "no clear difference from"
            if not clear
            else "better than"
            if measure.sign * difference.mean > 0
            else "worse than"
        )
        words[kind].append(f"{rival.label} ({difference.shown(measure, '+')})")
    clauses = [f"{kind} {', '.join(names)}" for kind, names in words.items() if names]
    if clauses:
        number = " or ".join(map(str, sorted(seeds)))
        unit = f"{measure.points[0].upper()}{measure.points[1:]}"
        yield f"{first.label}: {'; '.join(clauses)}. {unit} of deployed models, 95 % interval over {number} seeds."
    for count, rest in sorted(few.items()):
        pairs = ((variant.label, variant.accuracy("deployed")) for variant in (first, *rest))
        figures = (f"{label} {accuracy.with_unit(measure)}" for label, accuracy in pairs if accuracy)
        yield f"{FEW[count]} to say which is better: {', '.join(figures)} (deployed models)."


def novel_line(summary: Mapping[str, Any]) -> str:
    """Return one line about the novel clients: their mean accuracy by view, and the gap to the others'."""
    count, novel = summary["populations"]["novel"], summary["novel"]
    measure, means = measure_of(summary), headline(novel)
    figures = [
        f"{view} {measure.number(means[view]['mean'])} ({measure.number(-gap, '+')})"
        for view, gap in novel["gap"].items()
    ]
    heading = "in % (points above the others)" if measure.percent else f"{measure.axis} (difference to the others)"
    return f"{count} novel clients, which never trained, {heading}: {', '.join(figures)}"


def together_line(summary: Mapping[str, Any]) -> str:
    """Return one line with all metrics of a task over all clients' examples together; empty for accuracy alone."""
    views = [
        f"{view}: {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}"
        for view, metrics in summary.get("metrics", {}).items()
        if metrics
    ]
    return f"All clients' test examples together (shares as fractions): {'; '.join(views)}" if views else ""


def privacy_line(summary: Mapping[str, Any]) -> str:
    """Return one line about differential privacy: clip, noise, and ε of the client with the most uploads."""
    privacy = summary["privacy"]
    if privacy.get("mode") in ("central", "distributed"):
        return _line_of_rounds(privacy)
    head = f"Privacy: clip {privacy['clip']:g}, noise {privacy['noise']:g}"
    if privacy["reason"]:
        return f"{head}; no ε: {privacy['reason']}"
    seed = "; simulated: the noise came from the seed" if summary["engine"] == IN_PROCESS else ""
    return (
        f"{head}: ε = {privacy['epsilon']:.3g} for a client's data against any other, "
        f"{privacy['epsilon_zero_out']:.3g} against no update, at δ = {privacy['delta']:g} and {privacy['uploads']} "
        f"uploads; metrics are not covered{seed}"
    )


def _line_of_rounds(privacy: Mapping[str, Any]) -> str:
    """Return one line about noise on sums: whose it is, and ε for whoever knows who was drawn, and who does not."""
    clip = f"clip {privacy['clip']:g}{' at first' if privacy.get('quantile') else ''}"
    whose = "the server" if privacy["mode"] == "central" else "the clients together"
    head = f"Privacy: noise by {whose}, {clip}, noise {privacy['noise']:g}"
    known = f"{privacy['epsilon_no_amplification']:.3g}"
    draw, most = f"{known} for whoever knows who was drawn", f"at most {privacy['uploads']} of a client"
    if privacy["mode"] == "distributed":
        sides = f"at most {privacy['colluders']} clients on its side"
        draw = f"{known} for a server that follows the protocol, with {sides}"
    elif privacy["epsilon"] is not None:
        draw = f"{privacy['epsilon']:.3g} for whoever does not know who was drawn, {draw}"
    seed = "; simulated: the noise came from the seed" if privacy["simulated"] else ""
    return (
        f"{head}: ε = {draw}, against no update, at δ = {privacy['delta']:g} and {privacy['releases']} releases, "
        f"{most}; metrics are not covered{seed}"
    )
