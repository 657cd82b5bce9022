"""What the blocks say of who is ahead and of bytes, and that README has it."""

from __future__ import annotations

from functools import cache

import pytest

from referee.leaderboard.blocks import read_block, text
from referee.leaderboard.design import Design
from referee.leaderboard.findings import FAILED, FALLEN, NAMES, PAPERS, Findings, alone, verdicts
from referee.leaderboard.measures import DEPLOYED, HOLDS, BlockResults, corrected
from referee.leaderboard.pages import texts_of
from referee.leaderboard.points import nearest
from referee.marked_parts import README, rewritten
from sepal.errors import ConfigError
from sepal.study.record import RunRecord

HELD = {"fedavg-ft": 0.9, "fedpse": 0.895, "fedavg-ft-stc": 0.7, "local": 0.8}  # others .6
EACH = {
    "fedpse": 0.2,
    "fedpse-10": 0.2,
    "fedpse-1": 0.02,
    "fedpse-3": 0.05,
    "fedavg-ft-stc": 0.03,
    "fedstc-1": 0.01,
    "local": 0.0,
}  # MB a round, others 1


@cache
def block(name, **accuracies):
    """A block whose runs have these accuracies, in [0, 1], of three clients; the second has .02 more, with seed 0 .03.

    Runs of fewer rounds have .2 less.
    """
    accuracies, configured, design = {**HELD, **accuracies}, read_block(name), None
    while design is None or next(design.needed(), None):
        stored = list(design.rows.values()) if design else []
        missing = reversed(list(Design(configured, stored).needed()))
        first = {text(run.config): run for run in missing}  # one of a pair that is the same run: the first, as always
        design = Design(
            configured, [*stored, *(row(run, accuracies.get(run.contender, 0.6)) for run in first.values())]
        )
    return BlockResults(design)


def row(run, level):
    """A run's row."""
    rounds = run.config["rounds"]
    level -= 0.2 * (rounds < 40)
    columns = {"name": ["a", "b", "c"], "novel": [False] * 3, "steps": [None] * 3}
    values = [level, level + (0.03 if run.config["seed"] == 0 else 0.02), level]
    columns |= {"trained": values, "trained-shift-100": values}
    before = run.config["method"] in ("fedavg", "fedstc")  # one model for all, without local epochs
    columns |= {"received": [level - 0.1] * 3} if before else {}
    columns["received-shift-100"] = [0.5] * 3
    spent = [EACH.get(run.contender, 1.0) * 2 * (n + 1) for n in range(rounds)]
    return RunRecord(
        labels={"block": run.block, "contender": run.contender, "kind": run.kind},
        config=run.config,
        rounds=rounds,
        validation={"trained": level},
        spent=spent,
        clients=columns,
        deployed="received" if before else "trained",
        cpu_seconds=1.0,
        commit="abc",
        machine="M",
    )


def verdict(blocks, name, kind="tuned"):
    """Return kind of verdict → blocks of one contender."""
    return {
        verdict_name: named[name] for verdict_name, named in getattr(Findings(blocks), kind).items() if name in named
    }


def test_the_table_has_what_clients_hold_and_the_mb_of_each():
    findings = Findings([block("a")])
    # .2 MB × 2 × 40 rounds of three clients: 5.33 each. (.895 + .915 + .895)/3, with seed 0 .3 points more: 90.2 ± .1.
    first = next(findings.papers())
    assert (first["held"], first["chosen"]) == ("90.2 ± 0.1 %, 5.3 MB", "; `fedpse.keep` = 0.1")
    assert findings.held_figure("local") == "80.7 ± 0.1 %, 0 MB"


def test_leads_and_deficits_are_those_of_what_clients_hold():
    # FedPSE is .5 behind in a, and 9 ahead in d; all others are behind, and all but two have FedAvg's .6.
    findings = Findings([block("a"), block("d", fedpse=0.99)])
    others = ("dmpfl", "subfedavg", "pfedgate", "pa3dfl", "fedavg-ft-stc", "local")
    assert findings.tuned["leads"] == {"fedpse": ["d"]}
    assert findings.tuned["deficits"] == {"fedpse": ["a"], **{name: ["a", "d"] for name in others}}
    assert findings.plain["leads"] == {name: ["a", "d"] for name in ("fedpse", "fedavg-ft-stc", "local")}
    assert findings.plain["deficits"] == {}
    assert findings.leads == {"fedpse": ["d"]}
    assert set(findings.sides("deficits")) == {"both", "with it only"}
    assert findings.ahead.endswith(": FedPSE (d)")


def test_deployed_leads_compare_what_both_sides_deploy():
    # FedAvg deploys .1 less than its clients hold after local epochs, .5: who has its .6 otherwise is ahead of that
    blocks = [block("a"), block("d")]
    findings = Findings(blocks)
    assert "dmpfl" not in findings.plain["leads"]
    assert findings.deployed["leads"] == {name: ["a", "d"] for name in read_block("a").tested}
    assert findings.count(findings.deployed["leads"]) == findings.tests == 14
    assert {key[2] for key in corrected(blocks, True, DEPLOYED)} == {DEPLOYED}  # nobody is new here
    margin = blocks[0].difference(blocks[0].named("dmpfl"), DEPLOYED, to="fedavg")
    # .6 and .5, and the second of three clients has .02 more, with one of five seeds .03
    assert margin.mean == pytest.approx(0.1 + (4 * 0.02 + 0.03) / 15)


def changed(which, change):
    """Block a with other rows: those for which ``which`` holds are changed."""
    rows = [
        run_record.model_copy(update=change(run_record))
        if which(run_record.labels["contender"], run_record.labels["kind"], run_record.seed)
        else run_record
        for run_record in block("a").design.rows.values()
    ]
    return BlockResults(Design(read_block("a"), rows))


def holding(*levels):
    """Return a change: all clients hold this, or one for each seed."""
    return lambda row: {"clients": {**row.clients, "trained": [levels[row.seed % len(levels)]] * 3}}


def test_deployed_differences_are_corrected_as_one_family():
    # DM-PFL is ahead by 1, 2, 3, 4 and 5 points, p = .013; its 7-fold is no lead
    some = changed(lambda who, kind, _: (who, kind) == ("dmpfl", "rounds"), holding(0.51, 0.52, 0.53, 0.54, 0.55))
    block_a = read_block("a").model_copy(update={"same_people": False})
    some = BlockResults(Design(block_a, list(some.design.rows.values())))
    difference, p = corrected([some], True, DEPLOYED)["a", "dmpfl", DEPLOYED]
    assert 0.01 < difference.p < 0.02
    assert p == pytest.approx(difference.p)  # the others have p = 0, and it is the largest of seven
    planned = [some, BlockResults(Design(read_block("d"), []))]  # of which nothing has run
    assert corrected(planned, True, DEPLOYED)["a", "dmpfl", DEPLOYED][1] == pytest.approx(8 * difference.p)
    assert "dmpfl" in verdicts(planned, [some], True, DEPLOYED)["undecided"]


def test_methods_for_unequal_capacity_are_compared_with_the_smallest_width():
    # all have .6, one has 10 points more, one 10 less
    unequal = block("e", flanc=0.7, heterofl=0.5)
    ((finding, kinds),) = Findings([block("a"), unequal]).untested()
    assert (finding.block.name, kinds["ahead"], kinds["behind"]) == (
        "e",
        ["flanc +10.0 [+10.0, +10.0]"],
        ["heterofl −10.0 [−10.0, −10.0]"],
    )
    assert (len(kinds["undecided"]), kinds[FALLEN]) == (5, [])
    rows = [
        run_record.model_copy(update={"clients": {**run_record.clients, "trained": [0.1] * 3}})
        if (run_record.labels["contender"], run_record.labels["kind"], run_record.seed) == ("pa3dfl", "rounds", 3)
        else run_record
        for run_record in unequal.design.rows.values()
    ]
    ((_, kinds),) = Findings([BlockResults(Design(read_block("e"), rows))]).untested()
    assert kinds[FALLEN] == ["pa3dfl; without that seed +0.0 [+0.0, +0.0]"]
    assert list(Findings([BlockResults(Design(read_block("e"), rows[:-1]))]).untested()) == []  # not whole


def test_training_alone_is_the_better_of_those_that_do():
    blocks = [block("a"), block("b", **{"local-each-round": 0.85}), block("d")]
    assert [alone(results).name for results in blocks] == ["local", "local-each-round", "local"]
    words = "−10.0 [−10.0, −10.0] (a), −5.0 [−5.0, −5.0] (b), −10.0 [−10.0, −10.0] (d)"
    assert Findings(blocks).by_block("local") == words


@pytest.mark.parametrize(
    ("levels", "leads"),
    [({"fedpse": 0.9}, {}), ({"fedpse": 0.9, "fedavg": 0.95}, {}), ({"fedpse": 0.9, "local": 0.96}, {"local": ["a"]})],
)
def test_whoever_is_ahead_of_both_leads(levels, leads):
    findings = Findings([block("a", **levels)])
    assert findings.leads == leads
    assert findings.tuned["undecided"] == {"fedpse": ["a"]}  # the same figures
    where = "deficits" if "fedavg" in levels else "leads"
    assert findings.plain[where]["fedpse"] == ["a"]


@pytest.mark.parametrize(
    ("levels", "sign"),
    [(([0.95] * 3, [0.99] * 3), "−"), (([0.5] * 3, [0.99] * 3), ""), (([0.5] * 3, [0.5] * 3), "+")],
)
def test_the_shift_has_one_sign_only_if_all_blocks_have(levels, sign):
    blocks = []
    for results, level in zip((block("a"), block("d")), levels, strict=True):
        clients = {"received-shift-100": level}
        rows = [r.model_copy(update={"clients": {**r.clients, **clients}}) for r in results.design.rows.values()]
        blocks.append(BlockResults(Design(results.block, rows)))
    assert Findings(blocks).shift_sign == sign


def test_few_bytes_are_judged_by_what_is_deployed():
    results = block("a", fedpse=0.8, **{"fedavg-ft-stc": 0.89, "fedstc-1": 0.9})
    # FedSTC's clients hold .9 after local epochs for fewer bytes; it deploys .8
    nearest_held, deployed = (nearest(results, measure=measure)[0].contender.name for measure in (HOLDS, DEPLOYED))
    assert (nearest_held, deployed) == ("fedstc-1", "fedavg-ft-stc")
    assert nearest(results, "fedstc", DEPLOYED) is None
    findings = Findings([results])
    assert findings.few_bytes.endswith("sends 3 % of the bytes and loses 1 points")
    assert findings.rival(results) == "−1.0 [−1.0, −1.0] for 3.0 %"
    assert findings.fedstc(results).startswith("−10.7 [")  # .8, without the second client's .02
    assert findings.fedstc(results).endswith(" with `fedstc-1`")
    assert findings.fewest(results) == "`fedavg-ft-stc` 3.0 %"  # and not FedSTC's 1.0 %
    assert findings.fedpse(results) == "none, at best −10.0 [−10.0, −10.0]"


def test_a_tuned_run_goes_before_others_of_a_twentieth_less(monkeypatch):
    monkeypatch.setitem(EACH, "ditto-stc", 0.029)
    monkeypatch.setitem(EACH, "fedavg-ft-topk-1", 0.031)
    block.cache_clear()
    results = block("a", fedpse=0.8, **{"fedavg-ft-stc": 0.9, "ditto-stc": 0.9, "fedavg-ft-topk-1": 0.9})
    assert nearest(results)[0].entry.label == "fedavg-ft-stc"
    monkeypatch.setitem(EACH, "ditto-stc", 0.028)
    block.cache_clear()
    near = nearest(block("a", **{"fedavg-ft-stc": 0.9, "ditto-stc": 0.9}))
    block.cache_clear()
    assert near[0].entry.label == "ditto-stc"


def test_a_seed_that_collapsed_counts_and_has_no_verdict():
    fallen = [changed(lambda *run: run == ("dmpfl", "rounds", 4), holding(0.1))]
    # Means of the seeds: .61, three of .6067, and .1. Their mean is .506; of the first four it is .6075.
    assert Findings(fallen).held_figure("dmpfl").startswith("50.6 ± 22.7 % (1 of 5 seeds collapsed: 10.0; others 60.")
    assert verdict(fallen, "dmpfl") == {FALLEN: ["a; without it −30.0 [−30.0, −30.0]"]}


def test_without_two_seeds_that_have_not_collapsed_there_is_no_difference_without():
    some = [changed(lambda who, kind, seed: (who, kind) == ("dmpfl", "rounds") and seed, holding(0.1))]
    assert verdict(some, "dmpfl") == {FALLEN: ["a"]}


def test_where_a_seed_of_the_yardstick_collapsed_there_is_no_verdict_at_all():
    findings = Findings([changed(lambda *run: run == ("fedavg-ft", "rounds", 4), holding(0.1))])
    assert {kind: len(named) for kind, named in findings.tuned.items() if named} == {FALLEN: 7}
    assert findings.leads == {}
    assert findings.verdict_kinds == ["leads", "deficits", FALLEN]


def test_what_is_undecided_only_by_the_correction_is_counted():
    # behind by .2, 2, 3, 4, 5 points, by seed: 2.8 points, t = 3.4 with 4 degrees of freedom, p = .03
    some = changed(
        lambda who, kind, seed: (who, kind) == ("subfedavg", "rounds"),
        lambda row: {
            "clients": {
                **row.clients,
                "trained": [
                    value - (0.002, 0.02, 0.03, 0.04, 0.05)[row.seed]
                    for value in (0.9, 0.9 + (0.02 if row.seed else 0.03), 0.9)
                ],
            }
        },
    )
    blocks = [some, BlockResults(Design(read_block("d"), []))]
    assert verdict(blocks, "subfedavg") == {"undecided": ["a"]}
    assert Findings(blocks).leaning == (1, 0)


NOTHING = {"error": "not finite", "clients": {}, "spent": (), "validation": {}}


def test_a_block_whose_yardstick_has_an_error_is_not_compared():
    broken = changed(
        lambda who, kind, seed: kind == "bytes" or (who, kind, seed) == ("fedavg-ft", "rounds", 4), lambda row: NOTHING
    )
    assert Findings([broken]).compared == []


@pytest.mark.parametrize(
    ("share", "level", "advised"), [(0.4, 0.9, True), (0.6, 0.9, False), (0.4, 0.86, True), (0.4, 0.84, False)]
)
def test_less_is_advised_only_where_half_is_saved_for_at_most_five_points(share, level, advised, monkeypatch):
    monkeypatch.setitem(EACH, "fedavg-ft-stc", share)
    block.cache_clear()
    assert Findings([block("a", **{"fedavg-ft-stc": level})]).cheap == advised
    block.cache_clear()


def test_a_run_that_ended_with_an_error_takes_no_block_from_the_verdicts():
    broken = [
        changed(
            lambda who, kind, seed: (who == "dmpfl" and kind == "bytes") or (who, kind, seed) == ("dmpfl", "rounds", 4),
            lambda row: NOTHING,
        )
    ]
    assert verdict(broken, "dmpfl") == {FAILED: ["a"]}
    assert verdict(broken, "subfedavg") == {"deficits": ["a"]}
    assert Findings(broken).held_figure("dmpfl") == "only 4 of 5 seeds ended well"


def test_a_block_that_is_not_finished_is_not_compared():
    some = [run_record for run_record in block("d").design.rows.values() if run_record.labels["kind"] != "bytes"]
    findings = Findings([block("a"), BlockResults(Design(read_block("d"), some))])
    assert (findings.tests, findings.planned) == (7, 14)
    assert Findings([BlockResults(Design(read_block("d"), some))]).har is None


def test_readme_has_a_row_for_each_paper_and_needs_its_markers():
    texts = texts_of({}, [block("a")], [])
    assert [row["method"] for row in Findings([block("a")]).papers()] == list(PAPERS)
    assert "[90.2 ± 0.1 %, 5.3 MB](referee/results/fedpse.md)" in texts[README]
    assert README not in texts_of({}, [block("d")], [])
    with pytest.raises(ConfigError, match="<!-- NAME"):
        rewritten("no markers", {"table": []})


def test_everybody_who_is_tested_has_a_name():
    assert {*read_block("a").tested, "fedavg-ft"} <= NAMES.keys()
