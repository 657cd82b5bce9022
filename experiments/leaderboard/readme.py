"""README's table of papers and its three sentences of advice, from the leaderboard's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from experiments.leaderboard.measures import HOLDS, SENT_SHIFT, SHIFT, Measures, corrected
from experiments.leaderboard.points import nearest
from experiments.leaderboard.statistics import LEVEL
from sepal.strategies import registry
from sepal.study.frontier import Entry

Named: TypeAlias = dict[str, list[str]]  # contender → names of blocks
HAR = "a"  # the block of the table's figures
PAPERS = {  # what each does
    "fedpse": "each client sends the largest entries of its update and receives its own mixture of the others'",
    "dmpfl": "a sparse global and a sparse personal model that share weights, half of them each",
    "subfedavg": "each client prunes its model step by step; only what is left is averaged",
    "pfedgate": "a private gate picks blocks of one model for each client, within its budget",
    "pa3dfl": "models of each client's width; a hypernetwork makes their personal factors",
}
NAMES = {
    **{"fedpse": "FedPSE", "dmpfl": "DM-PFL", "subfedavg": "Sub-FedAvg", "pfedgate": "pFedGate", "pa3dfl": "Pa3dFL"},
    **{"fedavg-ft": "FedAvg + fine-tuning", "fedavg-ft-stc": "compressed FedAvg + fine-tuning", "local": "Local"},
}


def parts(found: Sequence[Measures]) -> dict[str, list[str]]:
    """Return the lines of README's parts; no part until the table's block is finished.

    Args:
        found: All blocks: Holm's family is that of all.
    """
    har = next((each for each in found if each.block.name == HAR and each.finished), None)
    return {"table": list(table(har)), "advice": list(advice(found))} if har else {}


def table(har: Measures) -> Iterator[str]:
    """Yield the table of papers, and a line about who else is there."""
    yield "| method | paper | what it does | measured on HAR: what a client holds, MB per client; key from trials |"
    yield "|---|---|---|---|"
    for method, what in PAPERS.items():
        source = registry.get(method).source
        found = f"[{_measured(har, method)}](docs/results/{method}.md)"
        yield f"| `{method}` | {source} | {what} | {found}{_chosen(har, method)} |"
    others = "; ".join(f"{NAMES[name]} {_measured(har, name)}" for name in ("fedavg-ft", "fedavg-ft-stc", "local"))
    yield from ("", f"On the same clients: {others}.")


def _measured(found: Measures, name: str) -> str:
    contender = found.named(name)
    figure, megabytes = found.figure(contender, HOLDS), found.megabytes(contender)
    if figure is None or megabytes is None:
        return f"only {found.failed(contender)} ended well"
    clients = len(next(iter(found.by_seed(contender, HOLDS).values())))
    return f"{figure.words(' %')}, {megabytes / clients:.2g} MB"


def _chosen(found: Measures, name: str) -> str:
    contender = found.named(name)
    keys, key = found.design.chosen(contender), contender.own_key
    return f"; `{key}` = {keys[key]:g}" if keys and key else ""


def advice(found: Sequence[Measures]) -> Iterator[str]:
    """Yield three sentences, about finished blocks whose yardstick is FedAvg + fine-tuning."""
    same = [each for each in found if each.finished and each.block.yardstick == "fedavg-ft"]
    yield from (_tested(found, same), _shift(same), _bytes(same))


def _tested(found: Sequence[Measures], same: Sequence[Measures]) -> str:
    """Say which differences chosen before the runs are leads and deficits, after Holm's correction, and to whom."""
    verdicts = _verdicts(found, same)
    leads = _listed(verdicts["lead"])
    head = f"Try {leads} where data are like these" if leads else "Start with FedAvg + fine-tuning"
    tests = sum(len(each.block.tested) for each in found)
    epochs = ", ".join(f"{each.epochs} ({each.block.name})" for each in same)
    plain = _listed(_verdicts(found, same, to_dense=True)["deficit"])
    return (
        f"- **{head}.** Differences to FedAvg + fine-tuning in what a client holds ({tests} tests, corrected by Holm): "
        f"leads: {leads or 'none'}; deficits: {_listed(verdicts['deficit']) or 'none'}; undecided: "
        f"{_listed(verdicts['undecided']) or 'none'}{_fallen(same)}. It closes with {epochs} epochs, as its trials "
        f"chose. To FedAvg, which closes with 2 as the others do, deficits: {plain or 'none'}. Training alone, in "
        f"points: {_each(same, _local)}."
    )


def _verdicts(found: Sequence[Measures], same: Sequence[Measures], to_dense: bool = False) -> dict[str, Named]:
    """Return lead, deficit and undecided → contender → blocks. One with a collapsed seed has no verdict."""
    verdicts: dict[str, Named] = {"lead": {}, "deficit": {}, "undecided": {}}
    blocks = {each.block.name: each for each in same}
    for (block, name, _), (difference, p) in corrected(found, to_dense).items():
        if p is not None and block in blocks and not _fell(blocks[block], name):
            verdict = "undecided" if p >= LEVEL else "lead" if difference.mean > 0 else "deficit"
            verdicts[verdict].setdefault(name, []).append(block)
    return verdicts


def _listed(named: Named) -> str:
    return ", ".join(f"{NAMES[name]} ({', '.join(blocks)})" for name, blocks in named.items())


def _fallen(same: Sequence[Measures]) -> str:
    """Say what those with a collapsed seed have without it: no test is made of them."""
    fallen = [
        f"{NAMES[name]} ({each.block.name}; without it {rest.text()})"
        for each in same
        for name in each.block.tested
        if _fell(each, name) and (rest := each.without_collapsed(each.named(name)))
    ]
    return f"; no verdict, because a seed collapsed: {', '.join(fallen)}" if fallen else ""


def _fell(found: Measures, name: str) -> bool:
    figure = found.figure(found.named(name), HOLDS)
    return bool(figure and figure.collapsed)


def _local(found: Measures) -> str:
    difference = found.difference(found.named("local"), HOLDS)
    return difference.text() if difference else "–"


def _shift(same: Sequence[Measures]) -> str:
    """Say what fine-tuning costs or gains where clients meet each other's data: the same run's two views."""
    found = [each.between((each.yardstick, SENT_SHIFT), (each.yardstick, SHIFT)) for each in same]
    if all(each and each.low > 0 for each in found):
        head = "Keep the one model for all, without fine-tuning, if clients will meet each other's data"
    elif all(each and each.high < 0 for each in found):
        head = "Fine-tune also if clients will meet each other's data"
    else:
        head = "Whether to fine-tune if clients will meet each other's data depends on the data"
    return (
        f"- **{head}.** Under full shift, FedAvg's model before fine-tuning, in points from that after it: "
        f"{_each(same, _shifted)}."
    )


def _shifted(found: Measures) -> str:
    difference = found.between((found.yardstick, SENT_SHIFT), (found.yardstick, SHIFT))
    return difference.text() if difference else "–"


def _bytes(same: Sequence[Measures]) -> str:
    """Say who needs the fewest bytes to be within a point of the yardstick, and how FedPSE does."""
    shares = [near[0][0].megabytes / near[1].megabytes for each in same if (near := nearest(each))]
    head = "Compress if bytes bind" if shares and max(shares) < 1 else "Compressing is not free everywhere"
    return (
        f"- **{head}.** The fewest bytes to within a point of FedAvg + fine-tuning, as a share of its own: "
        f"{_each(same, _fewest)}. FedPSE: {_each(same, _fedpse)}."
    )


def _fewest(found: Measures) -> str:
    near = nearest(found)
    names = " and ".join(f"`{each.label}`" for each in near[0]) if near else ""
    return f"{names} {_share(near)}" if near else "–"


def _fedpse(found: Measures) -> str:
    """Return FedPSE's share of the bytes, or how far its best run of all rounds is behind."""
    if near := nearest(found, "fedpse"):
        return _share(near)
    runs = [each for each in found.block.everybody if (each.method or each.name) == "fedpse"]
    behind = [difference for each in runs if (difference := found.difference(each, HOLDS))]
    return f"at best {max(behind, key=lambda each: each.mean).text()} points" if behind else "–"


def _share(near: tuple[Sequence[Entry], Entry]) -> str:
    return f"{100 * near[0][0].megabytes / near[1].megabytes:.1f} %"


def _each(found: Sequence[Measures], words: Callable[[Measures], str]) -> str:
    return ", ".join(f"{words(each)} ({each.block.name})" for each in found)
