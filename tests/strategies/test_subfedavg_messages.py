"""What travels in Sub-FedAvg, masks that are refused, and a run that is killed and resumed."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.engines.in_process import run_in_process
from sepal.errors import SepalError
from sepal.method import Payload
from sepal.protocol.payloads import seal, unseal
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from sepal.strategies.subfedavg.contract import ServerState
from sepal.strategies.subfedavg.prunable import Prunable
from sepal.wire import inspect
from sepal.wire.tensors import members
from tests.strategies.subfedavg import FLAT, HYBRID, downloaded, rounds, sent


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


def test_a_mask_without_any_channel_is_refused_by_name():
    run = rounds(1, **HYBRID)
    left = int(run.host.algorithm.kept(run.client)["conv1"].sum())
    refused(run, "conv1/kept", np.zeros(left, bool), f"conv1/kept count: expected 1 to {left}, got 0")


@pytest.mark.parametrize(
    ("target", "channels", "message"),
    [
        (0.5, (8, 16), ""),  # 24 of 48
        (0.5, (8, 15), "conv2/kept: expected at least 24 channels in all, got 23"),
        (0.25, (1, 32), "conv1/kept: expected at least 36 channels in all, got 33"),  # conv2's mask is not sent
    ],
)
def test_channels_beyond_the_target_are_refused_by_name(target, channels, message):
    run = rounds(1, **{**HYBRID, "subfedavg.channel-target": target, "subfedavg.accuracy": 1.0, "lr": 1e-6})
    server, plan = run.server, run.server.plan(2)
    before = server.kept(run.state, run.host.info.name)
    assert all(mask.all() for mask in before.values())
    cut = {"conv1": np.arange(16) < channels[0], "conv2": np.arange(32) < channels[1]}
    after = server.prunable.within({**before, **cut})
    content = seal(sent(server, before, after, run.host.algorithm.personal_weights(run.client)))
    schema = server.upload_schema(run.state, run.host.info, plan)
    if message:
        with pytest.raises(SepalError, match=message) as caught:
            unseal(content, schema)
        assert "\n" not in str(caught.value)
    else:
        assert unseal(content, schema).tensors["conv2.weight"].nnz == 8 * 16 * 9


@pytest.mark.parametrize("keys", [{}, HYBRID])
def test_masks_are_computed_a_fixed_number_of_times_for_an_upload(keys, monkeypatch):
    """Not once for each tensor; and a schema that reads another payload computes them anew."""
    run = rounds(1, **keys)
    server, algorithm, (download, plan) = run.server, run.host.algorithm, downloaded(run, 2)
    state, upload = algorithm.train(run.client, download, plan)
    before, after = algorithm.kept(run.client), algorithm.kept(state)
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    same = sent(server, before, before, algorithm.personal_weights(run.client))
    schema, calls, plain = server.upload_schema(run.state, run.host.info, plan), [], Prunable.masks
    monkeypatch.setattr(Prunable, "masks", lambda self, kept: calls.append(1) or plain(self, kept))
    for payload, masks in ((upload, after), (same, before), (upload, after)):
        calls.clear()
        received = unseal(seal(payload), schema).tensors
        assert len(calls) <= 3 < len(schema.tensors) / 2
        assert received["fc1.weight"].nnz == masks["fc1.weight"].sum()


def test_masks_of_which_nothing_is_pruned_are_not_stored():
    run = rounds(1, **{**HYBRID, "subfedavg.distance": 1.0, "subfedavg.channel-target": 0.1})
    changed = {name for name, mask in run.host.algorithm.kept(run.client).items() if not mask.all()}
    assert changed & {"conv1", "conv2"}
    assert run.client.kept.keys() == run.state.kept[run.host.info.name].keys() == changed
    shut = rounds(1, **{"subfedavg.accuracy": 1.0, "lr": 1e-6})
    assert shut.client.kept == {}
    assert shut.state.kept == {shut.host.info.name: {}}, "an upload was accepted"


def refused(run, name, mask, message):
    """An upload with such a mask before all else, after the first round."""
    server, algorithm, (download, plan) = run.server, run.host.algorithm, downloaded(run, 2)
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
