"""README's table of papers and its three sentences of advice, from the leaderboard's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from experiments.leaderboard.measures import HOLDS, SENT_SHIFT, SHIFT, Measures, corrected
from experiments.leaderboard.points import nearest
from experiments.leaderboard.statistics import LEVEL
from sepal.strategies import registry
from sepal.study.frontier import Entry

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
    **{"fedavg-ft": "FedAvg + fine-tuning", "fedavg-ft-stc": "the same compressed", "local": "Local"},
}


def parts(found: Sequence[Measures]) -> dict[str, list[str]]:
    """Return the lines of README's parts; no part until all who take part in the table's block have run."""
    whole = [each for each in found if all(each.whole(contender) for contender in each.block.contenders)]
    har = next((each for each in whole if each.block.name == HAR), None)
    return {"table": list(table(har)), "advice": list(advice(whole))} if har else {}


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
    clients = len(next(iter(found.by_seed(contender, HOLDS).values())))
    return f"{figure.words(' %') if figure else '– %'}, {(megabytes or 0.0) / clients:.2g} MB"


def _chosen(found: Measures, name: str) -> str:
    contender = found.named(name)
    keys, key = found.design.chosen(contender), contender.own_key
    return f"; `{key}` = {keys[key]:g}" if keys and key else ""


def advice(found: Sequence[Measures]) -> Iterator[str]:
    """Yield three sentences, about blocks whose yardstick is FedAvg + fine-tuning."""
    same = [each for each in found if each.block.yardstick == "fedavg-ft"]
    yield f"- **Start with FedAvg + fine-tuning.** {_tested(same)} Training alone, in points: {_each(same, _local)}."
    yield (
        "- **Keep FedAvg's one model for all if clients will meet each other's data.** Under full shift, in points "
        f"from FedAvg + fine-tuning: {_each(same, _shifted)}."
    )
    yield (
        "- **Compress if bytes bind.** The fewest bytes to within a point of FedAvg + fine-tuning, as a share of its "
        f"own: {_each(same, _fewest)}. FedPSE: {_each(same, _fedpse)}."
    )


def _tested(found: Sequence[Measures]) -> str:
    """Return how many of the differences chosen before the runs are leads and deficits, after Holm's correction."""
    family = {key: (difference, p) for key, (difference, p) in corrected(found).items() if p is not None and p < LEVEL}
    tests = sum(p is not None for _, p in corrected(found).values())
    leads = [f"{NAMES[name]} ({block})" for (block, name, _), (difference, _) in family.items() if difference.mean > 0]
    said = (
        f"Of {tests} differences to it in what a client holds, {len(family) - len(leads)} are deficits, and leads are: "
        f"{', '.join(leads) or 'none'}."
    )
    fallen = [f"{NAMES[name]} ({each.block.name})" for each in found for name in each.block.tested if _fell(each, name)]
    return said + (f" Open, because a seed collapsed: {', '.join(fallen)}." if fallen else "")


def _fell(found: Measures, name: str) -> bool:
    figure = found.figure(found.named(name), HOLDS)
    return bool(figure and figure.collapsed)


def _local(found: Measures) -> str:
    difference = found.difference(found.named("local"), HOLDS)
    return difference.text() if difference else "–"


def _shifted(found: Measures) -> str:
    difference = found.between((found.named("fedavg"), SENT_SHIFT), (found.yardstick, SHIFT))
    return difference.text() if difference else "–"


def _fewest(found: Measures) -> str:
    near = nearest(found)
    return f"{near[0].label} {_share(near)}" if near else "–"


def _fedpse(found: Measures) -> str:
    near = nearest(found, "fedpse")
    return _share(near) if near else "never"


def _share(near: tuple[Entry, Entry]) -> str:
    return f"{100 * near[0].megabytes / near[1].megabytes:.1f} %"


def _each(found: Sequence[Measures], words: Callable[[Measures], str]) -> str:
    return ", ".join(f"{words(each)} ({each.block.name})" for each in found)
