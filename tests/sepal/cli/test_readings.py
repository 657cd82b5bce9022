"""Masks of pFedGate's clients, read from their states: those that the run itself reported."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from referee.paper.readings import main
from sepal.cli.running import run_flat
from sepal.errors import ConfigError
from sepal.report import learned_rows
from sepal.runs.about import Labels
from sepal.runs.stored_run import Allowed, read_run, stored_config
from sepal.strategies.assembly import assemble
from sepal.strategies.pfedgate.contract import GatedModels
from sepal.study.comparison import read_comparison

READ = Allowed(data=True)
KEYS = {"dataset": "digits", "clients": 3, "rounds": 1, "partition.subsample": 300, "method": "pfedgate"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gates")
    method_keys = {
        "pfedgate.keep": 0.5,
        "pfedgate.gating": "client",
        "pfedgate.rate": 3.0,
        "lr": 0.1,
        "local-epochs": 5,
    }
    run_flat({**KEYS, **method_keys, "name": "gates", "out": str(directory)}, directory, workers=1)
    return directory / "gates"


def gated(run):
    return GatedModels(assemble(stored_config(run)).setup)


def test_a_client_s_mask_has_the_share_that_the_client_reported(run):
    """Gated by client, there is one mask for all examples of a client."""
    learned_masks = learned_rows.read(run, "masks", READ)
    blocks = gated(run).blocks(0.5)
    closing = {client["name"]: client["metrics"] for client in read_run(run).lines[-1]["clients"]}
    assert learned_masks.names == sorted(closing)
    assert {client["masks"] for client in closing.values()} == {1}
    for name, mask in zip(learned_masks.names, learned_masks.personal.astype(bool), strict=True):
        assert mask[blocks.first].all()
        assert blocks.share(mask) == pytest.approx(closing[name]["share"], abs=1e-12)
        assert blocks.share(mask) <= 0.5


def test_a_client_s_examples_are_those_of_its_last_round(tmp_path, monkeypatch):
    """Masks are means over training examples, which with drift are those of the last window."""
    drift = {"drift.name": "time", "partition.name": "iid", "local-epochs": 1}
    run_flat({**KEYS, **drift, "rounds": 2, "name": "drift", "out": str(tmp_path)}, tmp_path, workers=1)

    def at_the_end(ended):
        trainers = [ended.algorithm(name).trainer for name, _ in ended.states()]
        return [torch.equal(trainer.x, trainer.drifting.x[-trainer.drifting.window.size :]) for trainer in trainers]

    monkeypatch.setattr(learned_rows, "resolve", lambda function: at_the_end)
    assert learned_rows.read(tmp_path / "drift", "masks", READ) == [True] * 3


def test_how_alike_two_clients_are_is_counted_in_blocks(run):
    masks = learned_rows.read(run, "masks", READ).personal
    figures = learned_rows.masks(run, READ)
    assert figures["distinct"] == len({tuple(mask) for mask in masks.tolist()})
    both = sum(a == b == 1 for a, b in zip(masks[0], masks[1], strict=True))
    assert figures["similarity"][0][1] == pytest.approx(both / masks[1].sum(), abs=1e-4)
    assert figures["overlap"] is None
    tensors = {name: len(sizes) for name, sizes in gated(run).blocks(0.5).by_tensor().items()}
    assert [layer["name"] for layer in figures["layers"]] == list(tensors)
    np.testing.assert_allclose(
        sum(layer["personal"] * tensors[layer["name"]] for layer in figures["layers"]), masks.mean(0).sum(), atol=0.01
    )


def test_three_clients_on_a_line_are_clustered_by_wards_method(run, monkeypatch):
    """At 0, 1 and 5: 0 and 1 merge at distance 1, then their mean and 5 at 4.5 · √(2 · 2 · 1 / 3) = 5.1962 (Ward).

    Labels (a, a, b): over the pairs, distances 1, 5, 4 and cosines 1, 0, 0 have r = -7/3 / √(26/3 · 2/3) = -.9707.
    """
    places = {"x": 0.0, "y": 1.0, "z": 5.0}
    counts = {"x": [3.0, 0.0], "y": [2.0, 0.0], "z": [0.0, 9.0]}
    vectors = {name: np.array([position]) for name, position in places.items()}
    monkeypatch.setattr(learned_rows, "read", lambda path, kind, allowed, most: vectors)
    monkeypatch.setattr(learned_rows, "labels_of", lambda run: Labels((), counts))
    clustering = learned_rows.clusters(run)
    order = clustering["clients"]
    assert sorted(max(height for height, _ in link) for link in clustering["links"]) == [1.0, 5.1962]
    assert [clustering["labels"][order.index(name)] for name in "xyz"] == [[0], [0], [1]]
    assert clustering["distances"][order.index("x")][order.index("z")] == 5.0
    assert clustering["alike"][order.index("x")][order.index("y")] == 1.0
    assert clustering["correlation"] == -0.9707


def test_gates_of_other_budgets_are_not_clustered(tmp_path):
    """Below s = 1/B a tensor can lose its first block: the gates of two budgets have other sizes. A report goes on."""
    method_keys = {"pfedgate.keep": 0.0, "capacity.profile": "0.05,0.5", "name": "mixed", "out": str(tmp_path)}
    run_flat({**KEYS, "clients": 6, **method_keys}, tmp_path, workers=1)
    for reader in (learned_rows.masks, learned_rows.clusters):
        with pytest.raises(ConfigError, match="run: expected one whose clients"):
            reader(tmp_path / "mixed", READ)
    assert learned_rows.learned(read_comparison([tmp_path / "mixed"]))["tree"] == []


@pytest.mark.parametrize("kind", ["clusters", "masks", "pruning"])
def test_a_directory_without_a_run_is_named_in_one_line(tmp_path, kind, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["learned", kind, str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert (shown.out, str(tmp_path) in line) == ("", True)
