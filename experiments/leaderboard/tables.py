"""The tables of one block: all views, what the trials chose, equal bytes, and where the rows come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from experiments.leaderboard.blocks import BUDGETS, TUNING, Config, Contender, text
from experiments.leaderboard.measures import ALL, HOLDS, Measures
from experiments.leaderboard.points import frontier_table
from sepal.cli.markdown import table
from sepal.cli.sheets import NONE
from sepal.study.statistics import over_seeds

TOLERANCE = 0.01  # of a budget
SHARES_TRAJECTORY = ("fedavg", "fedavg-ft")


def block_tables(found: Measures) -> Iterator[str]:
    """Yield the lines of a block's tables; one line if it has no row."""
    block = found.block
    yield from (f"## {block.name}: {block.title}", "")
    if not found.design.counted():
        yield from ("No rows yet.", "")
        return
    yield from views(found)
    yield from tuning(found)
    yield from equal_bytes(found)
    yield from frontier_table(found)
    yield from origin(found)


def views(found: Measures) -> Iterator[str]:
    """Yield the table of all views at equal rounds."""
    lines = []
    for contender in found.block.everybody:
        if failed := found.failed(contender):
            lines.append([contender.name, failed, *[NONE] * (len(ALL) + 5)])
        if not found.runs(contender):
            continue
        figures = [found.figure(contender, measure) for measure in ALL]
        won, difference = found.wins(contender), found.difference(contender, HOLDS)
        megabytes, steps = found.megabytes(contender), found.steps(contender)
        cells = [figure.text() if figure else NONE for figure in figures]
        cells.insert(1, difference.text() if difference else NONE)
        cells.insert(2, " / ".join(map(str, won)) if won else NONE)
        plain = found.difference(contender, HOLDS, to=found.block.dense)
        cells.insert(3, plain.text() if plain else NONE)
        cells.append(NONE if steps is None else f"{steps:.0f}")
        cells.append(NONE if megabytes is None else f"{megabytes:.4g}")
        lines.append([contender.name, str(len(found.runs(contender))), *cells])
    titles = [measure.title for measure in ALL]
    titles[1:1] = [f"minus {found.block.yardstick}", "clients ahead / even / behind", f"minus {found.block.dense}"]
    yield from table(["equal rounds, %", "seeds", *titles, "steps of one visit", "MB"], lines)
    if lines:
        yield "Even: within half a point. MB: up and down, all clients and rounds, and the closing download."
        if any(found.failed(contender) for contender in found.block.everybody):
            yield "Seeds without a figure: another seed's run ended with an error."
        yield ""


def tuning(found: Measures) -> Iterator[str]:
    """Yield the table of the trials: what was chosen, and all points of the first seed."""
    design, lines = found.design, []
    for contender in found.block.contenders:
        points = design.points(contender)
        known = {text(p): v for p in points if (v := design.validation(contender, p, TUNING[0])) is not None}
        if not known:
            continue
        chosen = design.chosen(contender)
        best = design.row(found.block.config(contender, chosen, TUNING[0])) if chosen else None
        values = [v for s in TUNING if chosen and (v := design.validation(contender, chosen, s)) is not None]
        held = over_seeds(values) if best else None
        shown = "; ".join(f"{_words(contender, p)}: {100 * known[text(p)]:.1f}" for p in points if text(p) in known)
        cells = [_words(contender, chosen) if chosen else NONE, held.text() if held else NONE]
        lines.append([contender.name, contender.own_key or NONE, *cells, _edge(found, contender), shown])
    header = ["trials", "own key", "chosen: lr, own key", "validation, % ± SD", "at an end", "all points, first seed"]
    yield from table(header, lines)
    yield from _trajectory(found)


def _words(contender: Contender, keys: Config) -> str:
    own = f", {keys[contender.own_key]}" if contender.own_key else ""
    return f"{keys['lr']:g}{own}"


def _edge(found: Measures, contender: Contender) -> str:
    """Return what of the chosen point is at an end of what was tried."""
    chosen = found.design.chosen(contender)
    if not chosen:
        return NONE
    rates = [keys["lr"] for keys in found.design.points(contender)]
    ends = ["lr"] if chosen["lr"] in (min(rates), max(rates)) else []
    for key, values in contender.own.items():
        ends += [key] if chosen[key] in (min(values), max(values)) else []
    return ", ".join(ends) or NONE


def _trajectory(found: Measures) -> Iterator[str]:
    """Say whether the contenders that would share a global model have ended with different rates."""
    there = [each for each in found.block.contenders if (each.method or each.name) in SHARES_TRAJECTORY]
    rates = {
        each.name: chosen["lr"]
        for each in there
        if "compress.name" not in each.keys and (chosen := found.design.chosen(each))
    }
    if len(rates) > 1:
        words = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
        same = "the same rate, and so the same global model" if len(set(rates.values())) == 1 else "different rates"
        yield from (f"FedAvg and FedAvg + fine-tuning have tried the same five rates and chose {same}: {words}.", "")


def equal_bytes(found: Measures) -> Iterator[str]:
    """Yield the table of the runs within shares of dense FedAvg's bytes."""
    lines = []
    for contender in found.block.contenders:
        cells = [_within(found, contender, budget) for budget in BUDGETS]
        lines += [[contender.name, *cells]] if any(cell != NONE for cell in cells) else []
    shares = [f"{100 * budget:g} % of dense FedAvg's bytes" for budget in BUDGETS]
    yield from table(["equal bytes: held, %; difference in points", *shares], lines)
    if any("no round" in line for line in lines):
        yield from ("No round: the closing download with one round is more than the budget.", "")


def _within(found: Measures, contender: Contender, budget: float) -> str:
    rounds = found.design.bought(contender, budget)
    figure = found.figure(contender, HOLDS, budget) if rounds else None
    if figure is None:
        return "no round" if rounds == 0 else found.failed(contender, budget if rounds else 0.0) or NONE
    difference = found.difference(contender, HOLDS, budget)
    words = figure.text() + (f"; {difference.text()}" if difference else "")
    seeds = f", {figure.seeds} seeds" if figure.seeds < len(found.block.seeds) else ""
    share = found.over(contender, budget)
    seeds += f", **over**: {100 * share:.0f} % of the budget" if share > 1 + TOLERANCE else ""
    return f"{words} ({rounds} round{'s' * (rounds != 1)}, {found.megabytes(contender, budget):.4g} MB{seeds})"


def origin(found: Measures) -> Iterator[str]:
    """Say where the rows come from."""
    rows = found.design.counted()
    old = len(found.design.rows) - len(rows)
    commits = ", ".join(f"`{name}` ({count})" for name, count in Counter(row["commit"] for row in rows).items())
    machines = "; ".join(dict.fromkeys(row["machine"] for row in rows))
    hours = sum(row["cpu_seconds"] for row in rows) / 3600
    yield f"{len(rows)} rows, {hours:.1f} core-hours. Commits: {commits}. Machine: {machines}."
    yield from (f"Of an earlier design, and not counted: {old} rows.", "") if old else ("",)
    failed = [row for row in rows if "error" in row]
    for row in failed:
        config = row["config"]
        rounds = f"lr {config['lr']:g}, {config['rounds']} rounds, seed {config['seed']}"
        yield f"- {row['contender']} ({row['kind']}, {rounds}) ended: {row['error']}"
    yield from ("",) if failed else ()
