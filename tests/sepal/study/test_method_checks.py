"""Each check fails for a method that breaks its rule, and ``sepal check-method`` says which."""

import re
import sys

import pytest
from typer.testing import CliRunner

from sepal import user_modules
from sepal.cli.main import app
from sepal.study.method_checks import CHECKS, Case, CheckError, checks

METHODS = """
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from pydantic import Field

from sepal.config import Settings
from sepal.method import Payload, dense
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient, FedAvgServer, ServerState
from sepal.strategies.registration import register
from sepal.wire.tensors import ValueCoding

CALLS = count()


def method(name, server=FedAvgServer, client=FedAvgClient, **rest):
    return register(name, "a bent FedAvg", "a test", server, client, **rest)


class Undescribed(Settings):
    a: float = 0.5


class Blind(FedAvgClient):
    def predictor(self, state, download, plan):
        return None


@dataclass(frozen=True)
class Odd:
    model: Any = field(default_factory=dict)
    names: Any = frozenset({"a"})


class OddClient(FedAvgClient):
    def init(self) -> Odd:
        return Odd()

    def adapt(self, state, download, plan):
        return Odd(super().adapt(state, download, plan).model)


class Restless(FedAvgClient):
    def adapt(self, state, download, plan):
        after = super().adapt(state, download, plan)
        return ClientState({name: array + 1e-3 * next(CALLS) for name, array in after.model.items()})


class OddServer(FedAvgServer):
    def init(self) -> Odd:
        return Odd(super().init().weights)

    def aggregate(self, state, uploads, plan):
        after, metrics = super().aggregate(ServerState(state.model), uploads, plan)
        return Odd(after.weights), metrics

    def model(self, state):
        return state.model

    def reference(self, state, client, plan, download):
        return state.model


class Remembering(FedAvgServer):
    rounds = 0

    def update(self, state, mean):
        self.rounds += 1
        return ServerState({name: array * np.float32(1 - 0.01 * self.rounds) for name, array in mean.items()})


class Dividing(FedAvgServer):
    def aggregate(self, state, uploads, plan):
        after, _ = super().aggregate(state, uploads, plan)
        return after, {"examples": sum(upload.client.examples for upload in uploads) / len(uploads)}


class Forgetting(FedAvgServer):
    def aggregate(self, state, uploads, plan):
        sums = {name: np.zeros_like(array) for name, array in state.weights.items()}
        for upload in uploads:
            for name, tensor in upload.payload.tensors.items():
                sums[name] += tensor.values.reshape(sums[name].shape) / len(uploads)
        with np.errstate(all="ignore"):
            return ServerState(sums if len(uploads) else {name: array / 0 for name, array in sums.items()}), {}


class Large(FedAvgClient):
    def upload(self, state, plan):
        return Payload(dense(self.personal_weights(state), self.shared(), ValueCoding.FP32))

    def train(self, state, download, plan):
        after = self.adapt(state, download, plan)
        return after, self.upload(after, plan)


class Writing(FedAvgClient):
    def adapt(self, state, download, plan):
        start = self.received_weights(state, download, plan)
        for array in start.values():
            torch.from_numpy(array).mul_(0.9)  # NumPy itself would stop it
        return ClientState(self.fit(start, plan))


class WritingServer(FedAvgServer):
    def init(self) -> ServerState:
        return ServerState({name: array.copy() for name, array in super().init().weights.items()})

    def update(self, state, mean):
        for name, array in mean.items():
            state.weights[name][...] = array
        return state


class Adding(FedAvgClient):
    def adapt(self, state, download, plan):
        after = super().adapt(state, download, plan).model
        for name, array in after.items():
            if state.model:
                array = np.add(array, state.model[name], out=state.model[name])
        return ClientState(after)


class Idle(FedAvgClient):
    def adapt(self, state, download, plan):
        return ClientState(self.received_weights(state, download, plan))


class Good(FedAvgClient):
    pass


class Described(Settings):
    a: float = Field(0.5, description="a number")


class Raising(FedAvgClient):
    def adapt(self, state, download, plan):
        raise ValueError("no such layer")


Raises = method("raises", client=Raising)
Bare = method("bare", hyper=Undescribed)
Unseen = method("unseen", client=Blind)
Oddstate = method("oddstate", client=OddClient)
Impure = method("impure", client=Restless)
Oddserver = method("oddserver", server=OddServer)
Hidden = method("hidden", server=Remembering)
Divides = method("divides", server=Dividing)
Forgets = method("forgets", server=Forgetting)
Full = method("full", client=Large)
Writes = method("writes", client=Writing)
Serverwrites = method("serverwrites", server=WritingServer)
Adds = method("adds", client=Adding)
Idles = method("idles", client=Idle)
Fine = method("fine", client=Good, hyper=Described)
"""


@pytest.fixture(autouse=True)
def bent(tmp_path, monkeypatch):
    (tmp_path / "bent_methods.py").write_text(METHODS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "bent_methods", raising=False)
    user_modules.enable(tmp_path)


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("Bare", checks.keys_are_described, "a: expected a description, got none"),
        ("Unseen", checks.evaluated_at_the_end, "received: expected a model to evaluate"),
        ("Oddstate", checks.uploads_follow_the_schema, ""),
        ("Impure", checks.training_is_pure, "train: expected the same bits from the same state"),
        ("Idles", checks.training_is_pure, "train: expected other bits with another lr"),
        ("Writes", checks.handed_in_stays, "the run's first weights: expected to write into no array"),
        ("Serverwrites", checks.handed_in_stays, "the server's first state: expected to write into no array"),
        ("Adds", checks.handed_in_stays, "the client's last state: expected to write into no array"),
        ("Impure", checks.novel_clients_are_apart, "the state that newcomer and adapt give from init"),
        ("Oddserver", checks.state_survives_the_disk, ""),
        ("Hidden", checks.resumes_after_a_kill, "killed in round 3 and started again: expected the server's state"),
        ("Divides", checks.a_round_may_have_no_uploads, "aggregate: expected a state also from a round whose uploads"),
        ("Forgets", checks.a_round_may_have_no_uploads, "aggregate: expected a state from which a model can be made"),
        ("Full", checks.smaller_values_make_fewer_bytes, "bytes up with values = fp16: expected at most"),
        ("Full", checks.smaller_values_make_a_smaller_first_upload, "upload with values = fp16: expected at most"),
    ],
)
def test_a_method_that_breaks_a_rule_fails_its_check(name, check, words):
    assert check in {listed_check.check for listed_check in CHECKS}
    with pytest.raises(CheckError if words else Exception, match=words or None):
        check(Case(name, {"method": f"bent_methods:{name}"}))


def test_a_ledger_that_miscounts_fails_its_check(monkeypatch):
    """The bytes are the engine's to count: a payload that is sealed with one byte more is seen."""
    case = Case("Fine", {"method": "bent_methods:Fine"})
    case.finished()
    seal = checks.seal
    monkeypatch.setattr(checks, "seal", lambda payload: type(seal(payload))(seal(payload).data + b"0"))
    with pytest.raises(CheckError, match="bytes again, as in the run"):
        checks.ledger_counts_bytes(case)


def test_the_command_prints_a_line_for_each_check_and_fails_if_one_does():
    good = CliRunner().invoke(app, ["check-method", "bent_methods:Fine", "--set", "fine.a=0.25"])
    assert good.stdout.splitlines() == [f"ok   {check.words}" for check in CHECKS]
    assert good.exit_code == 0
    bad = CliRunner().invoke(app, ["check-method", "bent_methods:Bare"])
    *lines, check, reason = bad.stdout.splitlines()
    assert lines == [f"ok   {check.words}" for check in CHECKS[1:]]
    assert (check, reason) == (f"BAD  {CHECKS[0].words}", "     a: expected a description, got none")
    assert bad.exit_code == 1
    none = CliRunner().invoke(app, ["check-method", "bent_methods:Nobody"])
    assert none.exit_code == 2
    assert len(none.stderr.splitlines()) == 1


def test_a_reason_that_several_checks_have_is_said_once_with_all_of_them():
    """A client that cannot train fails alone and in rounds, where the line counts clients and names them."""
    result = CliRunner().invoke(app, ["check-method", "bent_methods:Raises"])
    assert result.exit_code == 1
    (reason,) = [line for line in result.stdout.splitlines() if line.startswith("     ")]
    assert re.fullmatch(r"     ValueError: no such layer \(bent_methods.py:\d+ in adapt\)", reason)
    concerned = [line[5:] for line in result.stdout.splitlines() if line.startswith("BAD")]
    passed = [line[5:] for line in result.stdout.splitlines() if line.startswith("ok")]
    assert passed == [CHECKS[0].words]
    assert concerned == [check.words for check in CHECKS[1:]]
