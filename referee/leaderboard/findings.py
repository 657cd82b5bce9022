"""What the blocks say of who is ahead and what bytes buy: figures for the templates of README and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from referee.leaderboard.blocks import Contender
from referee.leaderboard.measures import DEPLOYED, HOLDS, SENT_SHIFT, SHIFT, AccuracyMeasure, BlockResults, corrected
from referee.leaderboard.points import FrontierPoint, nearest
from sepal.strategies import registry
from sepal.study.statistics import LEVEL, Interval

Named: TypeAlias = dict[str, list[str]]  # contender → names of blocks
FALLEN, FAILED = "no verdict, because a seed collapsed", "no figure, because a run ended with an error"
RIVAL = "fedavg-ft-stc"  # the compressed baseline, which the advice for few bytes is about
SPARSITY = {  # own keys that say how sparse
    "fedpse.keep": "sent",
    "subfedavg.target": "pruned",
    "pfedgate.keep": "of the blocks on",
    "compress.keep": "sent",
}
HALF = 0.5  # of the yardstick's bytes; what needs more saves little
MOST_LOST = 0.05  # what is further behind is not advised, however little it sends
HAR = "a"  # the block of README's table
PAPERS = ("fedpse", "dmpfl", "subfedavg", "pfedgate", "pa3dfl")
NAMES = {
    **{"fedpse": "FedPSE", "dmpfl": "DM-PFL", "subfedavg": "Sub-FedAvg", "pfedgate": "pFedGate", "pa3dfl": "Pa3dFL"},
    **{"fedavg-ft": "FedAvg + fine-tuning", "fedavg-ft-stc": "compressed FedAvg + fine-tuning", "local": "Local"},
}


def compared_blocks(all_results: Sequence[BlockResults]) -> list[BlockResults]:
    """Return the blocks of advice and pictures: finished, with FedAvg and FedAvg + fine-tuning of all seeds."""
    same = [results for results in all_results if results.finished and results.block.yardstick == "fedavg-ft"]
    return [
        results
        for results in same
        if results.whole(results.yardstick) and results.whole(results.named(results.block.dense))
    ]


def alone(results: BlockResults, measure: AccuracyMeasure = HOLDS) -> Contender | None:
    """Return the best of those that train alone."""
    lonely = (
        contender
        for contender in results.block.contenders
        if (contender.method or contender.name) in ("local", "local-width")
    )
    pairs = [
        (difference.mean, contender) for contender in lonely if (difference := results.difference(contender, measure))
    ]
    return max(pairs, key=lambda pair: pair[0])[1] if pairs else None


def verdicts(
    all_results: Sequence[BlockResults],
    compared: Sequence[BlockResults],
    to_dense: bool = False,
    measure: AccuracyMeasure = HOLDS,
) -> dict[str, Named]:
    """Return kind of verdict → contender → blocks, of all that were named before the runs, after Holm's correction.

    There is no verdict where a seed of the contender, or of the one that it is compared with, has collapsed.

    Args:
        all_results: All blocks: Holm's family is that of all.
        compared: The blocks that are compared.
        to_dense: Compare with FedAvg instead of FedAvg + fine-tuning.
        measure: What is compared: what a client holds, or what both sides deploy.
    """
    kinds: dict[str, Named] = {kind: {} for kind in ("leads", "deficits", "undecided", FALLEN, FAILED)}
    tests = corrected(all_results, to_dense, measure)
    for results in compared:
        reference = results.named(results.block.dense) if to_dense else results.yardstick
        for name in results.block.tested:
            contender, words = results.named(name), results.block.name
            difference, p = tests.get((results.block.name, name, measure), (None, None))
            if difference is None or p is None:
                kind = FAILED
            elif results.collapsed(contender) or results.collapsed(reference):
                kind, without = FALLEN, results.without_collapsed(contender, reference, measure)
                words += f"; without it {without.text()}" if without else ""
            else:
                kind = "undecided" if p >= LEVEL else "leads" if difference.mean > 0 else "deficits"
            kinds[kind].setdefault(name, []).append(words)
    return kinds


def without(named: Named, others: Named) -> Named:
    """Return each contender's blocks that ``others`` do not name."""
    remaining = {
        name: [block for block in blocks if block not in others.get(name, [])] for name, blocks in named.items()
    }
    return {name: blocks for name, blocks in remaining.items() if blocks}


def tuned_shift(results: BlockResults) -> Interval | None:
    """Return what fine-tuning changes under full shift: the same run's two views."""
    return results.between((results.yardstick, SHIFT), (results.yardstick, SENT_SHIFT))


def share(results: BlockResults, name: str) -> float | None:
    """Return the bytes of a contender's reported runs, as a share of the yardstick's."""
    sent, whole = results.megabytes(results.named(name)), results.megabytes(results.yardstick)
    return sent / whole if sent is not None and whole else None


class Findings:
    """What the finished blocks say, for templates.

    Attributes:
        all_results: All blocks.
        compared: Those that are compared.
        har: The block of README's table; None until it is finished.
    """

    def __init__(self, all_results: Sequence[BlockResults]) -> None:
        self.all_results, self.compared = all_results, compared_blocks(all_results)
        self.har = next((results for results in all_results if results.block.name == HAR and results.finished), None)

    @cached_property
    def tuned(self) -> dict[str, Named]:
        """Verdicts in what a client holds, to FedAvg + fine-tuning."""
        return verdicts(self.all_results, self.compared)

    @cached_property
    def plain(self) -> dict[str, Named]:
        """The same to FedAvg."""
        return verdicts(self.all_results, self.compared, to_dense=True)

    @cached_property
    def deployed(self) -> dict[str, Named]:
        """Verdicts in what is deployed, to FedAvg."""
        return verdicts(self.all_results, self.compared, to_dense=True, measure=DEPLOYED)

    @property
    def verdict_kinds(self) -> list[str]:
        """The kinds of verdicts that the page names: leads and deficits always, others if there are any."""
        return [kind for kind in self.tuned if self.tuned[kind] or kind in ("leads", "deficits")]

    @property
    def ahead(self) -> str:
        """Who leads over FedAvg + fine-tuning in what a client holds, as a finding."""
        leads = self.listed(self.tuned["leads"])
        none = "No method is established to beat FedAvg + fine-tuning"
        return f"Ahead of FedAvg + fine-tuning: {leads}" if leads else none

    def sides(self, kind: str) -> dict[str, Named]:
        """Return the contenders of a verdict by the references to which it holds: both, or one only."""
        tuned, plain = self.tuned[kind], self.plain[kind]
        only = without(tuned, plain)
        sides = {"both": without(tuned, only), "with it only": only, "without it only": without(plain, tuned)}
        return {of: named for of, named in sides.items() if named or of == "both"}

    @property
    def leads(self) -> Named:
        """Who is ahead of both."""
        return self.sides("leads")["both"]

    def listed(self, named: Named) -> str:
        """Return ``FedPSE (a, d), Local (b)``."""
        return ", ".join(f"{NAMES[name]} ({', '.join(blocks)})" for name, blocks in named.items())

    def count(self, named: Named) -> int:
        """Return how many verdicts there are."""
        return sum(map(len, named.values()))

    @property
    def tests(self) -> int:
        """Tests of the blocks that are compared."""
        return sum(len(results.block.tested) for results in self.compared)

    @property
    def planned(self) -> int:
        """Tests of all blocks."""
        return sum(len(results.block.tested) for results in self.all_results)

    def by_block(self, figure: str) -> str:
        """Return a figure of each compared block, by the name of a function of this class: ``−1.0 […] (a), …``."""
        words: Callable[[BlockResults], str] = getattr(self, figure)
        return ", ".join(f"{words(results)} ({results.block.name})" for results in self.compared)

    def shift(self, results: BlockResults) -> str:
        """Return what fine-tuning changes under full shift."""
        return _text(tuned_shift(results))

    def shift_mean(self, results: BlockResults) -> str:
        """Return the same without its interval."""
        return _text(tuned_shift(results)).partition(" ")[0]

    @property
    def shift_sign(self) -> str:
        """``−`` if fine-tuning is worse under full shift in every block, ``+`` if it is better; else empty."""
        intervals = map(tuned_shift, self.compared)
        signs = {
            "+" if interval and interval.low > 0 else "−" if interval and interval.high < 0 else ""
            for interval in intervals
        }
        return signs.pop() if len(signs) == 1 else "" if signs else "−"

    def local(self, results: BlockResults) -> str:
        """Return how far the better of those that train alone is behind."""
        best = alone(results)
        return _text(results.difference(best, HOLDS) if best else None)

    def local_mean(self, results: BlockResults) -> str:
        """Return the same without its interval."""
        return self.local(results).partition(" ")[0]

    def epochs(self, results: BlockResults) -> str:
        """Return the local epochs of the yardstick's closing round."""
        return str((results.design.chosen(results.yardstick) or {}).get(results.yardstick.own_key, "–"))

    @property
    def shares(self) -> list[float]:
        """The bytes of compressed fine-tuning, as shares of fine-tuning's, by block."""
        return [sent for results in self.compared if (sent := share(results, RIVAL)) is not None]

    @property
    def lost(self) -> list[float]:
        """What compressed fine-tuning deploys less than fine-tuning, by block."""
        return [
            -rival.mean for results in self.compared if (rival := results.difference(results.named(RIVAL), DEPLOYED))
        ]

    @property
    def cheap(self) -> bool:
        """Whether compressed fine-tuning saves at least half of the bytes everywhere, and loses little."""
        return bool(self.shares) and max(self.shares) <= HALF and max(self.lost, default=1.0) <= MOST_LOST

    @property
    def few_bytes(self) -> str:
        """What compressed fine-tuning, deployed, sends and loses: ``… sends 2–9 % of the bytes and loses …``."""
        if not self.shares or not self.lost:
            return "no figure yet"
        return f"{NAMES[RIVAL]} sends {_span(self.shares)} % of the bytes and loses {_span(self.lost)} points"

    def rival(self, results: BlockResults) -> str:
        """Return what compressed fine-tuning deploys, and for which share of the bytes."""
        difference, sent = results.difference(results.named(RIVAL), DEPLOYED), share(results, RIVAL)
        return f"{difference.text()} for {100 * sent:.1f} %" if difference and sent is not None else "–"

    def fewest(self, results: BlockResults) -> str:
        """Return the cheapest run that deploys at most a point less."""
        near = nearest(results, measure=DEPLOYED)
        return f"`{near[0].entry.label}` {100 * _part(near):.1f} %" if near else "none"

    def fedstc(self, results: BlockResults) -> str:
        """Return what FedSTC's cheapest run whose clients hold a model within a point deploys; else its trials' one."""
        near = nearest(results, "fedstc")
        contender, budget = (near[0].contender, near[0].budget) if near else (results.named("fedstc"), 0.0)
        difference = results.difference(contender, DEPLOYED, budget)
        return f"{difference.text()} with `{near[0].entry.label if near else contender.name}`" if difference else "–"

    def fedpse(self, results: BlockResults) -> str:
        """Return FedPSE's share of the bytes, or how far the best model that it deploys after all rounds is behind."""
        if near := nearest(results, "fedpse", DEPLOYED):
            return f"{100 * _part(near):.1f} %"
        runs = [contender for contender in results.block.everybody if (contender.method or contender.name) == "fedpse"]
        behind = [difference for contender in runs if (difference := results.difference(contender, DEPLOYED))]
        return f"none, at best {max(behind, key=lambda difference: difference.mean).text()}" if behind else "–"

    def cheapest_keys(self) -> dict[str, Contender]:
        """Return the contenders of the cheapest runs whose name is not that of a method, by name."""
        contenders = (near[0].contender for results in self.compared if (near := nearest(results, measure=DEPLOYED)))
        return {
            contender.name: contender
            for contender in contenders
            if contender.method and contender.method != contender.name
        }

    def from_dense(self, name: str, block: str) -> str:
        """Return a deployed model's difference to FedAvg's, in points: ``+4.1``."""
        results = next(results for results in self.compared if results.block.name == block)
        return _text(results.difference(results.named(name), DEPLOYED, to=results.block.dense)).partition(" ")[0]

    @property
    def leaning(self) -> tuple[int, int] | None:
        """How many of the undecided have an interval below and above 0 before the correction; None without any."""
        blocks = {results.block.name: results for results in self.compared}
        pairs = ((blocks[name], who) for who, names in self.tuned["undecided"].items() for name in names)
        differences = [
            difference for results, who in pairs if (difference := results.difference(results.named(who), HOLDS))
        ]
        return (
            (
                sum(difference.high < 0 for difference in differences),
                sum(difference.low > 0 for difference in differences),
            )
            if differences
            else None
        )

    @property
    def sparsity(self) -> dict[str, list[str]]:
        """Own key → how sparse the trials made those that are tested: ``0.5 (a)``."""
        by_key: dict[str, list[str]] = {}
        for results in self.compared:
            for contender in map(results.named, results.block.tested):
                keys, key = results.design.chosen(contender), contender.own_key
                if keys and key in SPARSITY:
                    by_key.setdefault(key, []).append(f"{keys[key]:g} ({results.block.name})")
        return by_key

    def untested(self) -> Iterator[tuple[BlockResults, dict[str, list[str]]]]:
        """Yield each finished block without planned tests, with kind of verdict → contenders and differences."""
        for results in self.all_results:
            if results.finished and not results.block.tested:
                yield results, _kinds(results)

    def held_figure(self, name: str) -> str:
        """Return README's figure of a contender: what a client holds, and MB of each."""
        return _held_figure(self.har, name) if self.har else "–"

    def papers(self) -> Iterator[dict[str, Any]]:
        """Yield README's row of each paper's method."""
        for name in PAPERS:
            if (har := self.har) is None:
                return
            contender = har.named(name)
            keys, key = har.design.chosen(contender), contender.own_key
            chosen = f"; `{key}` = {keys[key]:g}" if keys and key else ""
            yield {
                "method": name,
                "source": registry.get(name).source,
                "held": self.held_figure(name),
                "chosen": chosen,
            }


def _held_figure(results: BlockResults, name: str) -> str:
    contender = results.named(name)
    figure, megabytes = results.figure(contender, HOLDS), results.megabytes(contender)
    if figure is None or megabytes is None:
        return f"only {results.failed(contender)} ended well"
    clients = len(next(iter(results.by_seed(contender, HOLDS).values())))
    return f"{figure.words(' %')}, {megabytes / clients:.2g} MB"


def _kinds(results: BlockResults) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {"ahead": [], "behind": [], "undecided": [], FALLEN: []}
    for contender in results.block.contenders:
        difference = None if contender is results.yardstick else results.difference(contender, HOLDS)
        if difference and results.collapsed(contender):
            rest = results.without_collapsed(contender, results.yardstick)
            kinds[FALLEN].append(contender.name + (f"; without that seed {rest.text()}" if rest else ""))
        elif difference:
            kind = "ahead" if difference.low > 0 else "behind" if difference.high < 0 else "undecided"
            kinds[kind].append(f"{contender.name} {difference.text()}")
    return kinds


def _text(difference: Interval | None) -> str:
    return difference.text() if difference else "–"


def _span(values: Sequence[float]) -> str:
    """Return the least and the largest in per cent: ``2–9``, or one of them if they are the same."""
    whole = [round(100 * value) for value in values]
    ends = [f"{value:d}".replace("-", "−") for value in dict.fromkeys((min(whole), max(whole)))]
    return " to ".join(ends) if min(whole) < 0 else "–".join(ends)


def _part(near: tuple[FrontierPoint, FrontierPoint]) -> float:
    return near[0].entry.megabytes / near[1].entry.megabytes
