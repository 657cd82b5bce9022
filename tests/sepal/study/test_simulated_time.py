"""Simulated hours of stored runs, by hand: 2 rounds and the closing one, three clients (``runs_for_tests``)."""

from __future__ import annotations

import json
import math

import pytest

from sepal.errors import ConfigError, StateError
from sepal.report.simulated import simulated_words
from sepal.simulated_time import parse_profile, read_profile
from sepal.study.break_even import break_even
from sepal.study.comparison import read_comparison
from sepal.study.results import read_result
from sepal.study.simulated_hours import hour_rows
from tests.sepal.cli.runs_for_tests import DOWN, UP, write_run

# A client trains 1000 multiply-adds, downloads 50 bytes and uploads 100.
DEVICES = """
name = "three"
round-trip = 0.5
speed.median = 1000
down.median = 1000
up.median = 1000
[clients.client-00000]
speed = 2000
down = 4000
up = 8000
[clients.client-00001]
speed = 1000
down = 1000
up = 1000
[clients.client-00002]
step-seconds = 1.25
down = 8000
up = 8000
"""
TRAINED = {  # download, training of a round: 8 · 50/bits + .5 + work; then the upload, 8 · 100/bits + .5
    "client-00000": 0.1 + 0.5 + 0.5,
    "client-00001": 0.4 + 0.5 + 1.0,
    "client-00002": 0.05 + 0.5 + 1.25,
}
ROUND = max(TRAINED["client-00001"] + 0.8 + 0.5, TRAINED["client-00002"] + 0.1 + 0.5)  # 3.2: the second client


@pytest.fixture
def devices(tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(DEVICES)
    return str(path)


def rewritten(path, name, change):
    rows = [json.loads(line) for line in (path / name).read_text().splitlines()]
    (path / name).write_text("".join(f"{json.dumps(change(row))}\n" for row in rows))


def test_the_hours_of_a_run_by_hand(tmp_path):
    """A round takes the 3.2 s of its slowest client; received models a download more, trained ones its training too."""
    result = read_result(write_run(tmp_path / "a"))
    clock = result.times.clock(parse_profile(DEVICES, "devices"))
    assert (UP, DOWN) == (100, 50)
    assert clock.ends == pytest.approx({0: 0.0, 1: ROUND, 2: 2 * ROUND})
    assert clock.at("kept", 2) == pytest.approx(2 * ROUND)
    assert clock.at("received", 2) == pytest.approx(2 * ROUND + 0.4 + 0.5)
    assert clock.at("trained", 2) == clock.at("pooled", 2) == pytest.approx(2 * ROUND + max(TRAINED.values()))
    assert clock.at("trained", 0) == pytest.approx(max(TRAINED.values())), "before the first round ends"


def test_evaluation_refusals_and_undone_messages_take_no_time(tmp_path):
    path = write_run(tmp_path / "a")
    slow = "client-00001"

    def change(row):
        if row["client"] != slow or row["round"] != 1:
            return row
        return {**row, "purpose": "evaluation"} if row["direction"] == "down" else {**row, "status": "undone"}

    rewritten(path, "ledger.jsonl", change)
    clock = read_result(path).times.clock(parse_profile(DEVICES, "devices"))
    assert clock.ends[1] == pytest.approx(TRAINED["client-00002"] + 0.1 + 0.5)
    assert read_result(path).times.undone == 1


def test_a_secure_sum_waits_in_each_of_its_steps(tmp_path):
    """Keys with the training: 3.2 s of the second client. A share of 100 bytes down and 50 up: 1 + .8 + .4 s of it."""
    path = write_run(tmp_path / "a")
    rows = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    keys = [{**row, "step": "keys" if row["direction"] == "up" else ""} for row in rows]
    share = [{**row, "step": "share", "payload": 150 - row["payload"]} for row in rows if row["round"] == 1]
    (path / "ledger.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in keys + share))
    clock = read_result(path).times.clock(parse_profile(DEVICES, "devices"))
    assert clock.ends == pytest.approx({0: 0.0, 1: ROUND + 1 + 0.8 + 0.4, 2: 2 * ROUND + 2.2})
    assert clock.at("received", 2) == pytest.approx(clock.ends[2] + 0.9)


def test_the_hours_of_a_variant_are_over_seeds_and_draws(tmp_path):
    runs = [str(write_run(tmp_path / f"seed{seed}", seed=seed, full=[0.2, 0.65])) for seed in (0, 1)]
    (variant,) = read_comparison(runs, devices="phones").all_variants()
    hours = variant.hours
    assert hours.count == 2
    assert hours.spread > 0
    both = [read_comparison([run], devices="phones").variants("")[0].hours.mean for run in runs]
    assert hours.mean == pytest.approx(sum(both) / 2)
    assert both[0] != both[1], "the same names with another seed are other clients"
    assert variant.hours_to.mean < hours.mean, "the target is reached in round 2, before it ends"
    assert variant.hours_to.count == 2


def test_a_run_has_the_hours_of_its_own_profile_and_other_runs_none(tmp_path, devices):
    path = write_run(tmp_path / "a")
    assert read_comparison([str(path)]).variants("")[0].hours is None
    (path / "devices.toml").write_text(DEVICES)
    own = read_comparison([str(path)]).variants("")[0]
    assert own.hours.mean == pytest.approx((2 * ROUND + 0.9) / 3600), "fedavg's clients deploy what they receive"
    assert own.hours.spread is None, "nothing is drawn"
    assert read_comparison([str(path)], devices="hospitals").variants("")[0].hours.mean < own.hours.mean
    (path / "devices.toml").write_text("speed = 1")
    with pytest.raises(StateError, match=r"devices\.toml: needed a profile of devices, but"):
        read_comparison([str(path)]).variants("")[0].hours  # noqa: B018
    with pytest.raises(ConfigError, match="devices: expected a file, or hospitals"):
        read_comparison([str(path)], devices="none")


def test_clients_that_report_no_work_have_no_hours(tmp_path, devices):
    path = write_run(tmp_path / "a")

    def change(line):
        return {**line, "clients": [{**client, "metrics": {}} for client in line["clients"]]}

    rewritten(path, "metrics.jsonl", change)
    (variant,) = read_comparison([str(path)], devices=devices).all_variants()
    words = "2 of its 3 clients report no multiply-adds, of which its devices make seconds"
    assert (variant.hours, variant.why_no_hours) == (None, words), "the third's device is known by its steps"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("figure", ["multiply-adds", "steps", "examples", "payload", "dense", "seconds"])
def test_figures_that_no_run_writes_are_refused_by_name(figure, value, tmp_path, devices):
    path = write_run(tmp_path / "planted")

    def change(row):
        if figure in ("payload", "dense"):
            return {**row, figure: value}
        if figure == "seconds":
            return {**row, "simulated": {"seconds": value, "late": []}}
        for client in row["clients"]:
            if figure == "examples":
                client["examples"] = value
            else:
                client["metrics"][figure] = value
        return row

    rewritten(path, "ledger.jsonl" if figure in ("payload", "dense") else "metrics.jsonl", change)
    with pytest.raises(ValueError, match=f"^{figure} "):
        list(simulated_words(list(read_comparison([str(path)], devices=devices).all_variants())))


def test_a_void_round_is_in_no_share_of_the_examples(tmp_path):
    path = write_run(tmp_path / "a")
    both = read_result(path).times.examples
    rewritten(path, "metrics.jsonl", lambda line: {**line, **({"void": "too few"} if line["round"] == 2 else {})})
    assert read_result(path).times.examples == {client: examples / 2 for client, examples in both.items()}


@pytest.mark.parametrize(("figure", "why"), [("steps", "1 of its 3 clients report no steps"), ("multiply-adds", "")])
def test_a_client_has_to_report_what_its_own_device_needs(figure, why, tmp_path, devices):
    path, lacking = write_run(tmp_path / "a"), "client-00002"

    def change(line):
        for client in line["clients"]:
            if client["name"] == lacking:
                del client["metrics"][figure]
        return line

    rewritten(path, "metrics.jsonl", change)
    (variant,) = read_comparison([str(path)], devices=devices).all_variants()
    assert variant.why_no_hours.startswith(why)
    assert (variant.hours is None) == bool(why) == bool(variant.why_no_hours)


def test_all_runs_beside_one_that_depended_on_its_devices_are_judged_by_the_same(tmp_path):
    acting, other = write_run(tmp_path / "acting"), write_run(tmp_path / "other", method="local", kept=True)
    (acting / "devices.toml").write_text(read_profile("phones").text())
    rewritten(acting, "metrics.jsonl", lambda line: {**line, "simulated": {"seconds": 1.0, "late": []}})
    both = read_comparison([str(acting), str(other)], devices="phones")
    alone = read_comparison([str(other)], devices="phones")
    assert [variant.hours.spread for variant in both.all_variants()] == [None, None]
    assert alone.variants("")[0].hours.spread > 0
    assert "one draw of the devices, that by which" in next(simulated_words(both.variants("")))
    assert len({row[3] for variant in both.all_variants() for row in hour_rows(variant)}) == 1


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_the_links_at_which_two_variants_break_even(factor, tmp_path):
    """The closing evaluation of trained models reaches the target. With b bits/s, one variant takes two rounds and a
    delivery, 2 · 8 · 150/b + 8 · 50/b + 3 · 1000/10⁶ s, and one without work and with twice the bytes 2 · 2800/b: they
    are equal where 2800/b = 3000/10⁶.
    """
    bits = 1e6 * factor
    (tmp_path / "p.toml").write_text(f"name = 'p'\nspeed.median = 1e6\ndown.median = {bits}\nup.median = {bits}\n")
    small, large = write_run(tmp_path / "small"), write_run(tmp_path / "large", method="local", volume=2)

    def change(line):
        return {**line, "clients": [{**c, "metrics": {"multiply-adds": 0.0}} for c in line["clients"]]}

    rewritten(large, "metrics.jsonl", change)
    first, second = read_comparison([str(small), str(large)], devices=str(tmp_path / "p.toml")).variants("")
    place = break_even(first, second)
    assert place.links == pytest.approx(2800e6 / 3000 / bits, rel=1e-3)
    assert (place.slower_links.label, place.to_target) == (first.label, True)
    assert break_even(first, first) is None
