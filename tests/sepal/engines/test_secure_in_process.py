"""Secure sums in process: equal bits with any number of workers, and the plain model up to rounding."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import sepal
from sepal.client_app.host import COSTS
from sepal.client_app.secure_sums import NoVault, SecureSums
from sepal.engines.in_process import run_in_process
from sepal.engines.in_process.cache import StateCache, forget_secrets
from sepal.errors import ConfigError, RoundError, StateError
from sepal.masks.selection import count
from sepal.method import capabilities
from sepal.protocol.summed import sums_of
from sepal.runs.backup import _written_once
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.server.accuracy import summed_figures
from sepal.server.run_store import DiskRunStore
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import FedAvgServer, ServerState
from sepal.study.method_checks.cases import RoundLog
from sepal.study.runs import model_of

FLAT = {
    "dataset": "digits",
    "clients": 4,
    "rounds": 2,
    "evaluate-every": 0,
    "evaluate-sampled": False,
    "partition.subsample": 120,
    "seed": 3,
    "timeout": 20.0,
}
SUMMED = [name for name in registry.METHODS if registry.get(name).summed_phases]


def run(workers=1, **keys):
    log = RoundLog()
    assembly = assemble({**FLAT, **keys})
    return run_in_process(assembly, observers=[log], workers=workers), log


def model(strategy):
    return dict(strategy.algorithm.model(strategy.progress.server))


def test_the_methods_that_need_one_mean_are_these():
    with_a_mean = "fedavg fedavg-ft per-fedavg fedavgm fedadam fedyogi fedadagrad fedprox moon ditto apfl fedala fedrod"
    with_a_part = "fedper fedrep fedbabu lg-fedavg fedbn fedsa-lora pfedme fedem"
    assert set(SUMMED) == {*with_a_mean.split(), *with_a_part.split(), "local", "local-width", "spafl"}


def test_a_client_that_is_asked_again_under_another_range_does_not_tell_whether_it_was_beyond_the_first(monkeypatch):
    """Until a masked input has left, a server may ask for a round anew. No client is within either range."""
    commit, commitments = SecureSums.digest, list[str]()
    monkeypatch.setattr(SecureSums, "digest", lambda *what: commitments.append(commit(*what)) or commitments[-1])
    for reach in (1e-9, 1e-10):
        with pytest.raises(RoundError, match="changed an entry by more"):
            run(secure="sum", rounds=1, **{"secure-range": reach})
    assert len(commitments) == 2 * 4
    assert set(commitments[:4]).isdisjoint(commitments[4:])


@pytest.mark.parametrize(
    "lie", [[1, 0, 0, 0], [1, 0, -15, 0], [4, 2, 9, 0], [-1, 2, 9, 0], [2, 10, 9, 0], [2, 2, 9, 2**31 - 1]]
)
def test_figures_that_no_honest_clients_have_count_as_absent(lie):
    """Of three clients: two have the view on test data, 5 of 9 correct, accuracies that add to 1; L = ⌊(2³¹ - 1)/3⌋."""
    honest = [2, 5, 9, (2**31 - 1) // 3]
    sums = sums_of([*honest, *lie], ["received"], 3)
    assert summed_figures(sums, "received") == {"mean": 0.5, "weighted": 5 / 9, "clients": 2}
    assert summed_figures(sums, "received", "validation-") is None


FAST = ("fedadam", "fedper", "local")
KEYS = {"pfedme": {"pfedme.steps": 1}, "fedbn": {"model": "digits-cnn-bn"}}
# FedAdam and its kin divide by a root of second moments that start at 1e-6, so rounding shows most there.
MOST = {"fedadam": 1e-3, "fedyogi": 1e-3, "fedadagrad": 1e-3, "fedem": 1e-5}


@pytest.mark.parametrize(
    "method", [name if name in FAST else pytest.param(name, marks=pytest.mark.long) for name in SUMMED]
)
def test_a_methods_model_is_the_plain_one_up_to_rounding(method):
    secure, plain = (model(run(method=method, secure=mode, **KEYS.get(method, {}))[0]) for mode in ("sum", "off"))
    assert secure.keys() == plain.keys()
    assert all(np.abs(secure[name] - plain[name]).max() < MOST.get(method, 1e-6) for name in plain)


@pytest.mark.parametrize(
    "method", [name if name in FAST else pytest.param(name, marks=pytest.mark.long) for name in SUMMED]
)
def test_at_no_rate_of_the_servers_does_a_client_of_any_method_answer_by_an_error(method):
    """An error would tell that this client's training had diverged; the sum tells how many clients' had."""
    log = RoundLog()
    assembly = assemble({**FLAT, "rounds": 1, "method": method, "secure": "sum", "lr": 1e30, **KEYS.get(method, {})})
    with contextlib.suppress(RoundError):  # a run in which no upload has counted
        run_in_process(assembly, observers=[log])
    assert not log.records[0].diverged
    assert len([entry for entry in log.records[0].ledger if entry.step == "keys" and entry.payload == 64]) == 4


def test_clients_tell_only_seconds_and_steps_beside_a_sum():
    """FedALA's multiply-adds would tell when a client's own loss had converged."""
    figures = {}
    for mode in ("sum", "off"):
        _, log = run(method="fedala", secure=mode)
        figures[mode] = {figure for line in log.lines for client in line["clients"] for figure in client["metrics"]}
    assert figures["sum"] == COSTS
    assert "multiply-adds" in figures["off"]


@pytest.mark.long
def test_workers_and_repetitions_change_no_bit():
    keys = {"method": "fedavg", "secure": "sum", "clients-per-round": 3, "evaluate-sampled": True}
    first, alone = run(**keys)
    second, several = run(workers=2, **keys)
    assert {n: a.tobytes() for n, a in model(first).items()} == {n: a.tobytes() for n, a in model(second).items()}
    assert dict(first.progress.versions) == dict(second.progress.versions)
    assert [line["accuracy"] for line in alone.lines] == [line["accuracy"] for line in several.lines]


@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedavgm", marks=pytest.mark.long)])
def test_drawn_entries_go_with_secure_sums_and_are_as_few_as_they_say(method):
    keys = {"method": method, "compress.name": "randk", "compress.keep": 0.05, "rounds": 4}
    (secure, log), (plain, _) = (run(secure=mode, **keys) for mode in ("sum", "off"))
    assert all(np.abs(model(secure)[name] - array).max() < 1e-6 for name, array in model(plain).items())
    size = sum(array.size for array in model(plain).values())
    sizes = {e.payload for e in log.records[0].ledger if (e.step, e.direction) == ("mask", "up")}
    assert sizes == {4 * count(0.05, size) + 4}  # k of d entries and one figure, 32 bits each


@pytest.mark.parametrize("method", [name for name in registry.METHODS if name not in SUMMED])
def test_another_method_is_refused_in_a_line_that_says_why(method):
    with pytest.raises(ConfigError) as refused:
        assemble({**FLAT, "method": method, "secure": "sum"})
    words = str(refused.value)
    assert words.startswith(f"secure: expected off: {method} needs more than the sum of the uploads: ")
    assert "may read single uploads" not in words
    assert "\n" not in words


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"robust-mean": "median"}, "robust-mean: expected none with secure = sum"),
        ({"max-update-norm": 3.0}, "max-update-norm: expected 0 with secure = sum"),
        ({"privacy.clip": 1.0}, "privacy.clip: expected 0 with secure = sum"),
        ({"compress.name": "stc"}, "compress.name: expected none or randk with secure = sum"),
        ({"novel-clients": 0.5}, "novel-clients: expected 0 with secure = sum"),
        ({"lr": "search"}, "lr: expected a number with secure = sum"),
        ({"clients": 2}, "clients: expected at least 3 with secure = sum"),
        ({"clients-per-round": 2}, "clients-per-round: expected at least 3"),
        ({"secure-colluders": 3}, "clients: expected at least 5"),
        ({"secure-bits": 16, "clients": 40_000}, "secure-bits: expected 32 for 40000 clients"),
        ({"metric": "balanced-accuracy"}, "task: expected classification by accuracy with secure = sum"),
        (
            {"dataset": "own", "own.shape": "4", "own.classes": 2, "own.data": "m:f", "data-changes": "accept"},
            "data-changes",
        ),
    ],
)
def test_keys_that_look_at_single_clients_are_refused(keys, why):
    with pytest.raises(ConfigError, match=why):
        assemble({**FLAT, "method": "fedavg", "secure": "sum", **keys})


def test_a_methods_own_weights_make_its_claim_void():
    class Weighs(FedAvgServer):
        def weigh(self, upload):
            return float(upload.payload.scalars["mine"])

    class Learns(FedAvgServer):
        def update(self, state, mean):
            return super().update(state, mean)

    assert capabilities.SUMMED.of(Weighs) == ()
    assert capabilities.SUMMED.of(Learns) == ("",)


def test_secrets_are_in_memory_and_on_disk_only_on_the_way_to_another_process(tmp_path):
    first, second = (StateCache(tmp_path / "run", ServerState) for _ in range(2))
    first.vault("a").write(b"secret")
    assert first.vault("a").read() == b"secret"
    assert not list(tmp_path.rglob("secure"))
    first.release("a")
    (path,) = tmp_path.rglob("secure")
    assert path.stat().st_mode & 0o077 == 0
    assert second.vault("a").read() == b"secret"
    assert not path.exists()
    second.release("a")
    forget_secrets(tmp_path)
    assert StateCache(tmp_path / "run", ServerState).vault("a").read() == b""


def test_a_run_with_secure_sums_neither_goes_back_nor_closes_again(tmp_path):
    flat = {**FLAT, "method": "local", "secure": "sum", "name": "r", "rounds": 1, "clients": 3}
    with RunDirectory(tmp_path / "r", assemble(flat), IN_PROCESS) as directory:
        run_in_process(directory._assembly, store=directory.store(), observers=[directory])
    for changed, back, why in (
        ({}, 1, "--from-round: expected a run without secure sums"),
        ({"rounds": 2}, None, "rounds: expected 1 in a run with secure sums that has ended"),
        ({"secure": "off"}, None, "secure"),
    ):
        with pytest.raises(ConfigError, match=why):
            RunDirectory(tmp_path / "r", assemble({**flat, **changed}), IN_PROCESS, back)


def test_models_of_a_run_with_secure_sums_can_be_taken_out(tmp_path):
    """Who reads a model answers no message, and needs no place for secrets."""
    keys = {"partition": {"subsample": 60, "name": "iid"}, "clients": 3, "rounds": 1, "workers": 1, "progress": False}
    path = sepal.run("fedavg", "digits", out=str(tmp_path), name="r", secure="sum", **keys).path
    client, common = (model_of(path, name, "received", ()).networks[0] for name in ("client-00000", None))
    assert all(np.array_equal(client[name], common[name]) for name in common)
    with pytest.raises(StateError, match="one whose models are read"):
        NoVault().write(b"secret")


def test_a_backup_has_the_sums_of_recorded_rounds_and_no_masked_input(tmp_path):
    store = DiskRunStore(tmp_path / "checkpoints", ServerState)
    for name in ("sum", "members", "masked-train-1"):
        store.keep_part(3, name, b"x")
    assert [path.name for path in _written_once(tmp_path)] == ["sum"]
