"""What travels in Sub-FedAvg, masks that are refused, and a run that is killed and resumed."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.errors import SepalError
from sepal.protocol.method import Payload
from sepal.protocol.payloads import seal, unseal
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest
from sepal.wire import inspect
from sepal.wire.tensors import members
from sepal_engines.in_process import run_in_process
from strategies.assembly import assemble
from strategies.subfedavg.contract import ServerState
from tests.strategies.subfedavg import FLAT, HYBRID, rounds


def test_masks_travel_only_when_they_changed_and_values_never_bring_positions():
    run = rounds(3, **{"subfedavg.target": 0.1})
    names = [entry.name for entry in inspect(run.content.data).tensors]
    assert not any(name.endswith("/kept") for name in names), "10 % were pruned in the first round"
    first = rounds(1, **{"subfedavg.target": 0.1})
    entries = {entry.name: entry for entry in inspect(first.content.data).tensors}
    assert [name for name in entries if name.endswith("/kept")] == [
        f"{layer}.weight/kept" for layer in ("conv1", "conv2", "fc1", "fc2")
    ]
    assert {e.index_bytes for e in entries.values() if not e.name.endswith("/kept")} == {0}


def test_a_cut_channel_costs_one_bit_and_no_index():
    run = rounds(1, **{**HYBRID, "subfedavg.distance": 1.0})
    entries = {entry.name: entry for entry in inspect(run.content.data).tensors}
    masks = [name for name in entries if name.endswith("/kept")]
    assert masks
    assert set(masks) <= {"conv1/kept", "conv2/kept"}
    assert all(entries[name].index_bytes <= 4 for name in masks)  # bits of 32 channels
    kept = run.host.algorithm.kept(run.client)
    conv1, conv2 = (int(kept[name].sum()) for name in ("conv1", "conv2"))
    assert entries["conv2.weight"].count == conv1 * conv2 * 9
    assert entries["norm2.running_var"].count == conv2
    assert entries["fc1.weight"].count == conv2 * 4 * 32
    assert {e.index_bytes for name, e in entries.items() if name not in masks} == {0}


@pytest.mark.parametrize(
    ("name", "mask", "message"),
    [
        ("conv1.weight/kept", np.ones(144, bool), r"conv1.weight/kept shape: expected \(130,\), got \(144,\)"),
        ("conv1.weight/kept", np.arange(130) < 20, "conv1.weight/kept count: expected 72 to 130, got 20"),
        ("conv9/kept", np.ones(16, bool), "name: expected one of .*, got conv9/kept"),
    ],
)
def test_a_mask_that_grows_or_is_of_something_else_is_refused_by_name(name, mask, message):
    run = rounds(1)
    refused(run, name, mask, message)


@pytest.mark.parametrize(
    ("name", "channels", "message"),
    [
        ("conv1/kept", 17, r"conv1/kept shape: expected \(1[0-6],\), got \(17,\)"),
        ("conv1/kept", 0, "conv1/kept .*"),
        ("conv3/kept", 16, "name: expected one of .*, got conv3/kept"),
    ],
)
def test_a_cut_of_a_channel_that_does_not_exist_is_refused_by_name(name, channels, message):
    refused(rounds(1, **HYBRID), name, np.ones(channels, bool), message)


def refused(run, name, mask, message):
    """An upload with such a mask before all else, after the first round."""
    server, algorithm, plan = run.server, run.host.algorithm, run.server.plan(2)
    download = unseal(
        seal(server.download(run.state, run.host.info, plan)), algorithm.download_schema(run.client, plan)
    )
    _, upload = algorithm.train(run.client, download, plan)
    values = {n: t for n, t in upload.tensors.items() if not n.endswith("/kept")}
    with pytest.raises(SepalError, match=message):
        unseal(seal(Payload({name: members(mask), **values})), server.upload_schema(run.state, run.host.info, plan))


class Killed(BaseException):
    """The server's process is gone."""


class KillAfter:
    """An observer that kills the server while a round is being reported."""

    def __init__(self, round):
        self.at = round

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        if record.round == self.at:
            raise Killed

    def closed(self, progress, line):
        pass


@pytest.mark.parametrize("keys", [{}, HYBRID])
@pytest.mark.parametrize("killed_after", [1, 3])
def test_killed_and_resumed_while_clients_prune_it_reaches_the_same_end(killed_after, keys, tmp_path):
    assembly = assemble({**FLAT, **keys, "checkpoint-every": 2})
    whole = run_in_process(assembly)
    algorithm, server = whole.algorithm, whole.progress.server
    assert max(algorithm.prunable.pruned(algorithm.kept(server, name)) for name in server.kept) > 0

    def store():
        return DiskRunStore(tmp_path / "server", ServerState)

    with pytest.raises(Killed):
        run_in_process(assembly, store=store(), observers=[KillAfter(killed_after)], state_dir=tmp_path / "clients")
    resumed = run_in_process(assembly, store=store(), state_dir=tmp_path / "clients")
    assert digest(resumed.progress.server) == digest(whole.progress.server)
    assert resumed.report.digests == whole.report.digests
