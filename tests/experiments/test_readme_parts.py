"""README's table and advice are those of the leaderboard's rows, and say what these do."""

from __future__ import annotations

import re
from functools import cache

import pytest

from experiments.leaderboard.blocks import read_block
from experiments.leaderboard.design import Design
from experiments.leaderboard.measures import Measures
from experiments.leaderboard.pages import PAGE, _made
from experiments.leaderboard.readme import NAMES, PAPERS, parts
from experiments.parts import README, rewritten
from sepal.errors import ConfigError

HELD = {"fedavg-ft": 0.9, "fedpse": 0.895, "fedavg-ft-stc": 0.7, "local": 0.8}  # others .6
EACH = {
    "fedpse": 0.2,
    "fedpse-10": 0.2,
    "fedpse-1": 0.02,
    "fedpse-3": 0.05,
    "fedavg-ft-stc": 0.03,
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
    columns["received-shift-100"] = [0.95 if run.contender == "fedavg" else 0.5] * 3
    about = {"block": run.block, "contender": run.contender, "kind": run.kind, "config": run.config, "closing": 0.0}
    about |= {
        "validation": {"trained": level},
        "spent": [EACH.get(run.contender, 1.0) * 2 * (n + 1) for n in range(rounds)],
    }
    return {**about, "clients": columns, "deployed": "trained", "cpu_seconds": 1.0, "commit": "abc", "machine": "M"}


def test_the_table_has_what_clients_hold_and_the_mb_of_each():
    lines = parts([block("a")])["table"]
    # .2 MB × 2 × 40 rounds of three clients: 5.33 each. (.895 + .915 + .895)/3, with seed 0 .3 points more: 90.2 ± .1.
    assert "[90.2 ± 0.1 %, 5.3 MB](docs/results/fedpse.md); `fedpse.keep` = 0.1 |" in "\n".join(lines)
    assert "Local 80.7 ± 0.1 %, 0 MB" in lines[-1]
    assert re.findall(r"^\| `(\w+)`", "\n".join(lines), re.M) == list(PAPERS)


def test_the_advice_counts_leads_and_says_who_needs_the_fewest_bytes():
    first, second, third = parts([block("a"), block("d", fedpse=0.99)])["advice"]
    # Seven differences in each block: FedPSE is .5 behind in a, and 9 ahead in d; all others are behind.
    assert "Of 14 differences to it" in first
    assert "13 are deficits, and leads are: FedPSE (d)." in first
    assert "collapsed" not in first
    assert "in points: −10.0 [−10.0, −10.0] (a), −10.0 [−10.0, −10.0] (d)." in first
    # .95 of FedAvg's to .9, .92 (.93) and .9: +4.3 on average
    assert "+4.3 [" in second
    assert "fedpse 20.0 % (a)" in third
    assert "FedPSE: 20.0 % (a)" in third


def test_a_seed_that_collapsed_is_told_and_counts():
    rows = [dict(each) for each in block("a").design.rows.values()]
    for each in rows:
        if (each["contender"], each["kind"], each["config"]["seed"]) == ("dmpfl", "rounds", 4):
            each["clients"] = {**each["clients"], "trained": [0.1, 0.12, 0.1]}
    found = parts([Measures(Design(read_block("a"), rows))])
    # Means of the seeds: .61, three of .6067, and .1067. Their mean is .5073; of the first four it is .6075.
    words = r"\[50\.7 ± 22\.4 % \(1 of 5 seeds collapsed: 10\.7; others 60\.[78] ± 0\.2\), 27 MB\]"
    assert re.search(words, "\n".join(found["table"]))
    assert "Open, because a seed collapsed: DM-PFL (a)." in found["advice"][0]


def test_without_the_block_of_the_table_nothing_is_made():
    assert parts([]) == parts([block("d")]) == {}
    with pytest.raises(ConfigError, match="<!-- NAME"):
        rewritten("no markers", {"table": []})


def test_a_whole_block_writes_readme_and_the_conclusions_of_the_page():
    made, said = _made({}, [block("a")], []), parts([block("a")])
    for lines in said.values():
        assert "\n".join(lines) in made[README]
    assert "\n".join(said["advice"]) in made[PAGE]
    assert README not in _made({}, [block("d")], [])


def test_a_row_for_each_paper_and_no_more_than_a_page_of_readme():
    text = README.read_text()
    assert len(text.splitlines()) <= 170
    part = text.partition("<!-- table")[2].partition("<!-- /table")[0]
    assert re.findall(r"^\| `(\w+)`", part, re.M) == list(PAPERS)


def test_everybody_in_the_advice_has_a_name():
    assert {*read_block("a").tested, "fedavg-ft"} <= NAMES.keys()
