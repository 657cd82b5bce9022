"""Which runs the comparison needs, and in which order; that equal bytes are equal, and that rows and pages agree."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from referee.leaderboard import runs
from referee.leaderboard.blocks import (
    LAST_RATE,
    NAMES,
    TUNING,
    Contender,
    LeaderboardBlock,
    read_block,
    read_contenders,
)
from referee.leaderboard.design import TRIALS, BlockRun, Design
from referee.leaderboard.estimate import hours_left, hours_whole
from referee.leaderboard.measures import BlockResults
from referee.leaderboard.tables import _edge, tuning
from sepal.config import parse
from sepal.errors import ConfigError
from sepal.strategies import registry
from sepal.study.record import RunRecord, append

OWN = Contender(name="ditto", own={"ditto.lambda": (1.0, 0.3, 0.1)})
BLOCK = LeaderboardBlock(
    name="x",
    title="X",
    reduced="all",
    contenders=(
        Contender(name="fedavg"),
        OWN,
        Contender(name="local", own={"local-epochs": (2, 1, 5)}),
    ),
    beside=(Contender(name="ditto-small", method="ditto", **{"tuned-as": "ditto"}, keys={"compress.name": "stc"}),),
    yardstick="fedavg",
    tested=("ditto", "local"),
    rival="fedavg",
    dense="fedavg",
    rounds=40,
    rates=(0.02, 0.05, 0.125, 0.3, 0.75),
    seeds=(0, 1),
    keys={"dataset": "digits", "clients": 4},
)
EACH = {"fedavg": 1.0, "ditto": 2.0, "local": 0.0, "ditto-small": 0.1}  # MB a round


def row(run: BlockRun, validation: float, **more: object) -> RunRecord:
    """Return a row as a run would."""
    spent = [EACH[run.contender] * (number + 1) for number in range(run.config["rounds"])]
    labels = {"block": run.block, "contender": run.contender, "kind": run.kind}
    columns = {"labels": labels, "config": run.config, "validation": {"trained": validation}, "spent": spent, **more}
    return RunRecord(rounds=run.config["rounds"], **columns)


@cache
def searched(quality):
    """Run all that the block needs; return the design and the runs in their order."""
    finished_runs, stored = [], []
    while run := next(Design(BLOCK, stored).needed(), None):
        finished_runs.append(run)
        stored.append(row(run, quality(run.config)))
    return Design(BLOCK, stored), finished_runs


def quality(config):
    """Return a validation accuracy: best at .1, and with Ditto's λ at .3."""
    lr = config["lr"]
    penalty = -0.1 * abs(config["ditto.lambda"] - 0.3) if "ditto.lambda" in config else 0.0
    return 0.9 - abs(lr - 0.1) + penalty


def test_every_contender_has_as_many_trials_and_the_best_point_is_chosen():
    design, finished_runs = searched(quality)
    trials = [run for run in finished_runs if run.kind == "trial"]
    assert {c.name: sum(run.contender == c.name for run in trials) for c in BLOCK.contenders} == dict.fromkeys(
        ("fedavg", "ditto", "local"), TRIALS
    )
    assert {run.config["seed"] for run in trials} == set(TUNING)
    # .125 is best of the five; λ = .3 is better; then its neighbours .05 and .3 at λ = .3, which are new there.
    assert design.points(OWN)[5:] == [
        {"lr": 0.125, "ditto.lambda": 0.3},
        {"lr": 0.125, "ditto.lambda": 0.1},
        {"lr": 0.05, "ditto.lambda": 0.3},
        {"lr": 0.3, "ditto.lambda": 0.3},
    ]
    assert design.chosen(OWN) == {"lr": 0.125, "ditto.lambda": 0.3}
    # Without a key: middles of .05, .125 and .3 (√(.05·.125) = .079, √(.125·.3) = .19), then around the new best .079:
    # its neighbours are tried, so √(.05·.079) = .063 and √(.079·.125) = .099, which is best.
    rates = [keys["lr"] for keys in design.points(BLOCK.contenders[0])]
    assert rates == [*BLOCK.rates, 0.079, 0.19, 0.063, 0.099]
    assert design.chosen(BLOCK.contenders[0]) == {"lr": 0.099}


def test_the_grid_goes_on_beyond_its_ends():
    design, _ = searched(lambda config: config["lr"] / 10)
    # .75² / .3 = 1.875, and again: 1.9² / .75 = 4.8; the lower ones are middles.
    assert [keys["lr"] for keys in design.points(BLOCK.contenders[0])][5:] == [0.47, 1.9, 1.2, 4.8]
    design, _ = searched(lambda config: -config["lr"])
    assert min(keys["lr"] for keys in design.points(OWN)) == 0.008  # .02² / .05


def test_a_trial_that_ended_with_an_error_counts_as_nothing():
    stored = [
        row(run, 0.5).model_copy(update={"validation": {}, "error": "not finite"}) for run in Design(BLOCK, []).needed()
    ]
    assert Design(BLOCK, stored).validation(OWN, OWN_START, TUNING[0]) == 0.0


OWN_START = {"lr": 0.02, "ditto.lambda": 1.0}


@pytest.mark.parametrize(
    ("best", "tried", "chosen", "end"),
    [
        (0.3, None, 0.3, "–"),  # in the middle: nothing more
        (0.05, {"lr": 0.125, "ditto.lambda": 0.03}, 0.03, "ditto.lambda"),  # nearer to .03 than to .1
        (0.09, {"lr": 0.125, "ditto.lambda": 0.03}, 0.1, "–"),  # tried, and no better
        (9.0, None, 1.0, "ditto.lambda"),  # nothing is named beyond this end
    ],
)
def test_one_value_beyond_an_end_of_the_own_key_is_tried_with_all_tuning_seeds(best, tried, chosen, end):
    ditto = OWN.model_copy(update={"beyond": {"low": 0.03}})
    block = BLOCK.model_copy(update={"contenders": (BLOCK.contenders[0], ditto), "tested": ()})
    finished_runs, stored = [], []
    while run := next(Design(block, stored).needed(), None):
        finished_runs.append(run)
        near = 0.9 - abs(run.config["lr"] - 0.125) - 0.01 * abs(run.config.get("ditto.lambda", best) - best)
        stored.append(row(run, near))
    design, names = Design(block, stored), ("lr", "ditto.lambda")
    trials = [run for run in finished_runs if run.contender == "ditto" and run.kind == "trial"]
    beyond = [run.config for run in trials if run.config["ditto.lambda"] == 0.03]
    assert design.further(ditto) == tried
    assert [{key: config[key] for key in names} for config in beyond] == ([tried] * 3 if tried else [])
    assert [config["seed"] for config in beyond] == (list(TUNING) if tried else [])
    assert design.chosen(ditto) == {"lr": 0.125, "ditto.lambda": chosen}
    assert _edge(BlockResults(design), ditto) == end
    assert {
        run.config["ditto.lambda"] for run in finished_runs if run.contender == "ditto" and run.kind != "trial"
    } == {chosen}


def test_the_best_over_three_seeds_is_chosen_not_that_of_the_first():
    def by_seed(config):
        if config["method"] == "ditto" and (config["lr"], config["ditto.lambda"]) == (0.125, 0.3):
            return 1.0 if config["seed"] == TUNING[0] else 0.1
        return quality(config)

    design, _ = searched(by_seed)
    assert design.chosen(OWN) != {"lr": 0.125, "ditto.lambda": 0.3}


def test_further_keys_are_tried_in_turn_at_the_chosen_point_where_the_block_says_so():
    """Momentum gains for everyone, one of Ditto's epochs and not the other; only then is the other key tried.

    λ = .3 is chosen at .125 (above); each value adds three trials, and rows from before keep their keys.
    """

    def gains(config):
        gain = {0: 0.0, 2: 0.05, 3: -0.05}[config.get("ditto.epochs", 0)]
        return quality(config) + 0.02 * (config.get("momentum", 0) == 0.5) + gain

    wider = OWN.model_copy(update={"also": {"ditto.epochs": (3, 2)}})
    contenders = (BLOCK.contenders[0], wider, BLOCK.contenders[2])
    plain = BLOCK.model_copy(update={"contenders": contenders})
    block = plain.model_copy(update={"also": {"momentum": (0.5,)}, "widened": ("ditto",)})
    before, _ = searched(gains)
    assert Design(plain, list(before.rows.values())).chosen(wider) == {"lr": 0.125, "ditto.lambda": 0.3}
    stored = list(before.rows.values())
    assert {run.kind for run in Design(block, stored).needed()} == {"trial"}
    while run := next(Design(block, stored).needed(), None):
        stored.append(row(run, gains(run.config)))
    design = Design(block, stored)
    point = {"lr": 0.125, "ditto.lambda": 0.3, "momentum": 0.5}
    assert design.chosen(wider) == {**point, "ditto.epochs": 2}
    assert design.all_points(wider)[-3:] == [point, {**point, "ditto.epochs": 3}, {**point, "ditto.epochs": 2}]
    assert (design.tried(wider), before.tried(OWN)) == (TRIALS + 9, TRIALS)
    assert design.chosen(BLOCK.contenders[0])["momentum"] == 0.5
    assert "ditto.epochs" not in design.chosen(BLOCK.contenders[2])
    assert {row.config.get("ditto.epochs") for row in design.counted() if row.labels["kind"] == "rounds"} == {None, 2}
    words = "\n".join(tuning(BlockResults(design)))
    assert "0.125, 0.3, momentum = 0.5, ditto.epochs = 2" in words


def test_every_planned_run_names_every_key_whose_default_has_changed_and_older_rows_have_its_former_value(
    tmp_path, monkeypatch
):
    """Else the rows of before would be another run's now, or be made again with other keys."""
    monkeypatch.setattr(runs, "FOLDER", tmp_path)
    for name in NAMES:
        block = read_block(name)
        for contender in block.everybody:
            chosen = {"lr": 0.1, **{key: values[0] for key, values in contender.own.items()}}
            former = registry.former(contender.method or contender.name)
            former = {key: value for key, value in former.items() if key != "method"}  # which every row names
            assert "clip-gradient" in former
            config = block.config(contender, chosen, TUNING[0])
            assert former.keys() <= config.keys(), contender.name
            older = {key: value for key, value in config.items() if key not in former}
            append(runs.path_of(name), RunRecord(config=older))
            read = runs.read(name)[-1].config
            assert read == {**older, **former}


def test_every_further_key_is_one_that_its_method_has():
    for contender in read_contenders().values():
        for key, values in contender.also.items():
            for value in values:
                parse({"method": contender.method or contender.name, **contender.keys, key: value}, registry.Hypers())


def test_where_the_three_best_have_one_rate_others_are_judged_by_all_seeds_too():
    """With the first seed .125 is best at each of Ditto's values, then come .3 and .05; with all seeds .3 is best."""

    def noisy(config):
        ranks = {0.125: 0.9, 0.3: 0.8, 0.05: 0.79} if config["seed"] == TUNING[0] else {0.3: 0.9, 0.125: 0.7}
        return ranks.get(config["lr"], 0.5) - 0.001 * config.get("ditto.lambda", 0)

    design, finished_runs = searched(noisy)
    assert [keys["lr"] for keys in design.finalists(OWN)] == [0.125] * 3 + [0.3, 0.3, 0.05]
    others = {run.config["lr"] for run in finished_runs if run.contender == "ditto" and run.config["seed"] == TUNING[1]}
    assert others == {0.125, 0.3, 0.05}
    assert design.chosen(OWN)["lr"] == 0.3


def test_of_who_was_found_behind_every_point_is_judged_by_all_seeds():
    doubted = BLOCK.model_copy(update={"doubted": ("ditto",)})
    rows = list(searched(quality)[0].rows.values())
    missing = list(Design(doubted, rows).needed())
    assert [run.contender for run in missing] == ["ditto"] * 12  # nine points, of which three had all seeds
    assert {run.config["seed"] for run in missing} == set(TUNING[1:])
    assert len(Design(doubted, rows).finalists(OWN)) == 9


def test_means_of_equal_hits_are_equal_although_accuracies_are_rounded():
    """925 of 1,080 twice, but the rounded accuracies sum up to 2.569445 and 2.569444. The smaller rate is chosen."""
    accuracies = {0.125: (0.856481, 0.856482, 0.856482), 0.05: (0.856481, 0.856481, 0.856482)}
    stored = []
    for lr, values in accuracies.items():
        for seed, value in zip(TUNING, values, strict=True):
            config = BLOCK.config(OWN, {"lr": lr, "ditto.lambda": 1.0}, seed)
            stored.append(row(BlockRun("x", "ditto", "trial", config), value))
    design = Design(BLOCK, stored)
    points = [{"lr": 0.125, "ditto.lambda": 1.0}, {"lr": 0.05, "ditto.lambda": 1.0}]
    assert design._best_mean(OWN, points) == points[1]


def test_trials_come_first_and_seeds_go_round_the_contenders():
    _, finished_runs = searched(quality)
    kinds = [run.kind for run in finished_runs]
    assert kinds == sorted(kinds, key=["trial", "rounds", "bytes"].index)
    order = [(run.config["seed"], run.contender) for run in finished_runs if run.kind == "rounds"]
    names = ["fedavg", "ditto", "local", "ditto-small"]
    assert order == [(seed, name) for seed in (0, 1) for name in names]
    assert not any(run.kind == "rounds" and run.config["seed"] in TUNING for run in finished_runs)


def test_who_stands_beside_has_the_chosen_keys_and_no_trials():
    design, finished_runs = searched(quality)
    small = [run for run in finished_runs if run.contender == "ditto-small"]
    assert {run.kind for run in small} == {"rounds"}
    assert small[0].config["lr"] == design.chosen(OWN)["lr"]
    assert small[0].config["ditto.lambda"] == 0.3


def test_rounds_at_equal_bytes_are_those_that_the_budget_buys():
    design, finished_runs = searched(quality)
    fedavg, ditto, local = BLOCK.contenders
    # FedAvg sends 40 MB: 3 % is 1.2 MB, one round of 1 MB and none of 2 MB.
    assert [design.bought(fedavg, budget) for budget in (0.03, 0.1, 0.3, 1.0)] == [1, 4, 12, 40]
    assert [design.bought(ditto, budget) for budget in (0.03, 0.1, 0.3, 1.0)] == [0, 2, 6, 20]
    assert design.bought(local, 0.03) == 40  # it sends nothing: the run of all rounds
    bytes_ = {(run.contender, run.config["rounds"]) for run in finished_runs if run.kind == "bytes"}
    assert bytes_ == {("fedavg", n) for n in (1, 4, 12)} | {("ditto", n) for n in (2, 6, 20)}
    for run in finished_runs:  # the schedule ends with the run
        last = run.config["lr-decay"] ** (run.config["rounds"] - 1)
        assert last == pytest.approx(LAST_RATE if run.config["rounds"] > 1 else 1.0, abs=1e-4)


def spending(who, seed, round_bytes, closing=0.0):
    """Return the design with another reported run, which sends so many MB in each round and at the end."""
    design, _ = searched(quality)
    config = design.reported(who, seed)
    spent = [closing + sum(round_bytes[: number + 1]) for number in range(40)]
    others = [row for row in design.rows.values() if row.config != config]
    return Design(BLOCK, [*others, design.row(config).model_copy(update={"closing": closing, "spent": spent})])


@pytest.mark.parametrize(
    ("round_bytes", "closing", "bought"),
    [
        ([8.0] + [0.5] * 39, 0.0, 0),
        ([0.05] * 20 + [3.0] * 20, 0.0, 2),
        ([2.0] * 40, 1.9, 1),
        ([2.0] * 40, 2.1, 0),
        ([0.05] * 20 + [3.0] * 20, 2.7, 1),
        ([0.0] * 40, 0.0, 2),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_budget_buys_what_no_seed_exceeds_with_the_closing_download(round_bytes, closing, bought, seed):
    # 10 % of 40 MB, of which the other seed's 2 MB a round buy 2. A dear first round buys none. Of rounds that grow,
    # the first has .05 MB and the later ones 1.563 on average: 2.7 MB at the end leave one of them less. 1.9 MB at the
    # end leave 2.1 MB for one round of 2 MB.
    assert spending(OWN, seed, round_bytes, closing).bought(OWN, 0.1) == bought


@pytest.mark.parametrize(("budget", "bought"), [(0.03, 1), (0.1, 4), (0.3, 12), (1.0, 40)])
def test_the_first_round_has_no_download(budget, bought):
    # 1 MB up, from the second round on 1 MB down, and 1 MB down at the end: 2 MB for each round, 80 in all.
    rows = [
        run_record.model_copy(update={"closing": 1.0, "spent": [2.0 * (n + 1) for n in range(len(run_record.spent))]})
        for run_record in searched(quality)[0].rows.values()
    ]
    assert Design(BLOCK, rows).bought(BLOCK.contenders[0], budget) == bought


def test_who_stands_beside_keeps_the_keys_by_which_it_differs():
    beside = Contender(name="less", method="ditto", keys={"ditto.lambda": 0.01}, **{"tuned-as": "ditto"})
    assert BLOCK.config(beside, {"lr": 0.3, "ditto.lambda": 0.1}, 0)["ditto.lambda"] == 0.01
    assert BLOCK.config(OWN, {"lr": 0.3, "ditto.lambda": 0.1}, 0)["ditto.lambda"] == 0.1


def test_the_budget_has_dense_fedavgs_closing_download_too_and_needs_all_seeds():
    # 10 % of 80 MB: 8 MB, and 4 rounds; with the other seed's 40 MB still 2.
    assert spending(BLOCK.contenders[0], 0, [1.0] * 40, 40.0).limit(0.1, 0) == pytest.approx(8)
    assert spending(BLOCK.contenders[0], 0, [1.0] * 40, 40.0).bought(OWN, 0.1) == 2
    design, _ = searched(quality)
    config = design.reported(OWN, 1)
    assert Design(BLOCK, [row for row in design.rows.values() if row.config != config]).bought(OWN, 0.1) is None


def test_a_row_of_other_keys_does_not_count():
    design, _ = searched(quality)
    run = next(Design(BLOCK, []).needed())
    old = row(replace(run, config={**run.config, "clients": 5}), 0.5)
    more = Design(BLOCK, [*design.rows.values(), old])
    assert len(more.counted()) == len(more.rows) - 1 == len(design.counted())


def test_hours_left_are_those_of_the_whole_less_those_of_rows_that_count():
    _, finished_runs = searched(quality)
    half = [row(run, quality(run.config), cpu_seconds=36.0) for run in finished_runs[:20]]
    old = row(
        replace(finished_runs[0], kind="rounds", config={**finished_runs[0].config, "clients": 5}),
        0.5,
        cpu_seconds=3600.0,
    )
    assert hours_left(Design(BLOCK, [])) == pytest.approx(hours_whole(Design(BLOCK, [])))
    for stored in (half, [*half, old]):
        design = Design(BLOCK, stored)
        assert hours_left(design) == pytest.approx(hours_whole(design) - 20 * 0.01)
        assert hours_left(design) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_the_blocks_are_whole(name):
    block = read_block(name)
    names = [contender.name for contender in block.contenders]
    assert {block.yardstick, block.dense, *block.tested} <= set(names)
    assert len(names) == len(set(names))
    assert {contender.tuned_as for contender in block.beside} <= set(names)
    assert not set(TUNING) & set(block.seeds)
    assert len(block.rates) == 5
    for contender in block.contenders:
        for end, value in contender.beyond.items():
            grid = contender.own[contender.own_key]
            assert value < min(grid) if end == "low" else value > max(grid)
            parse(block.config(contender, {"lr": 0.1, contender.own_key: value}, 0), registry.Hypers())


def test_an_unknown_block_is_refused():
    with pytest.raises(ConfigError, match=r"block: expected one of a, b, c, d, e, got f"):
        read_block("f")


def at_value(value):
    """Return a contender beside: Ditto with this λ, and the best of the rates that Ditto tried with it."""
    words = {"tuned-as": "ditto", "rate-at-value": True, "keys": {"ditto.lambda": value}}
    return Contender(name="ditto-published", method="ditto", **words)


def test_a_published_value_has_the_best_rate_that_was_tried_with_it():
    # Of the grid's five rates, which have λ = 1, .125 is the best; with λ = .3 it is .3, a neighbour.
    def at_rate_and_penalty(config):
        return quality(config) + (0.3 if config.get("ditto.lambda") == 0.3 and config["lr"] == 0.3 else 0.0)

    design, _ = searched(at_rate_and_penalty)
    with_values = Design(
        BLOCK.model_copy(update={"beside": (at_value(1.0), at_value(0.3))}), list(design.rows.values())
    )
    chosen = design.chosen(OWN)
    assert chosen == {"lr": 0.3, "ditto.lambda": 0.3}
    assert with_values.chosen(at_value(1.0)) == {"lr": 0.125, "ditto.lambda": 1.0}
    assert with_values.chosen(at_value(0.3)) == chosen
    with pytest.raises(ConfigError, match="ditto-published"):
        with_values.chosen(at_value(0.7))
