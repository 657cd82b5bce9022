"""A run's row, that it can be run again, what the rows say of views and differences, and that the page is theirs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats

from referee.leaderboard.blocks import TUNING, read_block
from referee.leaderboard.design import BlockRun, Design
from referee.leaderboard.measures import DEPLOYED, HOLDS, NEWCOMER, SHIFT, BlockResults, corrected
from referee.leaderboard.pages import _headline, _missing, _reruns, write_pages
from referee.leaderboard.points import points_of
from referee.leaderboard.runs import VIEWS, again, execute
from referee.leaderboard.tables import _edge, _trajectory, block_tables
from sepal.study.record import RunRecord
from sepal.study.statistics import Interval
from tests.referee.test_leaderboard_design import BLOCK, OWN, quality, searched
from tests.referee.test_leaderboard_findings import block

LEVELS = {"fedavg": 0.6, "ditto": 0.7, "local": 0.5, "ditto-small": 0.65}


def stored():
    """Return rows of the whole block. Ditto: the second client has .2 more, .1 with seed 1; .2 more at equal bytes."""
    records = []
    for row in searched(quality)[0].rows.values():
        who, seed, kind = row.labels["contender"], row.seed, row.labels["kind"]
        accuracies = [LEVELS["fedavg"], LEVELS[who] + (who == "ditto") * (0.1 * (seed == 0) + 0.2 * (kind == "bytes"))]
        columns = {"name": ["a", "b", "new"], "novel": [False, False, True], "trained": [*accuracies, 0.3]}
        columns |= {"steps": [6, 6, 6], "trained-shift-100": [0.2, 0.2, 0.1]}
        columns |= {} if who == "local" else {"received": [0.1, 0.1, 0.4]}
        about = {"clients": columns, "deployed": "received" if who == "fedavg" else "trained", "cpu_seconds": 36.0}
        records.append(row.model_copy(update={**about, "commit": "abc", "machine": "M"}))
    return records


@pytest.fixture(scope="module")
def measures():
    return BlockResults(Design(BLOCK, stored()))


def test_views_are_those_of_one_population(measures):
    fedavg, ditto, local = BLOCK.contenders
    # Ditto: seed 0 (.6 + .8)/2 = .7, seed 1 (.6 + .7)/2 = .65
    assert measures.figure(ditto, HOLDS).mean == pytest.approx(0.675)
    assert measures.figure(ditto, HOLDS).spread == pytest.approx(0.05 / 2**0.5)
    assert measures.figure(ditto, NEWCOMER).mean == pytest.approx(0.4)
    assert measures.figure(ditto, SHIFT).mean == pytest.approx(0.2)
    assert measures.figure(fedavg, DEPLOYED).mean == pytest.approx(0.1)
    assert measures.figure(local, NEWCOMER) is None  # it sends nothing


def test_differences_are_paired_with_the_yardstick(measures):
    fedavg, ditto, local = BLOCK.contenders
    assert measures.difference(ditto, HOLDS).mean == pytest.approx(0.075)
    assert measures.difference(fedavg, HOLDS) is None
    assert measures.difference(ditto, HOLDS, to="local").mean == pytest.approx(0.125)  # local: (.6 + .5)/2 = .55
    assert measures.difference(fedavg, HOLDS, to="local").mean == pytest.approx(0.05)
    assert (measures.wins(ditto), measures.wins(local)) == ((2, 2, 0), (0, 2, 2))
    family = corrected([measures])
    assert {(name, measure) for _, name, measure in family} == {
        ("ditto", HOLDS),
        ("ditto", NEWCOMER),
        ("local", HOLDS),
    }


def test_a_contender_without_all_seeds_is_shown_but_not_tested():
    rows = [r for r in stored() if (r.labels["contender"], r.labels["kind"], r.seed) != ("ditto", "rounds", 1)]
    some = BlockResults(Design(BLOCK, rows))
    assert some.figure(OWN, HOLDS).count == 1
    assert "ditto" not in {name for _, name, _ in corrected([some])}
    more = BlockResults(Design(BLOCK.model_copy(update={"seeds": (0, 1, 2)}), stored()))
    assert more.difference(OWN, HOLDS) is not None
    assert corrected([more]) == {}


def test_with_the_same_people_intervals_are_over_seeds_and_people_and_wins_over_people(measures):
    # Differences of the two clients: 0 and .2, then 0 and .1. Seeds: .1 and .05, error .025; people: 0 and .15, error
    # .075. Both: error √(.025² + .075²) = .0790569, with 1 / (.1² + .9²) = 1.2195 degrees of freedom.
    same = BlockResults(Design(BLOCK.model_copy(update={"same_people": True}), stored()))
    halves = [(m.difference(OWN, HOLDS).high - m.difference(OWN, HOLDS).low) / 2 for m in (measures, same)]
    both = stats.t.ppf(0.975, 1 / 0.82) * 0.0790569
    assert halves == pytest.approx([12.7062 * 0.025, both], rel=1e-4)  # t(.975, 1) = 12.7062
    assert (measures.wins(OWN), same.wins(OWN)) == ((2, 2, 0), (1, 1, 0))


class Wide(BlockResults):
    """A block with differences of so many seeds and clients."""

    def __init__(self, seeds, clients):
        super().__init__(Design(BLOCK, []))
        self.shape = (seeds, clients)

    def whole(self, contender, other_name=""):
        """All seeds are there."""
        return True

    def differences(self, contender, measure, budget=0.0, to=""):
        """Draw them; those of Ditto are large."""
        drawn = np.random.default_rng(1).normal(0, 0.01, self.shape)
        return drawn + (1 if contender is OWN else 0.004) if measure is HOLDS else np.empty((0, 0))


def test_p_values_are_corrected_and_few_seeds_or_clients_have_none():
    tests_of = corrected([Wide(4, 3)])
    raw = [tests_of["x", name, HOLDS][0].p for name in ("ditto", "local")]
    assert raw[0] < 0.001 < raw[1] / 2
    assert [tests_of["x", name, HOLDS][1] for name in ("ditto", "local")] == pytest.approx([2 * raw[0], raw[1]])
    for few in (Wide(3, 9), Wide(5, 2)):
        assert [p for _, p in corrected([few]).values()] == [None, None]
    # With another block of three planned differences that has not run: of five, the least counts five times.
    later = BlockResults(Design(BLOCK.model_copy(update={"name": "y", "tested": ("fedavg", "ditto", "local")}), []))
    more = corrected([Wide(4, 3), later])
    assert [more["x", name, HOLDS][1] for name in ("ditto", "local")] == pytest.approx([5 * raw[0], min(1, 4 * raw[1])])
    block_results = Wide(4, 3)
    block_results.block = BLOCK.model_copy(update={"tested": ("local",)})  # named before the runs
    assert [corrected([block_results])["x", name, HOLDS][1] for name in ("ditto", "local")] == [
        None,
        pytest.approx(raw[1]),
    ]


@pytest.mark.parametrize(("p", "bold"), [(0.01, True), (0.2, False), (None, False)])
def test_what_is_bold_is_so_after_the_correction(measures, p, bold):
    family = {("x", "ditto", HOLDS): (Interval(0.07, 0.05, 0.09, 0.001), p)}
    text = "\n".join(_headline([measures], HOLDS, family))
    assert ("**+7.0 [+5.0, +9.0]**" in text) == bold
    assert ("1 of 2 planned tests have run" in text, "Intervals only" in text) == (p is not None, p is None)


def test_a_contender_with_a_run_that_ended_with_an_error_has_no_figure_anywhere():
    nothing = {"error": "not finite", "validation": {}, "clients": {}, "spent": ()}
    rows = [
        row.model_copy(update=nothing)
        if (row.labels["contender"], row.seed) == ("ditto", 1) and row.labels["kind"] != "trial"
        else row
        for row in stored()
    ]
    some = BlockResults(Design(BLOCK, rows))
    assert some.figure(OWN, HOLDS) is some.difference(OWN, HOLDS) is some.wins(OWN) is some.megabytes(OWN) is None
    assert "ditto" not in {point.contender.name for point in points_of(some)}
    assert "ditto" not in {name for _, name, _ in corrected([some])}
    assert "| ditto | 1 of 2 seeds |" in "\n".join(_headline([some], HOLDS, {}))
    text = "\n".join(block_tables(some))
    assert "| ditto | 1 of 2 seeds | – |" in text
    assert "| ditto | 1 of 2 seeds | 1 of 2 seeds |" in text.partition("equal bytes")[2]
    assert some.finished  # the others are told


def test_a_run_that_has_spent_more_than_its_budget_is_marked():
    def text(factor):
        rows = [
            row.model_copy(update={"spent": [factor * mb for mb in row.spent]})
            if (row.labels["contender"], row.labels["kind"], row.rounds) == ("ditto", "bytes", 6)
            else row
            for row in stored()
        ]
        return "\n".join(block_tables(BlockResults(Design(BLOCK, rows))))

    assert "**over**: 102 % of the budget" in text(1.02)  # 6 rounds of 2 MB are 12 of 12 MB
    assert "over" not in text(1.009)


def test_the_tables_say_what_was_chosen_what_bytes_buy_and_who_is_on_the_frontier(measures):
    text = "\n".join(block_tables(measures))
    assert "| ditto | ditto.lambda | 0.125, 0.3 | 87.5 ± 0.0 |" in text
    assert "| fedavg | – | 0.099 |" in text
    # .9 - |.125 - .1| - .1·|λ - .3|: the chosen point has a mean over all seeds beside it, .02 with λ = 1 has none.
    assert "; 0.125, 0.3: 87.5 (87.5); " in text
    assert "| 0.02, 1.0: 75.0; " in text
    assert "(12 rounds, 12 MB)" in text
    assert "no round" in text
    assert "80.0" not in text.partition("equal bytes")[0]
    assert "77.5 ± 3.5; +17.5 [" in text.partition("equal bytes")[2]
    # 1 MB is the least that FedAvg sends, and nobody has its accuracy for less
    assert "| fedavg, 1 round | 1 |" in text
    assert "| ditto, 2 rounds | 4 |" in text
    assert "| local | 0 | 55.0 ± 0.0 |" in text.partition("| on the frontier")[2]  # nobody worse is on it


def test_the_tables_say_what_a_budget_buys_at_best():
    results = BlockResults(block("a").design)
    text = "\n".join(block_tables(results))
    # FedAvg sends 80 MB, FedPSE 16, its 1 % 1.6, compressed fine-tuning 2.4; Local has 80.7 %, others with few MB 60.7
    rows = {line.split(" | ")[0]: line for line in text.partition("| equal bytes")[2].splitlines()}
    best = re.findall(r"(\S+): ([\d.]+)", rows["| best of all"])
    assert best == [("local", "80.7"), ("local", "80.7"), ("fedpse", "90.2"), ("fedavg-ft", "90.7")]
    assert "| dmpfl | – | 40.7 ± 0.1 (2.5 %) | 40.7 ± 0.1 (10.0 %) |" in text
    assert "| fedpse | 60.7 ± 0.1 (2.0 %) | 60.7 ± 0.1 (5.0 %) | 90.2 ± 0.1 (20.0 %) |" in text
    assert "fedpse-10, 16 MB" not in text  # the same run as fedpse


@pytest.mark.parametrize(
    ("rate", "choice"),
    [(0.1, "the same: one global model"), (0.2, "different ones: their models differ")],
)
def test_the_tables_say_whether_those_who_train_one_model_chose_the_same_keys(rate, choice):
    results = BlockResults(Design(read_block("a"), []))
    results.design._chosen |= {
        "fedavg-ft": {"lr": 0.1, "fedavg-ft.epochs": 5},
        "fedavg": {"lr": 0.1},
        "ditto": {"lr": rate},
    }
    words = f"fedavg-ft, fedavg, ditto train one global model at equal keys. They chose {choice} "
    assert f"{words}(fedavg-ft 0.1, fedavg 0.1, ditto {rate})." in "\n".join(_trajectory(results))


def test_the_tables_say_what_is_chosen_at_an_end_of_what_was_tried(measures):
    up = BlockResults(searched(lambda config: config["lr"] / 10 - config.get("ditto.lambda", 0.0))[0])
    assert [_edge(up, contender) for contender in BLOCK.contenders[:2]] == ["lr", "lr, ditto.lambda"]
    assert [_edge(measures, contender) for contender in BLOCK.contenders[:2]] == ["–", "–"]


def test_there_is_a_point_for_all_rounds_and_for_all_that_bytes_buy(measures):
    fedavg = BLOCK.contenders[0]
    rounds = {
        contender.name: [p.rounds for p in points_of(measures) if p.contender is contender]
        for contender in (fedavg, OWN)
    }
    assert rounds == {"fedavg": [40, 1, 4, 12], "ditto": [40, 2, 6, 20]}


def test_a_stored_row_is_run_again_and_its_digests_compared():
    keys = {"dataset": "digits", "clients": 3, "partition.subsample": 200, "rounds": 1, "lr": 0.1, "method": "fedavg"}
    row = execute(BlockRun("x", "fedavg", "rounds", {**keys, "seed": 0}), "abc")
    assert set(row.clients) <= {"name", "novel", "steps", *VIEWS}
    assert again(row, "def").figures["same"]
    assert not again(row.model_copy(update={"weights_sha256": "0"}), "def").figures["same"]
    assert execute(BlockRun("x", "fedavg", "trial", {**keys, "seed": TUNING[0]}), "abc").clients == {}


def test_reruns_are_counted_with_how_late_they_were():
    at = "2026-11-2{}T{}:00:00+00:00".format
    lines = [
        RunRecord(labels={"block": block}, machine="M", written=later, figures={"first": first, "same": same})
        for block, first, later, same in (
            ("d", {"written": at(6, "23"), "machine": "M"}, at(7, "02"), True),
            ("a", {"written": at(6, "12"), "machine": "M"}, at(7, "14"), False),
        )
    ]
    reruns = _reruns(lines)
    assert (reruns["same"], reruns["count"], reruns["later"], reruns["blocks"]) == (1, 2, 26.0, [("a", 1), ("d", 1)])
    assert _reruns([]) == {}


def test_a_run_beside_that_is_another_ones_counts_once(measures):
    """`ditto-small` differs in its keys; the same keys as Ditto's make its two runs Ditto's."""
    twin = BLOCK.beside[0].model_copy(update={"keys": {}})
    with_twin = BlockResults(Design(BLOCK.model_copy(update={"beside": (twin,)}), stored()))
    runs = [
        [line.split(" | ")[3] for line in _missing([results]) if line.startswith("| x")]
        for results in (measures, with_twin)
    ]
    assert runs == [["8 of 8"], ["6 of 6"]]


def test_the_picture_is_made_from_the_rows_of_the_page(monkeypatch):
    rows, drawn, names = stored(), [], []

    def read(name):
        names.append(name)  # a run ends each time
        return rows[: 20 + len(names)] if name == "a" else []

    monkeypatch.setattr("referee.leaderboard.pages.read", read)
    monkeypatch.setattr("referee.leaderboard.pages.read_block", lambda name: BLOCK.model_copy(update={"name": name}))
    monkeypatch.setattr("referee.leaderboard.pages.pictures", lambda blocks: drawn.append(blocks) or {})
    monkeypatch.setattr("referee.leaderboard.pages.write_atomically", lambda path, text: None)
    write_pages()
    assert {len(blocks[0].design.rows) for blocks in drawn if blocks} == {21}
