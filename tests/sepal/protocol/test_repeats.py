"""A warning is told once, with a count, whoever says it: the server in each round, or the clients in each process."""

import ast
import logging
import sys
from pathlib import Path

import pytest

import sepal
from sepal import user_modules
from sepal.data.own import say_tokens
from sepal.operation.repeats import Seldom, told_once
from sepal.study.run import execute, prepare

log = logging.getLogger("sepal")
KEYS = {"method": "fedavg", "dataset": "digits", "clients": 4, "rounds": 3, "partition.subsample": 100}
WARNING = """
import logging

from torch import nn


class Warns(nn.Linear):
    def forward(self, x):
        if self.training:
            logging.getLogger("sepal").warning("a model that warns of step %d", id(x))
        return super().forward(x.flatten(1))


def build(shape, classes):
    return Warns(64, classes)
"""
WHOLE = """
import numpy as np
from torch import nn


class Model(nn.Linear):
    def forward(self, x):
        return super().forward(x.float())


def load(client):
    x = np.random.default_rng(client).integers(0, 9, (60, 4))
    y = (x[:, 0] > 4).astype(int)
    return x[:40], y[:40], x[40:], y[40:]


def build(shape, classes):
    return Model(4, classes)
"""


def test_what_differs_in_numbers_is_one_line_and_a_count(caplog):
    with told_once():
        for round in (1, 2, 3):
            log.warning("round %d: no client could train", round)
        log.warning("another")
    log.warning("round 4: no client could train")
    first, again = "round 1: no client could train", "3 times: round 1: no client could train"
    assert caplog.messages == [first, "another", again, "round 4: no client could train"]


def test_a_collector_of_json_lines_gets_every_warning(caplog, monkeypatch):
    monkeypatch.setenv("SEPAL_LOG", "json")
    with told_once():
        log.warning("round 1")
        log.warning("round 2")
    assert caplog.messages == ["round 1", "round 2"]


def test_a_block_within_a_block_leaves_the_counts_to_it(caplog):
    with told_once():
        for trial in (1, 2):
            with told_once():
                log.warning("trial %d diverged", trial)
    assert caplog.messages == ["trial 1 diverged", "2 times: trial 1 diverged"]


def test_a_process_that_knows_no_end_tells_the_first_the_tenth_and_the_hundredth():
    messages, seldom = [], Seldom()
    for number in range(250):
        record = logging.LogRecord("sepal", logging.WARNING, "", 0, "step %d", (number,), None)
        messages += [record.getMessage()] if seldom.filter(record) else []
    assert messages == ["step 0", "10 times so far: step 9", "100 times so far: step 99"]
    others = [logging.LogRecord(*kind, "", 0, "x", (), None) for kind in 2 * [("sepal", 20), ("flwr", 30)]]
    assert all(map(seldom.filter, others)), "what is no warning of Sepal's is left alone"


def test_an_error_ends_the_block_and_its_counts_are_told(caplog):
    def failing():
        with told_once():
            log.warning("round 1")
            log.warning("round 2")
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert caplog.messages == ["round 1", "2 times: round 1"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_clients_warn_of_is_told_once_by_any_number_of_processes(workers, tmp_path, monkeypatch, caplog):
    (tmp_path / "warning_model.py").write_text(WARNING)
    monkeypatch.setattr(sys, "path", [*sys.path])
    user_modules.enable(tmp_path)
    execute(prepare({**KEYS, "model": "warning_model:build", "out": str(tmp_path), "name": "r"}, tmp_path), workers)
    lines = [line for line in caplog.messages if "a model that warns" in line]
    assert len(lines) == 2
    assert lines[1].endswith(f" times: {lines[0]}")


def test_what_own_data_are_warned_of_is_told_once_though_a_run_reads_them_in_several_places(
    tmp_path, monkeypatch, caplog
):
    """The clients in their processes, and afterwards this one, for the share of the most frequent label."""
    (tmp_path / "whole_numbers.py").write_text(WHOLE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    user_modules.enable(tmp_path)
    say_tokens.cache_clear()
    keys = {"dataset": "own", "own.data": "whole_numbers:load", "own.shape": "4", "own.classes": 2, "lr": 0.1}
    keys |= {"model": "whole_numbers:build", "clients": 4, "rounds": 1, "method": "fedavg", "name": "r"}
    execute(prepare({**keys, "out": str(tmp_path)}, tmp_path), 2)
    lines = [line for line in caplog.messages if "taken for tokens" in line]
    assert [line.partition(" times: ")[0] for line in lines[1:]] == ["3"]


def test_all_warnings_of_sepal_pass_the_filter():
    """A filter of a logger sees what is logged with that logger alone: no module has another one."""
    root, odd = Path(sepal.__file__).parent, []
    for file in _files(root):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("logging.getLogger", "getLogger"):
                name = ast.unparse(node.args[0]) if node.args else ""
                if name not in ("'sepal'", "'flwr'", "'absl'", "name"):  # absl: dp-accounting's, silenced
                    odd.append(f"{file.name}: {name}")
    assert not odd


def _files(root):
    folders = [root, *(path for path in root.iterdir() if path.is_symlink())]
    return [file for folder in folders for file in folder.resolve().rglob("*.py")]
