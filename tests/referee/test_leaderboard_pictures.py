"""The pictures of the leaderboard: which figures they have, by hand, and that a method looks the same everywhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from referee.leaderboard import density, forest, overview
from referee.leaderboard.blocks import NAMES, TUNING, read_block
from referee.leaderboard.design import Design
from referee.leaderboard.measures import BlockResults
from referee.leaderboard.pages import PAGE, counted, measured, pictures
from referee.leaderboard.styles import BASELINES, GREY, PAPERS, SAME, STYLES
from tests.referee.test_leaderboard_findings import block, changed, holding


def test_a_method_has_one_look_and_no_other_has_it():
    assert {name for name in STYLES if name in SAME} == {
        name for name in STYLES if STYLES[name] is STYLES.get(SAME.get(name))
    }
    alone = {name: look[1:] for name, look in STYLES.items() if name not in SAME}
    assert len(set(alone.values())) == len(alone)
    assert GREY not in {look.colour for look in PAPERS.values()}
    assert {look.colour for look in BASELINES.values()} == {GREY}
    assert {contender.name for name in NAMES for contender in read_block(name).contenders} <= STYLES.keys()


@pytest.fixture(scope="module")
def two():
    """Blocks a and b; FedAvg's clients hold .6, and it deploys .5; who trains in each round of b has .85 alone."""
    return [block("a"), block("b", **{"local-each-round": 0.85, "dmpfl": 0.88})]


def test_the_front_page_compares_deployed_models_over_blocks(two):
    spots = {spot.key: spot for spot in overview.spots(two)}
    assert set(spots) == {*overview.SHOWN, "local"}
    # .9 and the .0204 of the second client that FedAvg's deployed model has not: .5 is 40.7 points behind
    behind = -100 * (0.4 + 0.0204 / 3)
    assert (spots["fedavg"].mean, spots["fedavg"].off) == (pytest.approx(behind, abs=0.1), True)
    assert (spots["dmpfl"].low, spots["dmpfl"].high) == (pytest.approx(-30), pytest.approx(-2))
    assert spots["dmpfl"].mean == pytest.approx(-16)
    assert (spots["local"].low, spots["local"].high, spots["local"].megabytes) == (
        pytest.approx(-10),
        pytest.approx(-5),
        0.0,
    )
    sent = [results.megabytes(results.named("fedavg-ft-stc")) for results in two]
    assert spots["fedavg-ft-stc"].megabytes == pytest.approx((sent[0] * sent[1]) ** 0.5)
    assert overview.spots([]) == []


def test_at_most_eight_points_have_a_name():
    assert len(overview.SHOWN) <= 8


def test_the_results_picture_has_the_held_difference_of_each_method_and_block(two):
    cells = {(cell["block"], cell["key"]): cell for cell in forest.cells(two)}
    assert ("a", "fedavg-ft") not in cells  # the zero line
    assert cells["a", "fedavg"]["mean"] == pytest.approx(-30)  # after local epochs: .6, not the deployed .5
    assert (cells["b", "dmpfl"]["mean"], cells["b", "dmpfl"]["off"]) == (pytest.approx(-2), False)
    assert (cells["a", "local"]["mean"], cells["b", "local"]["mean"]) == (pytest.approx(-10), pytest.approx(-5))
    assert cells["a", "local"]["off"]
    assert not any(cell["fell"] for cell in cells.values())
    assert (forest.shares(two, "fedavg-ft-stc"), forest.shares(two[:1], "local")) == ("3 %", "0 %")


def test_a_seed_that_collapsed_is_marked():
    fallen = changed(lambda *run: run == ("dmpfl", "rounds", 4), holding(0.1))
    assert {cell["key"] for cell in forest.cells([fallen]) if cell["fell"]} == {"dmpfl"}
    assert {spot.key for spot in overview.spots([fallen]) if spot.collapsed} == {"dmpfl"}


def test_density_is_from_trials_of_the_same_seeds_as_the_yardsticks(two):
    block_results = two[0]
    # all trials of a contender have its level: .9 of fine-tuning, .895 of FedPSE
    assert density.behind(block_results, block_results.named("fedpse"), 0.1) == (pytest.approx(-0.5), 3)
    assert density.behind(block_results, block_results.named("fedpse"), 0.9) is None
    rows = list(block_results.design.rows.values())
    better = next(
        run_record
        for run_record in rows
        if run_record.labels["contender"] == "subfedavg"
        and run_record.seed == TUNING[0]
        and run_record.config["subfedavg.target"] == 0.7
    )
    worse = better.model_copy(update={"validation": {"trained": 0.59}})
    worse_results = BlockResults(
        Design(read_block("a"), [worse if run_record is better else run_record for run_record in rows])
    )
    assert density.behind(worse_results, worse_results.named("subfedavg"), 0.7) == (pytest.approx(-31), 1)
    shown = {(row["key"], round(row["density"])): row for row in density.points([worse_results])}
    assert (shown["subfedavg", 30]["mean"], shown["subfedavg", 30]["published"]) == (pytest.approx(-31), False)
    assert shown["subfedavg", 50]["published"]


def test_density_is_of_one_variant_of_a_method(two):
    """The authors' code was tried at one value alone: that value would be ahead by its variant."""
    rows = list(two[0].design.rows.values())
    better = [
        run_record.model_copy(update={"validation": {"kept": 0.99, "trained": 0.99}})
        if run_record.config.get("pfedgate.gating") == "batch"
        else run_record
        for run_record in rows
    ]
    assert better != rows
    results = BlockResults(Design(read_block("a"), better))
    values = density.tried(results, results.named("pfedgate"), TUNING)
    assert values
    assert max(values.values()) < 0.95


def test_what_has_the_papers_value_in_its_reported_runs_is_not_read_from_trials():
    block_results = block("d")
    # the trials chose .1 of FedPSE; fedpse-1 has .01 with a rate that was chosen for .1; pfedgate-third is for .3
    assert density.published(block_results, "fedpse", 0.1).name == "fedpse"
    assert density.published(block_results, "fedpse", 0.01) is None
    assert density.published(block_results, "pfedgate", 0.3).name == "pfedgate-third"
    assert density.published(block_results, "pfedgate", 0.2) is None


def test_the_stored_pictures_say_what_the_rows_say():
    blocks, _ = measured(counted(PAGE.read_text()))
    drawings = pictures(blocks)
    assert len(drawings) == 4
    for path, text in drawings.items():
        stored = path.read_text()
        ElementTree.fromstring(stored)
        assert "prefers-color-scheme: dark" in stored
        # where names are drawn depends on fonts; what is said of each mark has its figures
        labels = [re.findall(r'aria-label="([^"]+)"', drawing) for drawing in (stored, text)]
        assert labels[0] == labels[1], "run `python -m referee.leaderboard --pages`"
