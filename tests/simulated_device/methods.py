"""Runs methods on a device and on the CPU, and writes what differed: ``python -m … OUT.json DEVICE CASE…``.

A process of its own, because a device cannot be taken away again: ``device = "auto"`` would find it in later tests.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from sepal.engines.in_process import run_in_process
from sepal.engines.in_process.worker import Clients
from sepal.errors import ConfigError
from sepal.export.client_model import client_model
from sepal.method.interface import resolve
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import flatten
from sepal.strategies.assembly import assemble
from sepal.study.method_checks.cases import RoundLog, Stop, StopAfter
from sepal.training import stacked
from sepal.training.devices import choose_device, spread
from sepal.training.programs import Program
from sepal.training.trainer import Trainer
from tests.captured import capturing
from tests.methods import CASES, flat
from tests.simulated_device import load

SIM = "sim:1"  # not the current one: a tensor made on "sim" without a number is on another device
DEVICE = SIM  # or a real one, on which the same is tried by `make -C tools gpu`
SMALL = {"clients": 2, "clients-per-round": 2, "rounds": 2, "partition.subsample": 40, "evaluate-every": 1}
SMALL |= {"checkpoint-every": 1, "batch-size": 8, "pooled-samples": 20, "engine.batch": 1}
# A step of these waits twice, by design: pFedGate's knapsack is solved on the host.
WAITS = {**dict.fromkeys(("pfedgate", "pfedgate-batch", "pfedgate-client"), 2), "fedpm": 1}


# Rounding moves these as far on a CPU (tests/test_rounding.py). Noise is drawn from the update itself; FedMask and
# pFedGate by batch or client decide at thresholds to which many entries are close. On a real device their numbers are
# not compared.
ROUNDED = {"fedmask", "fedavg-stc-private", "fedpse-private", "pfedgate-batch", "pfedgate-client"}


def refuse_waits(refuse):
    """Let the device raise an error where the host waits for it, or not any more."""
    if DEVICE == SIM:
        torch.ops.sepal_sim.strict(refuse)
    elif DEVICE.startswith("cuda"):
        torch.cuda.set_sync_debug_mode("error" if refuse else "default")


def events():
    """What the host has waited for since the last call; CUDA does not say."""
    return torch.ops.sepal_sim.events() if DEVICE == SIM else []


def watched(waits, strict):
    """Trainer.batches, where ``waits`` gets what each step waited for; with ``strict``, that is refused.

    A step is all that happens from a batch until the next one is asked for.
    """
    plain = Trainer.batches

    def batches(self, *args, **rest):
        for batch in plain(self, *args, **rest):
            events()
            refuse_waits(strict)
            try:
                yield batch
            finally:
                refuse_waits(False)
            waits.append(events())

    return batches


def arrays(strategy):
    """All numbers that a run ended with: the server's state and the accuracies of all views."""
    tensors, _ = flatten(strategy.progress.server)
    return {name: np.asarray(value) for name, value in tensors.items()}


def assert_close(cpu_run, device_run):
    """Compare the numbers that two runs ended with; return the largest difference."""
    cpu_arrays, device_arrays = arrays(cpu_run), arrays(device_run)
    assert cpu_arrays.keys() == device_arrays.keys()
    worst = 0.0
    for key, value in cpu_arrays.items():
        if value.dtype.kind == "f" and value.size:
            worst = max(worst, float(np.abs(value - device_arrays[key]).max()))
            rtol, atol = (1e-4, 1e-5) if DEVICE == SIM else (1e-3, 1e-4)
            np.testing.assert_allclose(device_arrays[key], value, rtol=rtol, atol=atol, err_msg=key)
        else:
            np.testing.assert_array_equal(device_arrays[key], value, err_msg=key)
    return worst


def assert_sane(cpu_run, device_run):
    """Compare only which numbers there are; all have to be finite."""
    cpu_arrays, device_arrays = arrays(cpu_run), arrays(device_run)
    assert cpu_arrays.keys() == device_arrays.keys()
    assert all(np.isfinite(value).all() for value in device_arrays.values() if value.dtype.kind == "f")
    return 0.0


def on_device(flat_keys, directory):
    """Run a case on the device, stopped after round 1 and resumed."""
    kind = resolve(assemble(flat_keys).method.server_state)
    keys = {**flat_keys, "device": DEVICE}

    def run(observers=()):
        store = DiskRunStore(directory / "checkpoints", kind)
        return run_in_process(assemble(keys), store=store, observers=observers, state_dir=directory / "clients")

    with suppress(Stop):
        run([StopAfter(1)])
    return run()


def compare_exports(keys, directory):
    """Compare what a client's stored model says on the device and on the CPU; return whether it can be exported."""
    outcomes = []
    for device in ("cpu", DEVICE):
        try:
            outcomes.append(client_model(directory, keys, "client-00001", device))
        except ConfigError as error:
            outcomes.append(str(error))
    on_cpu, on_device_copy = outcomes
    if isinstance(on_cpu, str) or isinstance(on_device_copy, str):
        assert on_cpu == on_device_copy
        return False
    close = 1 if DEVICE == SIM else 10
    np.testing.assert_allclose(on_device_copy.logits, on_cpu.logits, rtol=close * 1e-4, atol=close * 1e-5)
    for cpu_network, device_network in zip(on_cpu.networks, on_device_copy.networks, strict=True):
        assert cpu_network.keys() == device_network.keys()
        for name, value in cpu_network.items():
            np.testing.assert_array_equal(device_network[name], value)
    return True


def compare(name):
    """Return the error of a case, or an empty text, and its figures."""
    keys = flat(name, **SMALL, **{"evaluate.shift": True})
    begun, waits, plain = time.process_time(), [], Trainer.batches
    cpu_run = run_in_process(assemble({**keys, "device": "cpu"}))
    between = time.process_time()
    Trainer.batches = watched(waits, name not in WAITS)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            device_run = on_device(keys, Path(scratch))
            exported = compare_exports(keys, Path(scratch))
    finally:
        Trainer.batches = plain
        refuse_waits(False)
    assert waits, "no step was watched"
    most = max(map(len, waits))
    assert most <= WAITS.get(name, 0), max(waits, key=len)
    worst = assert_sane(cpu_run, device_run) if name in ROUNDED and DEVICE != SIM else assert_close(cpu_run, device_run)
    views = {v: a and a["mean"] for v, a in cpu_run.report.accuracy.items()}
    if DEVICE == SIM:  # elsewhere one example may be rounded to another class
        assert views == {v: a and a["mean"] for v, a in device_run.report.accuracy.items()}
    figures = {"cpu": between - begun, "device": time.process_time() - between, "worst": worst, "exported": exported}
    return {**figures, "waits": most, "steps": len(waits)}


def check_mixes():
    """Each mix of devices, and each wait in a step, is refused; so a method that passes has none."""
    x, cpu_tensor = torch.randn(4, 3).to(DEVICE), torch.randn(4, 3)
    sim_tensor, rows, module = cpu_tensor.to("sim:0"), torch.tensor([0, 2]), torch.nn.Linear(3, 2).to(DEVICE)
    mixes = [
        *(
            lambda: x + cpu_tensor,
            lambda: cpu_tensor + x,
            lambda: x + sim_tensor,
            lambda: x.add_(cpu_tensor),
            lambda: torch.cat([x, cpu_tensor]),
        ),
        *(lambda: module(cpu_tensor), lambda: module(sim_tensor), lambda: x[rows], lambda: cpu_tensor[rows.to(DEVICE)]),
        *(lambda: torch.where(x > 0, cpu_tensor, x), lambda: torch.stack([x, sim_tensor]), x.numpy),
    ]
    waits = [
        *(lambda: x.sum().item(), x.cpu, lambda: x[x > 0], lambda: cpu_tensor.to(DEVICE), lambda: float(x[0, 0])),
        *(x.tolist, x.nonzero, lambda: torch.tensor([1.0], device=DEVICE)),
        *(lambda: bool((x > 0).any()), lambda: x.copy_(cpu_tensor)),
    ]
    passed = [f"mix {number}" for number, mix in enumerate(mixes) if not refused(mix)]
    torch.ops.sepal_sim.strict(True)
    passed += [f"wait {number}" for number, wait in enumerate(waits) if not refused(wait)]
    assert not refused(lambda: x.masked_fill_(x > 0, 0).mul(2)[:, 0])
    torch.ops.sepal_sim.strict(False)
    assert not passed


def refused(action):
    """Whether an action raises."""
    try:
        action()
    except (RuntimeError, TypeError):
        return True
    return False


def check_names():
    """The devices that are there are found, and others are refused in one line that names those."""
    assert [choose_device(name) for name in ("auto", "cpu", "sim", "sim:1")] == ["sim", "cpu", "sim", "sim:1"]
    for name in ("cuda", "sim:2", "gpu"):
        with pytest.raises(ConfigError, match=f"device: expected auto, cpu, sim, sim:0, sim:1, got {name}"):
            choose_device(name)
    assert spread("auto", "", 3) == ["sim:0", "sim:1", "sim:0"]
    assert spread("auto", "1", 2) == ["sim:1", "sim:1"]


def check_memory():
    """A client whose training does not fit the device is left out of the round; its line in the ledger has a hint."""
    plain, watching = Clients.answer, RoundLog()

    def answer(self, number, message):
        full = number == 1 and message.metadata.message_type == "train" and message.metadata.group_id == "1"
        torch.ops.sepal_sim.limit(torch.ops.sepal_sim.allocated() + 1000 if full else 0)
        return plain(self, number, message)

    Clients.answer = answer
    try:
        keys = flat("fedavg", **{**SMALL, "clients": 3, "clients-per-round": 0, "device": DEVICE})
        run_in_process(assemble(keys), observers=[watching])
    finally:
        Clients.answer = plain
        torch.ops.sepal_sim.limit(0)
    entries = [entry for record in watching.records for entry in record.ledger if entry.status == "refused"]
    assert [(entry.round, entry.client) for entry in entries] == [(1, "client-00001")]
    assert entries[0].reason.endswith("none: try a smaller batch-size or width")
    assert "client-00001" in watching.records[1].replies  # it is asked again


def check_at_once():
    """Clients that train at once give what they give alone on the CPU; no step waits."""
    losses, write, trained = stacked._Stack.losses, stacked._Stack._write, []

    def watched_losses(self, *args):
        refuse_waits(self.watched)
        return losses(self, *args)

    def unwatched_write(self, *args):
        refuse_waits(False)
        return write(self, *args)

    def watched_train(self):
        self.watched = True
        result = train(self)
        trained.append(len(self.jobs))  # not if it fails: then they train one by one, silently
        return result

    train, stacked._Stack.watched = stacked._Stack.train, False
    stacked._Stack.losses, stacked._Stack._write, stacked._Stack.train = watched_losses, unwatched_write, watched_train
    keys = {**SMALL, "momentum": 0.9}
    try:
        for name in ("fedavg", "fedprox", "ditto", "fedpse", "subfedavg", "dmpfl"):
            trained.clear()
            cpu_run = run_in_process(assemble(flat(name, **keys, device="cpu")))
            assert not trained
            batched_keys = {**flat(name, **keys), "device": DEVICE, "engine.batch": 2}
            assert_close(cpu_run, run_in_process(assemble(batched_keys)))
            assert 2 in trained, name
    finally:
        refuse_waits(False)
        stacked._Stack.losses, stacked._Stack._write, stacked._Stack.train = losses, write, train


# One of each kind: no hooks, statistics, twins, an optimizer or a module of its own, a step for each width.
CAPTURED = ("fedavg", "fedper-topk", "fedprox", "fedmask", "feddst", "apfl", "pfedme", "heterofl", "tailorfl", "fjord")


def check_captured():
    """Captured steps give what the usual ones give on the CPU; none waits, and a client's training reads one value.

    On the simulated device what is replayed is the step's code, on CUDA a graph.
    """
    plain, counts = Program.end, set()

    def watched_step(step):
        def replay():
            refuse_waits(True)
            try:
                step()
            finally:
                refuse_waits(False)

        return replay

    def counted_end(self, *args):
        events()
        result = plain(self, *args)
        counts.add((name, len(events())))
        return result

    Program.end = counted_end
    try:
        for name in CAPTURED:
            keys = flat(name, **SMALL, **{"momentum": 0.9, "local-epochs": 2})
            cpu_run = run_in_process(assemble({**keys, "device": "cpu"}))
            with capturing(watched_step) if DEVICE == SIM else nullcontext():
                captured_run = run_in_process(assemble({**keys, "device": DEVICE, "engine.capture": True}))
            assert_close(cpu_run, captured_run)
    finally:
        Program.end = plain
    if DEVICE == SIM:  # FedDST asks for its last batch
        assert counts == {(name, 2 if name == "feddst" else 1) for name in CAPTURED}
    else:
        assert {name for name, _ in counts} == set(CAPTURED)


CHECKS = {"mixes": check_mixes, "names": check_names, "memory": check_memory}
CHECKS |= {"at once": check_at_once, "captured": check_captured}


def main(out, device=SIM, *names):
    """Make all checks and compare all cases; on a real device only what does not need the simulated one."""
    global DEVICE
    DEVICE, figures_of = device, {}
    if device == SIM:
        load()
    else:  # so that it computes as exactly as the CPU
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name in names or ((*CHECKS, *CASES) if device == SIM else ("at once", "captured", *CASES)):
        try:
            figures = (CHECKS[name]() or {}) if name in CHECKS else compare(name)
            figures_of[name] = {"error": "", **figures}
        except Exception:  # the run's own, or what a client raised, which the server only counts
            refuse_waits(False)
            figures_of[name] = {"error": traceback.format_exc()}
        Path(out).write_text(json.dumps(figures_of))


if __name__ == "__main__":
    main(*sys.argv[1:])
