"""README's tables of papers and of who suits whom, and the page's advice, from the leaderboard's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from referee.leaderboard.blocks import Contender
from referee.leaderboard.measures import DEPLOYED, HOLDS, SENT_SHIFT, SHIFT, Measure, Measures, corrected
from referee.leaderboard.points import Point, nearest
from sepal.study.statistics import LEVEL, Interval
from sepal.strategies import registry

Named: TypeAlias = dict[str, list[str]]  # contender → names of blocks
FALLEN, FAILED = "no verdict, because a seed collapsed", "no figure, because a run ended with an error"
WORDS = {"leads": "Better", "deficits": "Worse"}  # of kinds of verdicts
RIVAL = "fedavg-ft-stc"  # the compressed baseline, which the advice for few bytes is about
NOBODY = "Start with FedAvg + fine-tuning: it is simple, and no method that was tested is established to be better"
SPARSITY = {  # own keys that say how sparse
    "fedpse.keep": "sent",
    "subfedavg.target": "pruned",
    "pfedgate.keep": "of the blocks on",
    "compress.keep": "sent",
}
HALF = 0.5  # of the yardstick's bytes; what needs more saves little
MOST_LOST = 0.05  # what is further behind is not advised, however little it sends
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
    """Return the lines of README's parts, and of the page's advice; none until the table's block is finished.

    Args:
        found: All blocks: Holm's family is that of all.
    """
    har = next((each for each in found if each.block.name == HAR and each.finished), None)
    return {"table": list(table(har)), "which": list(which(found)), "advice": list(advice(found))} if har else {}


def which(found: Sequence[Measures]) -> Iterator[str]:
    """Yield two sentences and a table of four rows: what to start with, and what to do instead when."""
    same = compared_blocks(found)
    leads, cheap = _listed(_leads(found, same)), _is_cheap(same)
    letters = ", ".join(each.block.name for each in same) or "none yet"
    yield (
        f"{f'Try {leads} where data are like these' if leads else NOBODY}. The figures are those of the "
        f"[leaderboard](referee/results/leaderboard.md)'s federations {letters}, which has all tests and intervals; "
        "`sepal compare` answers the question for your own data."
    )
    tests = f"of {_tests(same)} tests in what a client holds, {_number(_leads(found, same))} finds a method ahead of it"
    bytes_used = few_bytes(same) if cheap else "sending less costs accuracy somewhere"
    rows = (
        ("you have measured nothing yet", "`fedavg-ft`", tests),
        (
            "clients will meet each other's data",
            "`fedavg`, one model for all" if _is_worse_shifted(same) else "measure both on your data",
            f"under full shift, fine-tuning changes FedAvg's model by {_each(same, _mean_of(_tuned_shift))} points",
        ),
        ("bytes bind", '`fedavg-ft` with `compress.name = "stc"`' if cheap else "measure first", bytes_used),
        ("nothing may be sent", "`local`", f"{_each(same, _mean_of(_alone_behind))} points from fine-tuning"),
    )
    yield from ("", "| if | take | measured |", "|---|---|---|")
    yield from (f"| {when} | {take} | {measured} |" for when, take, measured in rows)


def _leads(found: Sequence[Measures], same: Sequence[Measures]) -> Named:
    """Return who is ahead of FedAvg + fine-tuning and of FedAvg, after Holm's correction."""
    tuned, plain = _verdicts(found, same)["leads"], _verdicts(found, same, to_dense=True)["leads"]
    return _without(tuned, _without(tuned, plain))


def _number(named: Named) -> str:
    return str(sum(map(len, named.values())) or "none")


def _mean_of(of: Callable[[Measures], Interval | None]) -> Callable[[Measures], str]:
    """Return a function from a block to an interval's mean in points, as text: ``−1.9``."""

    def words(found: Measures) -> str:
        interval = of(found)
        return interval.text().partition(" ")[0] if interval else "–"

    return words


def _alone_behind(found: Measures) -> Interval | None:
    best = alone(found)
    return found.difference(best, HOLDS) if best else None


def _is_worse_shifted(same: Sequence[Measures]) -> bool:
    """Return whether fine-tuning is worse under full shift in every block."""
    return all(each is not None and each.high < 0 for each in map(_tuned_shift, same))


def _is_cheap(same: Sequence[Measures]) -> bool:
    """Return whether compressed fine-tuning saves at least half of the bytes everywhere, and loses little."""
    lost = [rival.mean for each in same if (rival := each.difference(each.named(RIVAL), DEPLOYED))]
    shares = [share for each in same if (share := _share_of(each, RIVAL)) is not None]
    return bool(shares) and max(shares) <= HALF and min(lost, default=-1.0) >= -MOST_LOST


def table(har: Measures) -> Iterator[str]:
    """Yield the table of papers, and a line about who else is there."""
    yield "| method | paper | what it does | measured on HAR: what a client holds, MB per client; key from trials |"
    yield "|---|---|---|---|"
    for method, what in PAPERS.items():
        source = registry.get(method).source
        found = f"[{_measured(har, method)}](referee/results/{method}.md)"
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
    """Yield three points and a key to the letters, of finished blocks with FedAvg + fine-tuning of all seeds."""
    same = compared_blocks(found)
    yield from (_start(found, same), _shift(same), _bytes(same))
    if same:
        blocks = "; ".join(f"{each.block.name}: {each.block.title}" for each in same)
        end = "In each, a fifth of the clients do not train. Full shift: clients are tested on the test data of all."
        yield from ("", f"{blocks}. {end}")


def compared_blocks(found: Sequence[Measures]) -> list[Measures]:
    """Return the blocks of advice and pictures: finished, with FedAvg and FedAvg + fine-tuning of all seeds."""
    same = [each for each in found if each.finished and each.block.yardstick == "fedavg-ft"]
    return [each for each in same if each.whole(each.yardstick) and each.whole(each.named(each.block.dense))]


def _start(found: Sequence[Measures], same: Sequence[Measures]) -> str:
    """Say who is ahead and behind, of those that were named before the runs, after Holm's correction, and of whom."""
    tuned, plain = _verdicts(found, same), _verdicts(found, same, to_dense=True)
    leads, words = "", list[str]()
    for kind, word in WORDS.items():
        only = _without(tuned[kind], plain[kind])
        both = _without(tuned[kind], only)
        leads = _listed(both) if kind == "leads" else leads
        whose = {"both": both, "with it only": only, "without it only": _without(plain[kind], tuned[kind])}
        said = [f"than {of}: {_listed(named) or 'none'}" for of, named in whose.items() if named or of == "both"]
        words.append(f"{word} {'; '.join(said)}.")
    head = f"Try {leads} where data are like these" if leads else NOBODY
    return (
        f"- **{head}.** What clients hold after their local epochs, in {_tests(same)} tests against FedAvg with "
        f"fine-tuning and as many without it. {' '.join(words)} The others are undecided or have no verdict. "
        f"{_over_plain(found, same)}Training alone: {_each(same, _local)} points from fine-tuning."
    )


def _over_plain(found: Sequence[Measures], same: Sequence[Measures]) -> str:
    """Say who deploys a better or a worse model than FedAvg, which deploys one for all: tests and differences."""
    if not same:
        return ""
    verdicts = _verdicts(found, same, to_dense=True, measure=DEPLOYED)
    blocks = {each.block.name: each for each in same}

    def shown(named: Named) -> str:
        return "; ".join(
            f"{NAMES[name]} {', '.join(f'{_points_from_dense(blocks[block], name)} ({block})' for block in there)}"
            for name, there in named.items()
        )

    leads, tests = sum(map(len, verdicts["leads"].values())), _tests(same)
    worse = f"; worse: {shown(verdicts['deficits'])}" if verdicts["deficits"] else ""
    listed = f": {shown(verdicts['leads'])}" if leads else ""
    return (
        f"**Deployed against deployed**, where FedAvg has one model for all and no local epochs: of {tests} tests, "
        f"{leads or 'none'} {'finds' if leads == 1 else 'find'} a lead over it that survives Holm's correction{listed}"
        f"{worse}. "
    )


def _points_from_dense(found: Measures, name: str) -> str:
    """Return a deployed model's difference to FedAvg's, in points: ``+4.1``."""
    difference = found.difference(found.named(name), DEPLOYED, to=found.block.dense)
    return difference.text().partition(" ")[0] if difference else "–"


def who_is_ahead(found: Sequence[Measures]) -> str:
    """Return who leads over FedAvg + fine-tuning in what a client holds, after Holm's correction, as a finding."""
    leads = _listed(_verdicts(found, compared_blocks(found))["leads"])
    return (
        f"Ahead of FedAvg + fine-tuning: {leads}" if leads else "No method is established to beat FedAvg + fine-tuning"
    )


def _without(named: Named, others: Named) -> Named:
    """Return each contender's blocks that ``others`` do not name."""
    found = {name: [block for block in blocks if block not in others.get(name, [])] for name, blocks in named.items()}
    return {name: blocks for name, blocks in found.items() if blocks}


def _tests(blocks: Sequence[Measures]) -> int:
    return sum(len(each.block.tested) for each in blocks)


def verdicts(found: Sequence[Measures]) -> str:
    """Return what each test found that was planned before the runs, and the same against plain FedAvg."""
    same = compared_blocks(found)
    tuned, plain = _verdicts(found, same), _verdicts(found, same, to_dense=True)
    told = [kind for kind in tuned if tuned[kind] or kind in ("leads", "deficits")]
    return (
        f"**Tests** ({_tests(same)} of {_tests(found)} planned, corrected by Holm). Differences to FedAvg + "
        f"fine-tuning in what a client holds: {_kinds(tuned, told)}. {_leaning(same, tuned['undecided'])}Fine-tuning's "
        f"trials chose {_each(same, _epochs)} closing epochs. To FedAvg, which closes with 2 as all papers' methods "
        f"do: {_kinds(plain, ['leads', 'deficits'])}. {_sparsity(same)}"
    )


def _leaning(same: Sequence[Measures], undecided: Named) -> str:
    """Say how many of the undecided have an interval without 0 before the correction."""
    blocks = {each.block.name: each for each in same}
    pairs = ((blocks[name], who) for who, names in undecided.items() for name in names)
    found = [difference for each, who in pairs if (difference := each.difference(each.named(who), HOLDS))]
    behind, ahead = sum(each.high < 0 for each in found), sum(each.low > 0 for each in found)
    words = "Of the undecided, {} have an interval below 0 before the correction, and {} above. "
    return words.format(behind or "none", ahead or "none") if found else ""


def _sparsity(same: Sequence[Measures]) -> str:
    """Say how sparse the trials made those that are tested: undecided may be a nearly dense model."""
    found: dict[str, list[str]] = {}
    for each in same:
        for contender in map(each.named, each.block.tested):
            keys, key = each.design.chosen(contender), contender.own_key
            if keys and key in SPARSITY:
                found.setdefault(key, []).append(f"{keys[key]:g} ({each.block.name})")
    told = "; ".join(f"`{key}` {', '.join(values)} {SPARSITY[key]}" for key, values in found.items())
    return f'How sparse the trials made them, which decides what "undecided" is about: {told}.' if told else ""


def untested(found: Sequence[Measures]) -> Iterator[str]:
    """Yield a paragraph for each finished block without planned tests: of few seeds, or of unequal capacities."""
    for each in found:
        if not each.finished or each.block.tested:
            continue
        kinds: dict[str, list[str]] = {"ahead": [], "behind": [], "undecided": [], FALLEN: []}
        for contender in each.block.contenders:
            difference = None if contender is each.yardstick else each.difference(contender, HOLDS)
            if difference and each.collapsed(contender):
                without = each.without_collapsed(contender, each.yardstick)
                kinds[FALLEN].append(
                    f"{contender.name}; without that seed {without.text()}" if without else contender.name
                )
            elif difference:
                kind = "ahead" if difference.low > 0 else "behind" if difference.high < 0 else "undecided"
                kinds[kind].append(f"{contender.name} {difference.text()}")
        told = "; ".join(f"{kind}: {', '.join(names) or 'none'}" for kind, names in kinds.items())
        yield (
            f"**{each.block.title}** ({each.block.name}), {len(each.block.seeds)} seeds, what a client holds, in "
            f"points from `{each.yardstick.name}`; a 95 % interval without 0 counts, not corrected for several "
            f"comparisons: {told}."
        )
        yield ""


def _kinds(verdicts: Mapping[str, Named], kinds: Sequence[str]) -> str:
    return "; ".join(f"{kind}: {_listed(verdicts[kind]) or 'none'}" for kind in kinds)


def _verdicts(
    found: Sequence[Measures], same: Sequence[Measures], to_dense: bool = False, measure: Measure = HOLDS
) -> dict[str, Named]:
    """Return kind of verdict → contender → blocks, of all that were named before the runs.

    ``measure`` is what is compared: what a client holds, or what both sides deploy. Where a seed collapsed, the
    contender's or that of whom it is compared with, there is no verdict.
    """
    verdicts: dict[str, Named] = {kind: {} for kind in ("leads", "deficits", "undecided", FALLEN, FAILED)}
    known = corrected(found, to_dense, measure)
    for each in same:
        reference = each.named(each.block.dense) if to_dense else each.yardstick
        for name in each.block.tested:
            contender, words = each.named(name), each.block.name
            difference, p = known.get((each.block.name, name, measure), (None, None))
            if difference is None or p is None:
                kind = FAILED
            elif each.collapsed(contender) or each.collapsed(reference):
                kind, without = FALLEN, each.without_collapsed(contender, reference, measure)
                words += f"; without it {without.text()}" if without else ""
            else:
                kind = "undecided" if p >= LEVEL else "leads" if difference.mean > 0 else "deficits"
            verdicts[kind].setdefault(name, []).append(words)
    return verdicts


def _listed(named: Named) -> str:
    return ", ".join(f"{NAMES[name]} ({', '.join(blocks)})" for name, blocks in named.items())


def _epochs(found: Measures) -> str:
    """Return the local epochs of the yardstick's closing round."""
    chosen = found.design.chosen(found.yardstick) or {}
    return str(chosen.get(found.yardstick.own_key, "–"))


def _local(found: Measures) -> str:
    """Return the best difference of those that train alone."""
    difference = _alone_behind(found)
    return difference.text() if difference else "–"


def alone(found: Measures, measure: Measure = HOLDS) -> Contender | None:
    """Return the best of those that train alone."""
    there = (each for each in found.block.contenders if (each.method or each.name) in ("local", "local-width"))
    known = [(difference.mean, each) for each in there if (difference := found.difference(each, measure))]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _shift(same: Sequence[Measures]) -> str:
    """Say what fine-tuning costs or gains where clients meet each other's data: the same run's two views."""
    found = [_tuned_shift(each) for each in same]
    if _is_worse_shifted(same):
        head = "Keep the one model for all, without fine-tuning, if clients will meet each other's data"
    elif all(each and each.low > 0 for each in found):
        head = "Fine-tune also if clients will meet each other's data"
    else:
        head = "Whether to fine-tune if clients will meet each other's data depends on the data"
    return f"- **{head}.** Under full shift, fine-tuning changes FedAvg's model by {_each(same, _shifted)} points."


def _tuned_shift(found: Measures) -> Interval | None:
    return found.between((found.yardstick, SHIFT), (found.yardstick, SENT_SHIFT))


def _shifted(found: Measures) -> str:
    difference = _tuned_shift(found)
    return difference.text() if difference else "–"


def _bytes(same: Sequence[Measures]) -> str:
    """Say what compressed fine-tuning deploys for its bytes, who else needs few, and how FedSTC and FedPSE do."""
    head = f"Send less if bytes bind: {few_bytes(same)}"
    head = head if _is_cheap(same) else "Sending less costs accuracy somewhere"
    return (
        f"- **{head}.** Deployed models, points from FedAvg + fine-tuning's: {_each(same, _rival)}. The cheapest run, "
        f"picked afterwards, that deploys at most a point less: {_each(same, _fewest)}. FedPSE's cheapest such run: "
        f"{_each(same, _fedpse)}. FedSTC sends as little, and its clients hold as much after local epochs, but what it "
        f"deploys is one model for all: {_each(same, _fedstc)}.{_keys(same)}"
    )


def few_bytes(same: Sequence[Measures]) -> str:
    """Return what compressed fine-tuning, deployed, sends and loses: ``… sends 2–9 % of the bytes and loses …``."""
    shares = [round(100 * share) for each in same if (share := _share_of(each, RIVAL)) is not None]
    lost = [round(-100 * rival.mean) for each in same if (rival := each.difference(each.named(RIVAL), DEPLOYED))]
    if not shares or not lost:
        return "no figure yet"
    return f"{NAMES[RIVAL]} sends {_span(shares)} % of the bytes and loses {_span(lost)} points"


def _span(values: Sequence[int]) -> str:
    """Return the least and the largest: ``2–9``, or one of them if they are the same."""
    ends = [f"{value:d}".replace("-", "−") for value in dict.fromkeys((min(values), max(values)))]
    return " to ".join(ends) if min(values) < 0 else "–".join(ends)


def _share_of(found: Measures, name: str) -> float | None:
    """Return the bytes of a contender's reported runs, as a share of the yardstick's."""
    ours, whole = found.megabytes(found.named(name)), found.megabytes(found.yardstick)
    return ours / whole if ours is not None and whole else None


def _rival(found: Measures) -> str:
    difference, share = found.difference(found.named(RIVAL), DEPLOYED), _share_of(found, RIVAL)
    return f"{difference.text()} for {100 * share:.1f} %" if difference and share is not None else "–"


def _keys(same: Sequence[Measures]) -> str:
    """Say with which keys those of the fewest bytes run whose name is no method's."""
    there = (near[0].contender for each in same if (near := nearest(each, measure=DEPLOYED)))
    named = {one.name: one for one in there if one.method and one.method != one.name}
    keys = {name: ", ".join(f"`{key}` = {value}" for key, value in one.keys.items()) for name, one in named.items()}
    return "".join(f" `{name}`: `{one.method}` with {keys[name]}." for name, one in named.items())


def _fewest(found: Measures) -> str:
    near = nearest(found, measure=DEPLOYED)
    return f"`{near[0].entry.label}` {100 * _share(near):.1f} %" if near else "none"


def _fedstc(found: Measures) -> str:
    """Return what FedSTC's cheapest run whose clients hold a model within a point deploys; else that of its trials."""
    near = nearest(found, "fedstc")
    contender, budget = (near[0].contender, near[0].budget) if near else (found.named("fedstc"), 0.0)
    difference = found.difference(contender, DEPLOYED, budget)
    return f"{difference.text()} with `{near[0].entry.label if near else contender.name}`" if difference else "–"


def _fedpse(found: Measures) -> str:
    """Return FedPSE's share of the bytes, or how far the best model that it deploys after all rounds is behind."""
    if near := nearest(found, "fedpse", DEPLOYED):
        return f"{100 * _share(near):.1f} %"
    runs = [each for each in found.block.everybody if (each.method or each.name) == "fedpse"]
    behind = [difference for each in runs if (difference := found.difference(each, DEPLOYED))]
    return f"none, at best {max(behind, key=lambda each: each.mean).text()}" if behind else "–"


def _share(near: tuple[Point, Point]) -> float:
    return near[0].entry.megabytes / near[1].entry.megabytes


def _each(found: Sequence[Measures], words: Callable[[Measures], str]) -> str:
    return ", ".join(f"{words(each)} ({each.block.name})" for each in found)
