"""Writes ``referee/results/leaderboard.md``, its tables and README's parts from the rows that are there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from referee.leaderboard import density, forest, overview, rows
from referee.leaderboard.blocks import LAST_RATE, NAMES, TUNING, read_block, text
from referee.leaderboard.design import TRIALS, Design, Row
from referee.leaderboard.estimate import hours_left, hours_whole
from referee.leaderboard.measures import (
    HOLDS,
    LEAST_CLIENTS,
    LEAST_SEEDS,
    NEWCOMER,
    Key,
    Measure,
    Measures,
    corrected,
)
from referee.leaderboard.readme import compared_blocks, parts, untested, verdicts, who_is_ahead
from referee.leaderboard.statistics import LEVEL, Interval
from referee.leaderboard.tables import block_tables
from referee.parts import README, rewritten
from sepal.report.markdown import table
from sepal.report.sheets import NONE
from sepal.storage.files import write_atomically

PAGE, TABLES = rows.PLACE.with_suffix(".md"), rows.PLACE.parent / "tables" / "leaderboard.md"
OVERVIEW, BLOCKS, CAPACITY, DENSITY = (
    PAGE.with_name(f"leaderboard{name}.svg") for name in ("", "-blocks", "-capacity", "-density")
)
NOTE = """\
<!-- Made by `python -m referee.leaderboard --pages` from referee/results/leaderboard, rows of
{}: do not edit. -->"""
UNEQUAL_BLOCK = "e"
READING = ("What a client holds: points from fine-tuning, 95 % intervals.", "Bytes: in per cent of FedAvg's.")
READING_UNEQUAL = (
    "Points from FedAvg + fine-tuning of the smallest width.",
    "95 % intervals. Bytes: in per cent of FedAvg's.",
)
Family: TypeAlias = Mapping[Key, tuple[Interval, float | None]]
TOP = """\
# Leaderboard: one search, one view, all bytes

Who is ahead when all are tuned by one search and judged alike, and what do the bytes buy? Ranked is what a client holds
at the end, never what a method chooses to show. All views, trials and equal bytes:
[tables/leaderboard.md](tables/leaderboard.md).
"""
READ = """\
- **What a client holds**: its model after the closing round, in which it gets the last download and does its method's
  local work once more (view *trained*), on its own test data. The same for all methods: of FedAvg it is the global
  model after local epochs.
- **Deployed** is the model that a user of the method predicts with: of FedAvg and FedSTC the one for all, before any
  local epoch. It ranks nobody, because a user of FedAvg may well fine-tune; but who sends little is judged by it.
- **What a newcomer gets**: what the server sends to a client that has never trained, before any step (*received*). A
  fifth of the clients are held out for this, drawn by the seed. A dash: nothing is sent.
- **Block e**: `fedavg-ft-narrow` and `fedavg-narrow` are one model for all of the smallest client's width, a
  sixteenth of the weights, and "dense FedAvg" is that; `local-width` trains alone at each client's own width;
  `pa3dfl-position` is Pa3dFL whose personal parameters are averaged by position.
- "±" is a standard deviation over seeds. "[lo, hi]" is a 95 % interval of Student's t: over the means of the
  seeds, in block a over seeds and people. Differences are paired, in points: to FedAvg + fine-tuning and to FedAvg
  (in block e to those of the smallest width), at equal bytes to compressed FedAvg + fine-tuning.
- **Local** trains in block b only in the rounds in which it is drawn, as all do; `local-each-round` trains in all.
  "Training alone" is the better of the two. FedSTC's runs beside are named by about the share of the bytes, in %, that
  they send where all take part.
- Every accuracy and every MB is from the stored rows (`referee/results/leaderboard`, a line for each run). Those of
  earlier searches ("before it", below) were typed: the page had them then.
"""
SHOWN = """\
![What a client holds, from FedAvg + fine-tuning: methods are rows, blocks columns](leaderboard-blocks.svg)

Bars: 95 % intervals of the paired differences. Local is the better of those that train alone. Bytes are in per cent of
dense FedAvg's, from the block with the fewest to the one with the most.

![The model that each deploys, points from FedAvg + fine-tuning against the MB sent](leaderboard.svg)

Means over blocks a to d, of MB the geometric ones; a run that collapsed counts. Thin lines go from the lowest block to
the highest, and are no intervals of a mean. FedAvg deploys one model for all. ▼: further behind than is drawn.
"""
UNEQUAL = """\
![Block e: difference to FedAvg + fine-tuning of the smallest width in what a client holds](leaderboard-capacity.svg)
"""
SPARSE = """\
## How sparse they are

The trials chose nearly the densest values in some blocks. These are the papers' own values beside them, as far as rows
are stored.
"""
SPARSE_SHOWN = """\
![Validation accuracy in the trials against the share of the weights, a panel for each block](leaderboard-density.svg)

The search tried five rates or more at the paper's first value, and one to three at others. DM-PFL's α is no density:
both its models keep half of the weights.
"""
TOLD = f"""\
- **Tuning**: {TRIALS} trials for each contender, and up to twice as many by the rules below, over all rounds with the
  schedule of these, by validation accuracy of what a client holds, with seeds {", ".join(map(str, TUNING))}, which no
  reported run has. Five rates that are the same for all; two more values of one own key, which the method's paper tunes
  (without one: two more rates); two rates around the best, also beyond the grid's ends; the three best points with two
  more seeds. The best mean is chosen, of equal ones the smaller rate. All keys:
  [contenders.toml](../leaderboard/contenders.toml).
- **Rules that came later**, and with which all blocks were searched again. After block a: where the best own key is at
  an end of its three values, one value beyond it is tried with all seeds. Before it, FedPSE (a, −1.1 [−1.7, −0.4]) and
  Sub-FedAvg (a, −1.5 [−2.2, −0.7]) were deficits, and a seed of Pa3dFL had collapsed. After block d: where the three
  best points have one rate, which one seed alone has judged, the three best of other rates get two more seeds, too.
  Before it, FedPSE (d, −1.8 [−2.4, −1.1]) was a deficit. Ties are ties within rounding now, which changed Local's keys
  in d (before it −5.8 [−6.8, −4.8]).
- **Searched most** (`doubted` in [the blocks](../leaderboard/blocks/b.toml)): all nine points get two
  more seeds for the papers' methods that were then behind, for Pa3dFL (b), all of whose finalists had collapsed with
  one seed, and for pFedGate (d), which was nearly behind. They were chosen by test figures. DM-PFL (d) was behind
  before it, −2.0 [−2.7, −1.3]; Pa3dFL (b) was undecided, −2.4 [−3.8, −1.0], and has another rate since; the other three
  kept their keys. Block e was planned with three seeds. One of Pa3dFL's collapsed, so that both its contenders got
  this, too, and kept their keys, and the block got two more seeds: with three, Local at its own width (−2.7
  [−8.5, +3.0]) and HeteroFL (−4.7 [−9.8, +0.4]) were undecided. In block c Sub-FedAvg, Pa3dFL and pFedGate,
  those of the five that were behind, got this, too, and kept their keys, so their figures did not change. Which points
  exist is still mostly the first seed's choice.
- **Added when all else was known**: `local-each-round` (b), `fedstc-0.5` and `fedstc-0.15`, because a reviewer asked.
- **Keys are chosen within noise**: in block d a trial has about 360 validation images. Intervals are those of the
  chosen keys, not of the search: the next best mean is often less than a point away
  ([trials](tables/leaderboard.md)), for Sub-FedAvg .03 points (b, c).
- **Not tuned alike**: `pfedgate.rate` and `pa3dfl.rate` are second keys that were tuned elsewhere, in Sepal's
  [calibration](calibration.md) on three data sets; nobody else has a second tuned key. Pa3dFL (α) and Sub-FedAvg (its
  gate) use validation data in the run itself. Local, and in block e HeteroFL, FedRolex and Local at its own width,
  tune their local epochs; those of all others are 2. Block e leaves out Fjord, TailorFL, Sub-FedAvg and pFedGate,
  which take capacities, too: they did not fit. The search goes along one key at a time.
- **Work of the closing round**: 2 local epochs. But those of FedAvg + fine-tuning and Local are tuned, compressed
  FedAvg + fine-tuning has 5, not tuned, FedRep's head 10, and in block e those of HeteroFL, FedRolex and Local at its
  own width are tuned. FedAvg is FedAvg + fine-tuning with 2 epochs, and
  FedSTC the compressed one with 2. So a difference to FedAvg + fine-tuning may be one of closing epochs. The second
  difference, to FedAvg, is not, but for those two. Where fine-tuning's trials chose 2 epochs, too, the two differ in
  their rate and the order of batches only: then whoever is behind one and not behind the other is near the edge.
- **One global model**: FedAvg, FedAvg + fine-tuning and Ditto train the same model for all where they have the same
  rate; so do FedSTC and compressed FedAvg + fine-tuning. Which have ended with different ones is under each block's
  trials.
- **Beside**: contenders that have another one's chosen keys (`-topk-…`, `-stc`, `-untuned`, `fedpse-…`, `fedstc-…`)
  are not tuned for what they send.
- **Optimizer**: SGD without momentum for all, also where a paper has another one (Sub-FedAvg's has momentum .5),
  batches of 20. pFedGate alone clips its gradients, of the model and of the gate to norm 10 each, as its authors' code
  does: nobody else has that against divergence. The rate falls each round, to {LAST_RATE:g} of the first in the last
  round, however many rounds a run has. Models: `har-cnn` (a), `lenet5` (c), `cnn2-small` (b, d, e).
- **Equal bytes**: own runs within 3, 10 and 30 % of what dense FedAvg sends in all rounds, of as many rounds as that
  buys with every seed, with the keys of the trials, which were chosen for all rounds. The closing download of all
  clients that train counts, too: what they hold needs it. None has more rounds than all have with 100 %, so methods
  that compress leave bytes unspent. Schedules of masks are not fitted again: within few rounds DM-PFL and FedDST
  hardly change theirs. A run that has spent more than its budget, by over 1 %, is marked.
- **Intervals and p-values**: a t over seeds, each with its mean over clients; in block a, where a seed changes
  neither the people nor their split, over seeds and people. Not a bootstrap: why, and how often each finds a
  difference where there is none, is [decision 0025](../../docs/decisions/0025-intervals-of-t.md).
- **Several comparisons**: p-values are corrected by Holm's method over one family, chosen before any run: what
  clients hold with the five methods, compressed FedAvg + fine-tuning, and Local, in blocks a, b and d; a test that
  has not run would count as 1. The same differences to FedAvg are corrected by themselves; they were added after
  block a's runs. So are those of the model that each deploys to the one that FedAvg deploys, which were added last. All
  else has intervals without a p-value, and so has a contender with fewer than {LEAST_SEEDS} seeds
  or {LEAST_CLIENTS} clients in one.
- **Power**: with five seeds and 21 differences, one that is not bold may still be as large as its interval says.
- **Collapsed** is a seed in which what clients hold after all rounds is, on average, below two thirds of the
  contender's best seed. It counts in means, intervals and MB, and the page says what the others have; no verdict is
  given. Runs of fewer rounds are not judged. The rule was made after block a had run. Three tuning seeds may miss
  that one seed in five collapses at a rate; no other rate was then tried.
- **What newcomers get** has the keys that were chosen for what participants hold.
- **Block a's seeds** change weights, order, and which 24 of the 30 people train; not the people's split. Its trials
  have the people of the reported runs, but no test windows: 24 people with 6 to 11 validation windows each, which
  follow the training windows in time; one window is half a point.
- **Chosen after a look at test figures**: block a's share of 15 %, from single runs with the trials' seeds, of FedAvg
  + fine-tuning, FedPSE and Local. With half of each activity nothing was left between methods; with 10 % all were far
  lower. These runs are not stored, so they have no figures here.
"""


def write_pages() -> list[Path]:
    """Write the page, its pictures and tables, and README's parts; return their paths."""
    counts = count_rows()
    found, reruns = measured(counts)
    made = {**_made(counts, found, reruns), **pictures(found)}
    for path, whole in made.items():
        write_atomically(path, whole.encode())
    return list(made)


def pictures(found: Sequence[Measures]) -> dict[Path, str]:
    """Return path → SVG of the pictures whose blocks are whole; that needs the extra ``report``."""
    same, unequal = (
        compared_blocks(found),
        [each for each in found if each.finished and each.block.name == UNEQUAL_BLOCK],
    )
    if not same:
        return {}
    made = {
        OVERVIEW: overview.picture(found),
        BLOCKS: forest.picture(same, who_is_ahead(found), READING),
        CAPACITY: forest.picture(unequal, "Clients of unequal capacity, by what a client holds", READING_UNEQUAL),
        DENSITY: density.picture(same),
    }
    return {path: drawn for path, drawn in made.items() if drawn}


def count_rows() -> dict[str, int]:
    """Return how many rows each file has."""
    return {name: len(rows.read(name)) for name in (*NAMES, rows.RERUNS)}


def counted(page: str) -> dict[str, int]:
    """Return how many rows of each file a page was made from."""
    return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", page.splitlines()[1])}


def pages(counts: Mapping[str, int]) -> dict[Path, str]:
    """Return path → text of the page, its tables, and README once its parts can be made.

    Args:
        counts: File → how many of its rows count: files grow while runs go on, and rows are only ever added.
    """
    return _made(counts, *measured(counts))


def measured(counts: Mapping[str, int]) -> tuple[list[Measures], list[Row]]:
    """Return the blocks' figures from the rows that count, and the lines of reruns."""
    there = {name: rows.read(name)[: counts[name]] for name in counts}
    return [Measures(Design(read_block(name), there[name])) for name in NAMES], list(there[rows.RERUNS])


def _made(counts: Mapping[str, int], found: Sequence[Measures], reruns: Sequence[Row]) -> dict[Path, str]:
    note = NOTE.format(", ".join(f"{name} {count}" for name, count in counts.items()))
    page, tables = _page(found, reruns), _tables(found)
    made = {PAGE: "\n".join((note, *page)), TABLES: "\n".join((note, *tables))}
    if said := parts(found):
        readme = {name: lines for name, lines in said.items() if name != "advice"}
        made[README] = rewritten(README.read_text(encoding="utf-8"), readme)
    return made


def _page(found: Sequence[Measures], reruns: Sequence[Row]) -> Iterator[str]:
    yield TOP
    if said := parts(found):
        yield from (*said["advice"], "", verdicts(found), "", *untested(found))
    some = [each for each in found if any(each.runs(contender) for contender in each.block.contenders)]
    if compared_blocks(found):
        yield from (SHOWN, UNEQUAL)
    family, to_dense = corrected(found), corrected(found, to_dense=True)
    if some:
        yield from _headline(some, HOLDS, family, to_dense)
    yield from ("# Appendix", "")
    if some:
        yield from _headline(some, NEWCOMER, family)
    if same := compared_blocks(found):
        yield from (SPARSE, *density.papers_table(same), SPARSE_SHOWN)
    yield from ("## How to read it", "", READ)
    yield from ("## What is missing", "", *_missing(found))
    yield from ("## How it was done", "", TOLD, *_budget(found), *_reruns(reruns))


def _headline(
    found: Sequence[Measures], measure: Measure, family: Family, to_dense: Family | None = None
) -> Iterator[str]:
    """Yield the table of a view: a row for each contender, a column for each block."""
    names = list(dict.fromkeys(contender.name for each in found for contender in each.block.contenders))
    lines = []
    for name in names:
        cells = []
        for each in found:
            contender = next((one for one in each.block.contenders if one.name == name), None)
            figure = each.figure(contender, measure) if contender else None
            words = figure.words() if figure else (each.failed(contender) if contender else "") or NONE
            if figure and figure.seeds < len(each.block.seeds):
                words += f" ({figure.seeds} of {len(each.block.seeds)} seeds)"
            families = [family] if to_dense is None else [family, to_dense]
            fell = bool(contender and each.collapsed(contender))
            differences = [_difference(one.get((each.block.name, name, measure)), fell) for one in families]
            cells.append("; ".join([words, *differences]) if set(differences) != {NONE} else words)
        lines.append([name, *cells])
    yield from (f"## {measure.title.capitalize()}, equal rounds", "")
    header = "%; points from FedAvg + fine-tuning" + "; from FedAvg" * (to_dense is not None)
    yield from table([header, *(f"{each.block.name}: {each.block.title}" for each in found)], lines)
    tests = sum(p is not None for _, p in family.values())
    tested = any(p is not None for (_, _, what), (_, p) in family.items() if what is measure)
    planned = sum(len(each.block.tested) for each in found)
    bold = f"Bold: other than 0 at the 5 % level after Holm's correction; {tests} of {planned} planned tests have run."
    bold = bold if tested else "Intervals only: no p-values, and nothing is bold."
    if any(each.failed(contender) for each in found for contender in each.block.contenders):
        yield "Seeds without a figure: another seed's run ended with an error, and the rest would flatter."
        yield ""
    yield from (bold if family else "No difference yet: that needs all seeds of a contender and of FedAvg-FT.", "")


def _difference(known: tuple[Interval, float | None] | None, fell: bool) -> str:
    star = "**" if known and known[1] is not None and known[1] < LEVEL and not fell else ""
    return f"{star}{known[0].text()}{star}" if known else NONE


def _missing(found: Sequence[Measures]) -> Iterator[str]:
    lines = []
    for each in found:
        design, block, counted = each.design, each.block, each.design.counted()
        kinds = Counter(row["kind"] for row in counted)
        failed = sum("error" in row and row["kind"] != "trial" for row in counted)
        configs = [text(run.config) for run in design.wanted() if run.kind == "rounds"]
        twice = len(configs) - len(set(configs))  # runs of one beside that are the same as another's
        trials, seeds = sum(map(design.tried, block.contenders)), len(block.everybody) * len(block.seeds) - twice
        cells = [f"{kinds['trial']} of {trials}", f"{kinds['rounds']} of {seeds}", str(kinds["bytes"]), str(failed)]
        cells.append(f"{hours_left(design):.1f} of {hours_whole(design):.1f}")
        lines.append([f"{block.name}: {block.title}", block.reduced, *cells])
    header = ["block", "less than the defaults", "trials", "runs of all rounds", "runs at equal bytes"]
    yield from table([*header, "ended by an error, not trials", "core-hours left, about"], lines)


def _budget(found: Sequence[Measures]) -> Iterator[str]:
    spent = sum(row["cpu_seconds"] for each in found for row in each.design.counted()) / 3600
    whole = {each.block.name: hours_whole(each.design) for each in found}
    words = ", ".join(f"{name} {hours:.1f}" for name, hours in whole.items())
    yield f"**Budget**: {spent:.1f} core-hours spent so far. Estimated for whole blocks: {words}."
    yield "The estimate is made of the seconds of finished trials; where there are none, of some that were measured."
    yield ""


def _reruns(lines: Sequence[Row]) -> Iterator[str]:
    same = sum(line["same"] for line in lines)
    machines = sorted({machine for line in lines for machine in (line["first"]["machine"], line["machine"])})
    kinds = f"one kind of CPU ({machines[0]})" if len(machines) == 1 else f"{len(machines)} kinds of CPU"
    later = max((_hours(line["first"]["written"], line["written"]) for line in lines), default=0.0)
    blocks = ", ".join(f"{name} {count}" for name, count in sorted(Counter(line["block"] for line in lines).items()))
    yield (
        f"**Reruns** of random rows (`--rerun`; {blocks}), up to {later:.0f} hours later: {same} of {len(lines)} gave "
        f"the same weights, bit for bit, on {kinds}."
        if lines
        else "**Reruns** of random rows (`--rerun`): none yet."
    )
    yield ""


def _hours(first: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(first)).total_seconds() / 3600


def _tables(found: Sequence[Measures]) -> Iterator[str]:
    yield from ("# Leaderboard: all tables", "")
    words = "Accuracy in %, mean ± standard deviation over seeds; differences in points with 95 % intervals. Views and"
    yield from (f"{words} design: [leaderboard.md](../leaderboard.md).", "")
    for each in found:
        yield from block_tables(each)
