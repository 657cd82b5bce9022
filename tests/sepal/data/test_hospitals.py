"""The guide of docs/splits.md on records of four hospitals, on generated files in the layout of UCI's Heart Disease."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from sepal.data.federation import DealtData
from sepal.strategies.assembly import assemble

GUIDE = Path(__file__).parents[3] / "docs" / "splits.md"
RECORDS = {"cleveland": 40, "hungarian": 30, "switzerland": 12, "va": 20}  # that are complete; two more of each are not


def record(rng, last):
    """One line: 13 columns, numbers as ``63`` or ``63.0``, and the diagnosis, 0 to 4."""
    codes = [rng.integers(30, 78), rng.integers(2), rng.integers(1, 5), rng.integers(90, 180), rng.integers(120, 400)]
    codes += [rng.integers(2), rng.integers(3), rng.integers(70, 200), rng.integers(2), round(rng.uniform(0, 4), 1)]
    return ",".join([*map(str, codes), "?", "?", "?", str(last)])


def test_the_guide_makes_a_table_of_which_each_hospital_is_a_client(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for hospital, count in RECORDS.items():
        lines = [record(rng, n % 5) for n in range(count)]
        lines += [line.replace(line.split(",")[3], "?", 1) for line in (record(rng, 1), record(rng, 0))]
        (tmp_path / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.+?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[1], {})
    command = next(line for line in GUIDE.read_text(encoding="utf-8").splitlines() if "data-dir=heart.csv" in line)
    flat = dict(part.split("=") for part in re.findall(r"--set (\S+)", command))
    flat |= {"split.test-fraction": float(flat["split.test-fraction"]), "dataset": "folder", "method": "fedavg"}
    assembly = assemble(flat)
    assert assembly.names == tuple(RECORDS)
    assert isinstance(assembly.data, DealtData)
    assert assembly.info.class_names == ("no", "yes")
    assert assembly.info.input_shape == (8 + 4 + 3,), "eight numbers, four kinds of pain and three of the ECG"
    for number, count in enumerate(RECORDS.values()):
        data = assembly.data.client(number, 4, "")
        assert len(data.test) == round(0.34 * count)
        assert sum(map(len, (data.train, data.validation, data.test))) == count
        assert abs(data.train.x[:, 0].mean()) < 1e-6
    two_each = assemble({**flat, "partition.name": "domain", "clients": 8})
    assert two_each.data.domains(8) == (0, 1, 2, 3, 0, 1, 2, 3)
    assert len(two_each.data.client(2, 8, "").train) <= 6
