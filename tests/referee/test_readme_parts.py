"""README's table and advice are those of the leaderboard's rows, and say what these do."""

from __future__ import annotations

import re
from functools import cache

import pytest

from referee.leaderboard.blocks import read_block
from referee.leaderboard.design import Design
from referee.leaderboard.measures import DEPLOYED, HOLDS, Measures, corrected
from referee.leaderboard.pages import PAGE, _made
from referee.leaderboard.points import nearest
from referee.leaderboard.readme import (
    NAMES,
    NOBODY,
    PAPERS,
    _verdicts,
    few_bytes,
    parts,
    untested,
    verdicts,
    who_is_ahead,
)
from referee.parts import README, rewritten
from sepal.errors import ConfigError

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
def block(name, **held):
    """A block whose runs have these accuracies, in [0, 1], of three clients; the second has .02 more, with seed 0 .03.

    Runs of fewer rounds have .2 less.
    """
    held, found, design = {**HELD, **held}, read_block(name), None
    held["fedpse-10"] = held["fedpse"]  # the same run as that of the chosen .1
    while design is None or next(design.needed(), None):
        stored = list(design.rows.values()) if design else []
        design = Design(
            found, [*stored, *(row(run, held.get(run.contender, 0.6)) for run in Design(found, stored).needed())]
        )
    return Measures(design)


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
    about = {"block": run.block, "contender": run.contender, "kind": run.kind, "config": run.config, "closing": 0.0}
    about |= {
        "validation": {"trained": level},
        "spent": [EACH.get(run.contender, 1.0) * 2 * (n + 1) for n in range(rounds)],
    }
    return {
        **about,
        "clients": columns,
        "deployed": "received" if before else "trained",
        "cpu_seconds": 1.0,
        "commit": "abc",
        "machine": "M",
    }


def test_the_table_has_what_clients_hold_and_the_mb_of_each():
    lines = parts([block("a")])["table"]
    # .2 MB × 2 × 40 rounds of three clients: 5.33 each. (.895 + .915 + .895)/3, with seed 0 .3 points more: 90.2 ± .1.
    assert "[90.2 ± 0.1 %, 5.3 MB](referee/results/fedpse.md); `fedpse.keep` = 0.1 |" in "\n".join(lines)
    assert "Local 80.7 ± 0.1 %, 0 MB" in lines[-1]
    assert re.findall(r"^\| `(\w+)`", "\n".join(lines), re.M) == list(PAPERS)


def test_leads_and_deficits_are_those_of_what_clients_hold():
    # FedPSE is .5 behind in a, and 9 ahead in d; all others are behind, and all but two have FedAvg's .6.
    found = [block("a"), block("d", fedpse=0.99)]
    tuned, plain = (_verdicts(found, found, to_dense) for to_dense in (False, True))
    assert tuned["leads"] == {"fedpse": ["d"]}
    assert tuned["deficits"].pop("fedpse") == ["a"]
    others = ("dmpfl", "subfedavg", "pfedgate", "pa3dfl", "fedavg-ft-stc", "local")
    assert tuned["deficits"] == {name: ["a", "d"] for name in others}
    assert plain["leads"] == {name: ["a", "d"] for name in ("fedpse", "fedavg-ft-stc", "local")}
    assert plain["deficits"] == {}
    assert who_is_ahead(found).endswith(": FedPSE (d)")


def test_deployed_leads_compare_what_both_sides_deploy():
    # FedAvg deploys .1 less than its clients hold after local epochs, .5: who has its .6 otherwise is ahead of that
    found = [block("a"), block("d")]
    held, deployed = (_verdicts(found, found, True, measure)["leads"] for measure in (HOLDS, DEPLOYED))
    assert "dmpfl" not in held
    assert deployed == {name: ["a", "d"] for name in read_block("a").tested}
    assert {key[2] for key in corrected(found, True, DEPLOYED)} == {DEPLOYED}  # nobody is new here
    one = found[0].difference(found[0].named("dmpfl"), DEPLOYED, to="fedavg")
    # .6 and .5, and the second of three clients has .02 more, with one of five seeds .03
    assert one.mean == pytest.approx(0.1 + (4 * 0.02 + 0.03) / 15)
    assert "14 tests, 14 find a lead" in parts(found)["advice"][0]


def test_deployed_differences_are_corrected_as_one_family():
    rows = [{**each} for each in block("a").design.rows.values()]
    for each in rows:  # DM-PFL is ahead by 1, 2, 3, 4 and 5 points, p = .013; its 7-fold is no lead
        if (each["contender"], each["kind"]) == ("dmpfl", "rounds"):
            level = 0.5 + 0.01 * (1 + each["config"]["seed"])
            each["clients"] = {**each["clients"], "trained": [level] * 3}
    some = Measures(Design(read_block("a").model_copy(update={"same_people": False}), rows))
    difference, p = corrected([some], True, DEPLOYED)["a", "dmpfl", DEPLOYED]
    assert 0.01 < difference.p < 0.02
    assert p == pytest.approx(difference.p)  # the others have p = 0, and it is the largest of seven
    planned = [some, Measures(Design(read_block("d"), []))]  # of which nothing has run
    assert corrected(planned, True, DEPLOYED)["a", "dmpfl", DEPLOYED][1] == pytest.approx(8 * difference.p)
    assert "dmpfl" in _verdicts(planned, [some], True, DEPLOYED)["undecided"]


def test_methods_for_unequal_capacity_are_compared_with_the_smallest_width():
    # all have .6, one has 10 points more, one 10 less
    found = [block("a"), block("e", flanc=0.7, heterofl=0.5)]
    told, end = untested(found)
    assert end == ""
    assert told == (
        "**Fashion-MNIST, 20 clients of unequal capacity, Dirichlet(.3)** (e), 5 seeds, what a client holds, in "
        "points from `fedavg-ft-narrow`; a 95 % interval without 0 counts, not corrected for several comparisons: "
        "ahead: flanc +10.0 [+10.0, +10.0]; behind: heterofl −10.0 [−10.0, −10.0]; undecided: fedavg-narrow "
        "+0.0 [+0.0, +0.0], local-width +0.0 [+0.0, +0.0], pa3dfl-position +0.0 [+0.0, +0.0], pa3dfl "
        "+0.0 [+0.0, +0.0], fedrolex +0.0 [+0.0, +0.0]; no verdict, because a seed collapsed: none."
    )
    rows = [dict(row) for row in found[1].design.rows.values()]
    mine = next(r for r in rows if (r["contender"], r["kind"], r["config"]["seed"]) == ("pa3dfl", "rounds", 3))
    mine["clients"] = {**mine["clients"], "trained": [0.1] * 3}
    told, _ = untested([Measures(Design(read_block("e"), rows))])
    assert told.endswith("no verdict, because a seed collapsed: pa3dfl; without that seed +0.0 [+0.0, +0.0].")
    assert list(untested([Measures(Design(read_block("e"), rows[:-1]))])) == []  # not whole


def test_training_alone_is_the_better_of_those_that_do():
    found = [block("a"), block("b", **{"local-each-round": 0.85}), block("d")]
    first = parts(found)["advice"][0]
    assert "Training alone: −10.0 [−10.0, −10.0] (a), −5.0 [−5.0, −5.0] (b), −10.0 [" in first


@pytest.mark.parametrize(
    ("levels", "head"),
    [
        ({"fedpse": 0.9}, f"- **{NOBODY}.** "),
        ({"fedpse": 0.9, "fedavg": 0.95}, f"- **{NOBODY}.** "),
        ({"fedpse": 0.9, "local": 0.96}, "- **Try Local (a) where data are like these.** "),
    ],
)
def test_the_first_sentence_says_to_whom_all_are_compared(levels, head):
    found = [block("a", **levels)]
    assert parts(found)["advice"][0].startswith(head)
    tests = verdicts(found)
    assert "undecided: FedPSE (a)" in tests  # the same figures
    leads, deficits = tests.partition("To FedAvg, ")[2].partition("; deficits: ")[::2]
    assert ("FedPSE (a)" in leads, "FedPSE (a)" in deficits) == ("fedavg" not in levels, "fedavg" in levels)


def test_the_second_sentence_follows_the_signs():
    found = [block("a"), block("d")]

    def head(*levels):
        for each, level in zip(found, levels, strict=True):
            for row in each.design.rows.values():
                row["clients"]["received-shift-100"] = level
        return parts(found)["advice"][1][4:].partition(".**")[0]

    try:
        assert head([0.95] * 3, [0.99] * 3).startswith("Keep the one model for all, without fine-tuning, if")
        assert head([0.5] * 3, [0.99] * 3).startswith("Whether to fine-tune")
        assert head([0.9, 0.92, 0.9], [0.99] * 3).startswith("Whether to fine-tune")
    finally:
        block.cache_clear()


def test_few_bytes_are_judged_by_what_is_deployed():
    found = block("a", fedpse=0.8, **{"fedavg-ft-stc": 0.89, "fedstc-1": 0.9})
    # FedSTC's clients hold .9 after local epochs for fewer bytes; it deploys .8
    held, deployed = (nearest(found, measure=measure)[0].contender.name for measure in (HOLDS, DEPLOYED))
    assert (held, deployed) == ("fedstc-1", "fedavg-ft-stc")
    assert nearest(found, "fedstc", DEPLOYED) is None
    assert few_bytes([found]).endswith("sends 3 % of the bytes and loses 1 points")
    third = parts([found])["advice"][2]
    assert "−1.0 [−1.0, −1.0] for 3.0 % (a)" in third
    assert re.search(r"−10\.7 \[[−.,\d ]+\] with `fedstc-1` \(a\)", third)  # .8, without the second client's .02
    assert "`fedavg-ft-stc` 3.0 % (a)" in third  # and not FedSTC's 1.0 %
    assert "FedPSE's cheapest such run: none, at best −10.0 [−10.0, −10.0] (a)" in third


def test_a_tuned_run_goes_before_others_of_a_twentieth_less(monkeypatch):
    monkeypatch.setitem(EACH, "ditto-stc", 0.029)
    monkeypatch.setitem(EACH, "fedavg-ft-topk-1", 0.031)
    block.cache_clear()
    found = block("a", fedpse=0.8, **{"fedavg-ft-stc": 0.9, "ditto-stc": 0.9, "fedavg-ft-topk-1": 0.9})
    assert nearest(found)[0].entry.label == "fedavg-ft-stc"
    monkeypatch.setitem(EACH, "ditto-stc", 0.028)
    block.cache_clear()
    near = nearest(block("a", **{"fedavg-ft-stc": 0.9, "ditto-stc": 0.9}))
    block.cache_clear()
    assert near[0].entry.label == "ditto-stc"


def changed(which, change):
    """Block a with other rows: those for which ``which`` holds are changed."""
    rows = [{**each} for each in block("a").design.rows.values()]
    for each in rows:
        if which(each["contender"], each["kind"], each["config"]["seed"]):
            each.update(change(each))
    return Measures(Design(read_block("a"), rows))


def test_a_seed_that_collapsed_is_told_and_counts_and_has_no_verdict():
    fell = [0.1, 0.12, 0.1]
    fallen = [
        changed(lambda *run: run == ("dmpfl", "rounds", 4), lambda r: {"clients": {**r["clients"], "trained": fell}})
    ]
    found = parts(fallen)
    # Means of the seeds: .61, three of .6067, and .1067. Their mean is .5073; of the first four it is .6075.
    words = r"\[50\.7 ± 22\.4 % \(1 of 5 seeds collapsed: 10\.7; others 60\.[78] ± 0\.2\), 27 MB\]"
    assert re.search(words, "\n".join(found["table"]))
    assert "DM-PFL" not in found["advice"][0]
    tests = verdicts(fallen)
    assert "; no verdict, because a seed collapsed: DM-PFL (a; without it −30.0 [−30.0, −30.0])." in tests
    assert tests.count("DM-PFL") == 1


def test_without_two_seeds_that_have_not_collapsed_the_contender_is_named_without_a_figure():
    fell = {"trained": [0.1, 0.1, 0.1]}
    tests = verdicts(
        [changed(lambda w, k, s: (w, k) == ("dmpfl", "rounds") and s, lambda r: {"clients": {**r["clients"], **fell}})]
    )
    assert "; no verdict, because a seed collapsed: DM-PFL (a). " in tests


def test_where_a_seed_of_the_yardstick_collapsed_there_is_no_verdict_at_all():
    found = [
        changed(
            lambda *run: run == ("fedavg-ft", "rounds", 4),
            lambda r: {"clients": {**r["clients"], "trained": [0.1, 0.1, 0.1]}},
        )
    ]
    first = parts(found)["advice"][0]
    assert "in 7 tests against " in first
    assert "Better than both: none" in first
    assert "Worse than both: none. The others are undecided or have no verdict." in first
    tests = verdicts(found)
    assert "leads: none; deficits: none; no verdict, because a seed collapsed: FedPSE (a; without it " in tests
    assert "undecided:" not in tests


def test_what_is_undecided_only_by_the_correction_is_counted():
    behind = [0.002, 0.02, 0.03, 0.04, 0.05]  # by seed: 2.8 points, t = 3.4 with 4 degrees of freedom, p = .03

    def lower(row):
        seed = row["config"]["seed"]
        level = 0.9 - behind[seed]
        return {"clients": {**row["clients"], "trained": [level, level + (0.02 if seed else 0.03), level]}}

    some = changed(lambda who, kind, seed: (who, kind) == ("subfedavg", "rounds"), lower)
    tests = verdicts([some, Measures(Design(read_block("d"), []))])
    assert (
        "; undecided: Sub-FedAvg (a). Of the undecided, 1 have an interval below 0 before the correction, and none"
        in tests
    )


def test_a_block_whose_yardstick_has_an_error_is_not_told():
    broken = changed(
        lambda who, kind, seed: kind == "bytes" or (who, kind, seed) == ("fedavg-ft", "rounds", 4),
        lambda row: {"error": "not finite", "clients": {}, "spent": [], "validation": {}},
    )
    assert "(a)" not in parts([broken])["advice"][0] + verdicts([broken])


@pytest.mark.parametrize(
    ("share", "level", "advised"), [(0.4, 0.9, True), (0.6, 0.9, False), (0.4, 0.86, True), (0.4, 0.84, False)]
)
def test_less_is_advised_only_where_half_is_saved_for_at_most_five_points(share, level, advised, monkeypatch):
    monkeypatch.setitem(EACH, "fedavg-ft-stc", share)
    block.cache_clear()
    third = parts([block("a", **{"fedavg-ft-stc": level})])["advice"][2]
    block.cache_clear()
    assert third.startswith("- **Send less") == advised


def test_a_run_that_ended_with_an_error_takes_no_block_from_the_advice():
    broken = changed(
        lambda who, kind, seed: (who == "dmpfl" and kind == "bytes") or (who, kind, seed) == ("dmpfl", "rounds", 4),
        lambda row: {"error": "not finite", "clients": {}, "spent": [], "validation": {}},
    )
    found, tests = parts([broken]), verdicts([broken])
    assert "Sub-FedAvg (a)" in found["advice"][0]
    assert "DM-PFL" not in found["advice"][0]
    assert "no figure, because a run ended with an error: DM-PFL (a)." in tests
    assert tests.count("DM-PFL") == 1
    assert "[only 4 of 5 seeds ended well](referee/results/dmpfl.md)" in "\n".join(found["table"])


def test_a_block_that_is_not_finished_is_not_told():
    some = [each for each in block("d").design.rows.values() if each["kind"] != "bytes"]
    tests = verdicts([block("a"), Measures(Design(read_block("d"), some))])
    assert "(d)" not in tests
    assert "(7 of 14 planned, " in tests
    some = [each for each in block("a").design.rows.values() if each["kind"] != "bytes"]
    assert parts([Measures(Design(read_block("a"), some))]) == {}


def test_without_the_block_of_the_table_nothing_is_made():
    assert parts([]) == parts([block("d")]) == {}
    with pytest.raises(ConfigError, match="<!-- NAME"):
        rewritten("no markers", {"table": []})


def test_a_whole_block_writes_readme_and_the_conclusions_of_the_page():
    made, said = _made({}, [block("a")], []), parts([block("a")])
    for name in ("table", "which"):
        assert "\n".join(said[name]) in made[README]
    assert "\n".join(said["advice"]) in made[PAGE]
    assert README not in _made({}, [block("d")], [])


def test_which_method_is_two_sentences_and_four_rows():
    """The heads of the page's advice decide what the table says."""
    sentences, _, _, _, *rows = parts([block("a")])["which"]
    assert len(re.findall(r"\. |\.$", sentences)) == 2
    assert sentences.startswith(f"{NOBODY}. ")
    assert [row.split(" | ")[1] for row in rows][0::3] == ["`fedavg-ft`", "`local`"]
    assert len(rows) == 4
    assert "of 7 tests in what a client holds, none finds" in rows[0]
    assert "−10.0 (a) points" in rows[3], ".8 beside .9"
    ahead = parts([block("a", fedpse=0.99)])["which"]
    assert ahead[0].startswith("Try FedPSE (a) where data are like these. ")
    assert "1 finds a method ahead" in ahead[4]


@pytest.mark.parametrize(
    ("level", "take", "measured"),
    [
        (0.89, '`fedavg-ft` with `compress.name = "stc"`', "sends 3 % of the bytes and loses 1 points"),
        (0.7, "measure first", "sending less costs accuracy somewhere"),
    ],
)
def test_few_bytes_are_advised_where_they_cost_little(level, take, measured):
    row = parts([block("a", **{"fedavg-ft-stc": level})])["which"][6]
    assert row.startswith(f"| bytes bind | {take} | ")
    assert measured in row


def test_a_row_for_each_paper_and_no_more_than_a_page_of_readme():
    text = README.read_text()
    assert len(text.splitlines()) <= 170
    part = text.partition("<!-- table")[2].partition("<!-- /table")[0]
    assert re.findall(r"^\| `(\w+)`", part, re.M) == list(PAPERS)


def test_everybody_in_the_advice_has_a_name():
    assert {*read_block("a").tested, "fedavg-ft"} <= NAMES.keys()
