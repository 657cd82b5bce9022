"""The tables of one block: all views, what the trials chose, equal bytes, and where the rows come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from referee.leaderboard.blocks import BUDGETS, TUNING, Config, Contender, text
from referee.leaderboard.measures import ALL, HOLDS, BlockResults
from referee.leaderboard.points import frontier_table, points_of
from sepal.report.markdown import table
from sepal.report.text_tables import NONE
from sepal.study.statistics import over_seeds

TOLERANCE = 0.01  # of a budget
SAME_MODEL = (  # their personal work changes no upload
    ("fedavg", "fedavg-ft", "ditto"),
    ("fedstc", "fedavg-ft-stc"),
    ("fedavg-narrow", "fedavg-ft-narrow"),
)
SHARED = ("lr", "fedstc.keep", "compress.keep")  # the keys that the global model depends on
OWN_RUNS = ("dmpfl",)  # shown with their runs at equal bytes
PARTS = ("1 %; signs of 5 %", "3 %; signs of 20 %", "10 %")
SPARSE = {  # entries sent: 1, 3 and 10 % of FedAvg's; signs of 5 and 20 %
    **{
        f"{name}, top-k": tuple(f"{name}-topk-{share}" for share in (1, 3, 10))
        for name in ("fedavg-ft", "ditto", "fedper")
    },
    "fedpse": ("fedpse-1", "fedpse-3", "fedpse-10"),
    "fedstc": ("fedstc-1", "fedstc-3", ""),
    "dmpfl": ("", "dmpfl", "dmpfl"),
}
LEGEND = "Budgets cut rounds, and with them local work: nobody trains for more epochs a round when rounds are few."


def block_tables(results: BlockResults) -> Iterator[str]:
    """Yield the lines of a block's tables; one line if it has no row."""
    block = results.block
    yield from (f"## {block.name}: {block.title}", "")
    if not results.design.counted():
        yield from ("No rows yet.", "")
        return
    yield from views(results)
    yield from tuning(results)
    yield from equal_bytes(results)
    yield from frontier_table(results)
    yield from origin(results)


def views(results: BlockResults) -> Iterator[str]:
    """Yield the table of all views at equal rounds."""
    lines = []
    for contender in results.block.everybody:
        if failed := results.failed(contender):
            lines.append([contender.name, failed, *[NONE] * (len(ALL) + 5)])
        if not results.runs(contender):
            continue
        figures = [results.figure(contender, measure) for measure in ALL]
        won, difference = results.wins(contender), results.difference(contender, HOLDS)
        megabytes, steps = results.megabytes(contender), results.steps(contender)
        cells = [figure.words() if figure else NONE for figure in figures]
        cells.insert(1, difference.text() if difference else NONE)
        cells.insert(2, " / ".join(map(str, won)) if won else NONE)
        plain = results.difference(contender, HOLDS, to=results.block.dense)
        cells.insert(3, plain.text() if plain else NONE)
        cells.append(NONE if steps is None else f"{steps:.0f}")
        cells.append(NONE if megabytes is None else f"{megabytes:.4g}")
        lines.append([contender.name, str(len(results.runs(contender))), *cells])
    titles = [measure.title for measure in ALL]
    titles[1:1] = [f"minus {results.block.yardstick}", "clients ahead / even / behind", f"minus {results.block.dense}"]
    yield from table(["equal rounds, %", "seeds", *titles, "steps of one visit", "MB"], lines)
    if lines:
        yield "Even: within half a point. MB: up and down, all clients and rounds, and the closing download."
        if any(results.failed(contender) for contender in results.block.everybody):
            yield "Seeds without a figure: another seed's run ended with an error."
        yield ""


def tuning(results: BlockResults) -> Iterator[str]:
    """Yield the table of the trials: what was chosen, and all points of the first seed."""
    design, lines = results.design, []
    for contender in results.block.contenders:
        points = design.all_points(contender)
        first_seed = {text(p): v for p in points if (v := design.validation(contender, p, TUNING[0])) is not None}
        if not first_seed:
            continue
        chosen = design.chosen(contender)
        best = design.row(results.block.config(contender, chosen, TUNING[0])) if chosen else None
        values = [v for s in TUNING if chosen and (v := design.validation(contender, chosen, s)) is not None]
        estimate = over_seeds(values) if best else None
        judged = [(p, first_seed[text(p)], design.mean(contender, p)) for p in points if text(p) in first_seed]
        point_texts = "; ".join(
            f"{_words(contender, p)}: {100 * first:.1f}" + (f" ({100 * mean:.1f})" if mean is not None else "")
            for p, first, mean in judged
        )
        cells = [_words(contender, chosen) if chosen else NONE, estimate.text() if estimate else NONE]
        lines.append([contender.name, contender.own_key or NONE, *cells, _edge(results, contender), point_texts])
    header = ["trials", "own key", "chosen: lr, own key", "validation, % ± SD", "at an end"]
    yield from table([*header, "all points, first seed (mean of all three)"], lines)
    yield from _trajectory(results)


def _words(contender: Contender, keys: Config) -> str:
    own_value = f", {keys[contender.own_key]}" if contender.own_key else ""
    further = "".join(f", {key} = {keys[key]}" for key in keys if key not in ("lr", contender.own_key))
    return f"{keys['lr']:g}{own_value}{further}"


def _edge(results: BlockResults, contender: Contender) -> str:
    """Return what of the chosen point is at an end of what was tried."""
    chosen = results.design.chosen(contender)
    if not chosen:
        return NONE
    tried = results.design.all_points(contender)
    ends = []
    for key in tried[0]:  # the rate and the own key: what is tried further has no ends
        values = [keys[key] for keys in tried]
        ends += [key] if chosen[key] in (min(values), max(values)) else []
    return ", ".join(ends) or NONE


def _trajectory(results: BlockResults) -> Iterator[str]:
    """Say which of the contenders that would train the same model for all have ended with different keys."""
    for names in SAME_MODEL:
        contenders = [contender for contender in results.block.contenders if contender.name in names]
        chosen = {contender.name: keys for contender in contenders if (keys := results.design.chosen(contender))}
        shared_values = {
            name: tuple(value for key, value in keys.items() if key in SHARED) for name, keys in chosen.items()
        }
        if len(shared_values) > 1:
            words = ", ".join(
                f"{name} {', '.join(f'{value:g}' for value in keys)}" for name, keys in shared_values.items()
            )
            same = (
                "the same: one global model"
                if len(set(shared_values.values())) == 1
                else "different ones: their models differ"
            )
            yield from (
                f"{', '.join(shared_values)} train one global model at equal keys. They chose {same} ({words}).",
                "",
            )


def equal_bytes(results: BlockResults) -> Iterator[str]:
    """Yield the table of the runs within shares of dense FedAvg's bytes, and of exchanges that send a part."""
    lines = []
    for contender in results.block.contenders:
        cells = [_within(results, contender, budget) for budget in BUDGETS]
        lines += [[contender.name, *cells]] if any(cell != NONE for cell in cells) else []
    if lines:
        lines.append(["best of all", *(_best(results, budget) for budget in BUDGETS)])
    shares = [f"{100 * budget:g} % of dense FedAvg's bytes" for budget in BUDGETS]
    yield from table([f"equal bytes: held, %; minus {results.block.rival}", *shares], lines)
    if any("no round" in line for line in lines):
        yield "No round: the closing download with one round is more than the budget."
    if lines:
        yield f"Best of all, picked afterwards: also of runs of all rounds and of those beside. {LEGEND}"
        yield ""
    yield from _sparse(results)


def _within(results: BlockResults, contender: Contender, budget: float) -> str:
    rounds = results.design.bought(contender, budget)
    figure = results.figure(contender, HOLDS, budget) if rounds else None
    if figure is None:
        return "no round" if rounds == 0 else results.failed(contender, budget if rounds else 0.0) or NONE
    difference = results.difference(contender, HOLDS, budget, to=results.block.rival)
    words = figure.words() + (f"; {difference.text()}" if difference else "")
    seeds = f", {figure.count} seeds" if figure.count < len(results.block.seeds) else ""
    share = results.over(contender, budget)
    seeds += f", **over**: {100 * share:.0f} % of the budget" if share > 1 + TOLERANCE else ""
    return f"{words} ({rounds} round{'s' * (rounds != 1)}, {results.megabytes(contender, budget):.4g} MB{seeds})"


def _best(results: BlockResults, budget: float) -> str:
    """Return the best entry within a share of dense FedAvg's bytes, whatever its rounds."""
    dense = results.megabytes(results.named(results.block.dense))
    if dense is None:
        return NONE
    entries = (p.entry for p in points_of(results) if p.entry.megabytes <= budget * dense * (1 + TOLERANCE))
    best = max(entries, key=lambda entry: entry.value.mean, default=None)
    return f"{best.label}: {best.value.text()} ({best.megabytes:.4g} MB)" if best else NONE


def _sparse(results: BlockResults) -> Iterator[str]:
    """Yield the table of exchanges that send about 1, 3 and 10 % of dense FedAvg's bytes over all rounds."""
    dense, contenders = (
        results.megabytes(results.named(results.block.dense)),
        {member.name: member for member in results.block.everybody},
    )
    lines = []
    for title, names in SPARSE.items():
        cells = []
        for name, share in zip(names, (0.0, 0.03, 0.1), strict=True):
            contender, budget = contenders.get(name), share if name in OWN_RUNS else 0.0
            figure = results.figure(contender, HOLDS, budget) if contender else None
            sent = 100 * (results.megabytes(contender, budget) or 0.0) / dense if contender and dense else 0.0
            cells.append(f"{figure.text()} ({sent:.1f} %)" if figure else NONE)
        lines += [[title, *cells]] if any(cell != NONE for cell in cells) else []
    header = ["a part of the entries: held, % (share of dense FedAvg's bytes)", *PARTS]
    yield from table(header, lines)
    if lines:
        yield "All rounds; only DM-PFL, which sends half of its entries, has fewer: what 3 and 10 % of the bytes buy."
        yield ""


def origin(results: BlockResults) -> Iterator[str]:
    """Say where the rows come from."""
    rows = results.design.counted()
    old = len(results.design.rows) - len(rows)
    commits = ", ".join(f"`{name}` ({count})" for name, count in Counter(row.commit for row in rows).items())
    machines = "; ".join(dict.fromkeys(row.machine for row in rows))
    hours = sum(row.cpu_seconds for row in rows) / 3600
    yield f"{len(rows)} rows, {hours:.1f} core-hours. Commits: {commits}. Machine: {machines}."
    yield from (f"Of an earlier design, and not counted: {old} rows.", "") if old else ("",)
    failed = [row for row in rows if row.error]
    for row in failed:
        config = row.config
        rounds = f"lr {config['lr']:g}, {config['rounds']} rounds, seed {config['seed']}"
        yield f"- {row.labels['contender']} ({row.labels['kind']}, {rounds}) ended: {row.error}"
    yield from ("",) if failed else ()
