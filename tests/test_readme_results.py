"""README's picture, table and advice are those of the stored rows."""

from __future__ import annotations

import json
import re
from statistics import mean, stdev

import pytest

from experiments import readme
from experiments.parts import DOCS, rewritten
from experiments.readme import ROWS, compared, read, written
from sepal.errors import ConfigError
from sepal.strategies import registry


def test_the_files_are_those_that_the_command_writes():
    """If this fails: python -m experiments.readme."""
    assert [file.name for file, text in written() if file.read_text() != text] == []


@pytest.mark.parametrize("picture", ["accuracy-light.svg", "accuracy-dark.svg"])
def test_every_point_of_the_picture_is_that_of_the_rows(picture):
    """Computed here from the rows: deployed accuracy over three seeds, and MB per client."""
    rows = [row for row in map(json.loads, ROWS.read_text().splitlines()) if row["block"] == "har"]
    expected = []
    for method in {row["variant"] for row in rows} - {"local", "pfedgate"}:
        runs = [row for row in rows if row["variant"] == method]
        assert len(runs) == 3
        accuracy = [100 * run["accuracy"][registry.deployed(method)]["mean"] for run in runs]
        sent = mean((run["megabytes"]["up"] + run["megabytes"]["down"]) / 30 for run in runs)
        expected.append(f"{readme.NAMES[method]}: {mean(accuracy):.2f} ± {stdev(accuracy):.2f} %, {sent:.3f} MB")
    assert sorted(re.findall(r"<circle.*?<title>(.*?)</title>", (DOCS / picture).read_text())) == sorted(expected)


def test_a_lead_is_one_only_where_an_interval_over_seeds_excludes_none():
    """t is 4.30 for three seeds: gaps of 1, 2 and 3 are 2 ± 2.5, and of 1.9, 2 and 2.1 are 2 ± .2."""
    other = {0: 90.0, 1: 91.0, 2: 92.0}
    noisy, clear = {0: 91.0, 1: 93.0, 2: 95.0}, {0: 91.9, 1: 93.0, 2: 94.1}
    assert compared(noisy, other, "FedAvg") == "within the noise of FedAvg (+2.0 ± 2.5)"
    assert compared(clear, other, "FedAvg") == "2.0 ± 0.2 points ahead of FedAvg"
    assert compared(other, clear, "FedAvg") == "2.0 ± 0.2 points behind FedAvg"


def test_a_row_that_changes_changes_the_table(tmp_path):
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    for row in rows:
        row["accuracy"]["kept"]["mean"] /= 2
    (tmp_path / "rows.ndjson").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert list(readme.table(read(tmp_path / "rows.ndjson"))) != list(readme.table(read()))
    (tmp_path / "rows.ndjson").write_text("")
    with pytest.raises(ConfigError, match="runs of the block har"):
        read(tmp_path / "rows.ndjson")
    with pytest.raises(ConfigError, match="<!-- NAME"):
        rewritten("no markers", {"table": []})
