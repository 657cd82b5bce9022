"""How sparse a method may be: accuracy of trials against the share that is kept or sent, and the papers' own settings.

Of most settings there are trials only, on validation data; a search went where accuracy was highest, so the papers'
values have fewer of them. What has reported runs on test data is said to have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import numpy as np

from referee.leaderboard.blocks import TUNING, Contender
from referee.leaderboard.drawing import SMALL, colour_of_words, heading, marks, signed, stroke_of, svg
from referee.leaderboard.forest import DATA
from referee.leaderboard.measures import HOLDS, BlockResults
from referee.leaderboard.styles import INK, PAPERS, STYLES
from sepal.report.markdown import table
from sepal.report.text_tables import NONE

# Contender → values of its own key that its paper reports
PUBLISHED = {"fedpse": (0.1,), "dmpfl": (0.5,), "subfedavg": (0.5,), "pfedgate": (0.5, 0.3)}
PRUNED = "subfedavg.target"  # a key that says what goes, not what stays
DENSITIES = ("fedpse", "subfedavg", "pfedgate")  # whose own key is a density; DM-PFL's α is not one
FLOOR, TOP = -16.0, 4.0
WIDTH, HEIGHT = 322, 250  # pixels of a panel
SHARE = {"fedpse": "sent", "subfedavg": "not pruned", "pfedgate": "blocks on"}


def tried(results: BlockResults, contender: Contender, seeds: Sequence[int]) -> dict[float, float]:
    """Return value of the own key → validation accuracy of its best rate, mean over these seeds, in [0, 1].

    Rates that lack one of the seeds do not count, nor do values without a rate that has all. Nor do trials of what the
    authors' code does: they were made at one value only, so that a curve with them would compare variants.
    """
    best: dict[float, float] = {}
    for keys in results.design.all_points(contender):
        if any(keys.get(key) in values for key, values in contender.also.items()):
            continue
        values = [results.design.validation(contender, keys, seed) for seed in seeds]
        if None not in values:
            mean, value = float(np.mean([accuracy or 0.0 for accuracy in values])), float(keys[contender.own_key])
            best[value] = max(best.get(value, 0.0), mean)
    return best


def behind(results: BlockResults, contender: Contender, value: float) -> tuple[float, int] | None:
    """Return how many points a value is from the yardstick's chosen keys in the same trials, and over how many seeds.

    The seeds are all, or the first one alone. None without a trial at this value.
    """
    chosen = results.design.chosen(results.yardstick)
    for seeds in (TUNING, TUNING[:1]):
        accuracy = tried(results, contender, seeds).get(value)
        yardstick_accuracies = (
            [results.design.validation(results.yardstick, chosen, seed) for seed in seeds] if chosen else [None]
        )
        if accuracy is not None and None not in yardstick_accuracies:
            return 100 * (
                accuracy - float(np.mean([yardstick_accuracy or 0.0 for yardstick_accuracy in yardstick_accuracies]))
            ), len(seeds)
    return None


def published(results: BlockResults, name: str, value: float) -> Contender | None:
    """Return the contender whose reported runs have this value of a method's own key; None if there is none.

    It is the method as its trials chose it, or the one whose rate is the best at this value. A run at this value whose
    rate was tuned for another one does not count.
    """
    tuned = results.named(name)
    key = tuned.own_key
    at_value = (other for other in results.block.beside if other.tuned_as == name and other.rate_at_value)
    for contender in (tuned, *at_value):
        config = results.design.reported(contender, results.block.seeds[0])
        if config and config.get(key) == value and results.whole(contender):
            return contender
    return None


def papers_table(all_results: Sequence[BlockResults]) -> Iterator[str]:
    """Yield the lines of a table of the papers' own sparsity beside what the trials chose, and what is missing."""
    lines, missing = [], 0
    for name, values in PUBLISHED.items():
        for value in values:
            cells = [_cell(results, name, value) for results in all_results]
            missing += sum(
                len(results.block.seeds) for results in all_results if published(results, name, value) is None
            )
            lines.append([f"{STYLES[name].name}, `{all_results[0].named(name).own_key}` = {value:g}", *cells])
    yield from table(["points from FedAvg + fine-tuning", *(results.block.name for results in all_results)], lines)
    if missing:
        yield "Where there are reported runs: test data, what a client holds. Else *trials*: validation data, the best"
        yield "of the rates tried, of one seed or three, without an interval. In brackets: what the trials chose,"
        yield f"if it is another value. Missing: {missing} reported runs."
    else:
        yield "Test data, what a client holds. In brackets: what the trials chose, if it is another value."
    yield ""


def _cell(results: BlockResults, name: str, value: float) -> str:
    contender, chosen = published(results, name, value), results.design.chosen(results.named(name)) or {}
    picked = chosen.get(results.named(name).own_key)
    chosen_value = f" ({picked:g})" if picked is not None and picked != value else ""
    if contender and (difference := results.difference(contender, HOLDS)):
        return difference.text() + chosen_value
    trial = behind(results, results.named(name), value)
    if trial is None:
        return NONE + chosen_value
    return f"*trials {signed(trial[0])}, {trial[1]} seed{'s' * (trial[1] > 1)}*{chosen_value}"


def points(all_results: Sequence[BlockResults]) -> Iterator[dict[str, Any]]:
    """Yield a row for each value of a density that was tried, as :func:`behind` has it."""
    for results in all_results:
        for name in DENSITIES:
            contender = results.named(name)
            for value in sorted(tried(results, contender, TUNING[:1])):
                if trial := behind(results, contender, value):
                    density = 1 - value if contender.own_key == PRUNED else value
                    row = {"block": results.block.name, "key": name, "density": 100 * density, "mean": trial[0]}
                    yield {**row, "seeds": trial[1], "published": value in PUBLISHED[name]}


def picture(all_results: Sequence[BlockResults]) -> str:
    """Return accuracy against density, a panel for each block, as SVG; empty without trials."""
    rows = list(points(all_results))
    if not rows:
        return ""
    panels = [_panel([row for row in rows if row["block"] == results.block.name], results) for results in all_results]
    grid = [alt.hconcat(*panels[n : n + 2], spacing=24) for n in range(0, len(panels), 2)]
    reading = [
        "Points from FedAvg + fine-tuning on validation data, best rate tried,",
        "methods as their papers have them. Outline: one seed, not three. Ring: the paper's value.",
    ]
    whole = alt.vconcat(_legend(), *grid, spacing=14)
    return svg(whole, "Accuracy against density, in the trials", reading, _spoken(rows))


def _legend() -> Any:
    """Return a line of names with their marks."""
    ends = (0, 175, 475)  # pixels
    rows = [
        {"key": name, "x": x, "name": f"{STYLES[name].name} {SHARE[name]}"}
        for name, x in zip(DENSITIES, ends, strict=True)
    ]
    data = alt.Chart(alt.InlineData(values=rows))
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 2 * WIDTH], nice=False))
    words = data.mark_text(align="left", baseline="middle", dx=14, fontSize=SMALL, fontWeight=600)
    words = words.encode(x, colour_of_words(PAPERS), alt.Text("name:N"))
    return alt.layer(marks(data, PAPERS).encode(x), words).properties(width=2 * WIDTH, height=24)


def _panel(rows: Sequence[dict[str, Any]], results: BlockResults) -> Any:
    scale = alt.Scale(domain=[FLOOR, TOP], nice=False, clamp=True)
    minus = "replace(datum.label, '-', '−')"
    y = alt.Y("mean:Q", scale=scale, axis=alt.Axis(values=[-15, -10, -5, 0], labelExpr=minus, title=None))
    wide = alt.Scale(type="log", domain=[4, 110], nice=False)
    across = alt.Axis(values=[5, 10, 30, 100], labelExpr="datum.label + ' %'", title=None)
    x = alt.X("density:Q", scale=wide, axis=across)
    data = alt.Chart(alt.InlineData(values=list(rows)))
    zero = alt.Chart(alt.InlineData(values=[{"mean": 0.0}])).mark_rule(strokeWidth=2.5, color=INK)
    ring = data.transform_filter("datum.published").mark_point(size=460, strokeWidth=2, filled=False)
    layers = [
        zero.encode(y),
        data.mark_line(strokeWidth=2.2).encode(stroke_of(PAPERS), x, y),
        ring.encode(stroke_of(PAPERS), x, y),
        marks(data.transform_filter("datum.seeds > 1"), PAPERS, 140).encode(x, y),
        marks(data.transform_filter("datum.seeds == 1"), PAPERS, 140, outlined=True).encode(x, y),
    ]
    name = f"{results.block.name}: {DATA.get(str(results.block.keys['dataset']), '')}"
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=heading(name, "start"))


def _spoken(rows: Sequence[dict[str, Any]]) -> str:
    return "; ".join(f"{STYLES[r['key']].name} ({r['block']}) {r['density']:.0f} % {signed(r['mean'])}" for r in rows)
