"""Frozen layers, weights that ``build`` sets, and shared weights, for every method."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from sepal.engines.in_process.grid import InProcessGrid
from sepal.engines.in_process.worker import Clients
from sepal.errors import ConfigError, ModelError, RosterError
from sepal.modules import tied_names
from sepal.protocol.messages import read_order
from sepal.protocol.types import Kind
from sepal.server.strategy import SepalStrategy
from sepal.storage.serialize import digest_arrays
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedem import Mixture
from tests.strategies import own_models

FLAT = {
    "dataset": "digits",
    "clients": 2,
    "rounds": 2,
    "partition.subsample": 100,
    "lr": 0.05,
    "weight-decay": 0.1,  # moves whatever an optimizer holds
    "pfedhn.inner-rate": 0.005,
    "evaluate-every": 0,
}
# Two train adapters alone (tests/models/test_lora.py), and FedBN refuses models without batch normalisation.
OTHERS = ("fedsa-lora", "flasc", "fedbn")
METHODS = pytest.mark.parametrize("method", [name for name in registry.METHODS if name not in OTHERS])
# They cut, decompose or gate layers one by one, and refuse models in which that is not possible.
CUT = {"local-width", "heterofl", "fjord", "fedrolex", "tailorfl", "flanc", "pa3dfl"}


def path_of(name):
    return f"{own_models.__name__}:{name}"


def flat(method, model, **keys):
    return {**FLAT, "method": method, "model": path_of(model), **keys}


def run(method, model, tmp_path):
    """Run two rounds; return the strategy and the modules that its clients trained."""
    assembled = assemble(flat(method, model))
    clients = Clients(assembled, tmp_path)
    strategy = SepalStrategy(assembled.method, assembled.setup, agreed=assembled.agreed, settle=0.0)
    strategy.start(InProcessGrid({number + 1: partial(clients.answer, number) for number in range(2)}))
    return strategy, [network.module for network in clients._shared.networks.values()]


def tensors(module, ending):
    """All parameters and buffers of a module whose name ends so."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return [tensor for name, tensor in named if name == ending or name.endswith(f".{ending}")]


@METHODS
def test_a_frozen_layer_is_never_trained_nor_sent(method, tmp_path):
    if method in CUT:
        with pytest.raises(ModelError, match=r"layers that are all trained, .*, got embed.weight, which is frozen"):
            run(method, "frozen", tmp_path)
        return
    strategy, modules = run(method, "frozen", tmp_path)
    assert not any(parameter.name.startswith("embed") for parameter in strategy.setup.layout)
    plain = own_models.frozen((1, 8, 8), 10)
    frozen = [tensor for module in modules for tensor in tensors(module, "embed.weight")]
    assert frozen, "no network with the layer"
    first = strategy.setup.frozen["embed.weight"]
    for tensor in frozen:
        assert tuple(tensor.shape) == tuple(plain.embed.weight.shape)
        np.testing.assert_array_equal(tensor.detach().numpy(), first)


@METHODS
def test_weights_that_build_sets_are_where_a_run_starts(method, tmp_path):
    assembled = assemble(flat(method, "pretrained"))
    setup = assembled.setup
    weights = np.linspace(-0.3, 0.3, 256, dtype=np.float32).reshape(16, 16)
    assert setup.user_set == {"fc1.weight"}
    np.testing.assert_allclose(setup.weights["fc1.weight"], weights, atol=1e-7)
    assert any("1 of 8 tensors start as" in note for note in assembled.notes)
    assert any("of its own, not from weights" in note for note in assembled.notes) == bool(assembled.method.starts_from)
    server = assembled.method.make_server(setup)
    first = {} if assembled.method.starts_from else server.model(server.init())
    if "fc1.weight" in first and method not in ("fedmask", "fedpm"):  # whose weights are signs and one magnitude
        mask = first["fc1.weight"] != 0  # sparse methods start at a mask
        np.testing.assert_allclose(first["fc1.weight"][mask], weights[mask], atol=1e-7)


NONE, SOME = "model: {} sets none of its {} tensors", "model: 1 of {} tensors start as {} sets them"
SEED = "the {} that are drawn at random start from the run's seed"


@pytest.mark.parametrize(
    ("model", "user_set", "words"),
    [
        ("other_net", set(), f"{NONE.format(path_of('other_net'), 8)}; {SEED.format(8)}"),
        ("frozen", set(), f"{NONE.format(path_of('frozen'), 6)}; {SEED.format(6)}"),
        ("normed", set(), f"{NONE.format(path_of('normed'), 9)}; {SEED.format(9)}"),
        ("normed_before", {"2.running_mean"}, f"{SOME.format(9, path_of('normed_before'))}; {SEED.format(8)}"),
        (
            "token",
            {"token"},
            f"{SOME.format(10, path_of('token'))}; {SEED.format(9)}",
        ),
    ],
)
def test_a_line_says_whether_a_run_starts_from_what_build_sets(model, user_set, words):
    assembled = assemble(flat("fedavg", model))
    assert assembled.setup.user_set == user_set
    assert [note for note in assembled.notes if note.startswith("model: ") and "stay as" not in note] == [words]


def test_the_line_is_true():
    first, second = (assemble(flat("fedavg", "token", seed=seed)).setup.weights for seed in (1, 2))
    alike = {name for name in first if np.array_equal(first[name], second[name])}
    assert alike == {"token"}
    assert not first["token"].any()
    assert (assemble(flat("fedavg", "normed_before")).setup.weights["2.running_mean"] == 1).all()


def test_running_means_that_build_sets_are_no_weights_that_a_method_of_other_draws_passes_over():
    notes = assemble(flat("pfedhn", "normed_before")).notes
    assert not any("of its own, not from weights" in note for note in notes)


@pytest.mark.parametrize("model", ["auto", "digits-cnn-bn"])
def test_of_a_built_in_model_no_line_is_said(model):
    assert not any(note.startswith("model: ") for note in assemble({**FLAT, "method": "fedavg", "model": model}).notes)


def test_each_model_of_a_mixture_starts_from_what_build_sets():
    assembled = assemble(flat("fedem", "pretrained"))
    mixture = type("Both", (Mixture,), {"setup": assembled.setup})()
    first = mixture.first()
    for number in range(3):
        np.testing.assert_array_equal(first[f"{number}/fc1.weight"], assembled.setup.weights["fc1.weight"])
    assert not np.array_equal(first["0/fc2.weight"], first["1/fc2.weight"])


def test_what_differs_between_two_builds_is_drawn_from_the_seed():
    first, second = (assemble(flat("fedavg", "pretrained", seed=seed)).setup.weights for seed in (1, 2))
    assert np.array_equal(first["fc1.weight"], second["fc1.weight"])
    assert not np.array_equal(first["fc2.weight"], second["fc2.weight"])


@METHODS
def test_a_shared_weight_stays_one_and_is_sent_once(method, tmp_path):
    if method in CUT | {"pfedgate"}:
        with pytest.raises(ModelError, match=r"layers with weights of their own, .*, got fc1.weight, which is fc2.w"):
            run(method, "tied", tmp_path)
        return
    strategy, modules = run(method, "tied", tmp_path)
    names = [parameter.name for parameter in strategy.setup.layout]
    assert ("fc1.weight" in names, "fc2.weight" in names) == (True, False)
    for module in modules:
        first, second = tensors(module, "fc1.weight"), tensors(module, "fc2.weight")
        for first_tensor, second_tensor in zip(first, second, strict=True):
            assert first_tensor.data_ptr() == second_tensor.data_ptr()
    assert any(tied_names(module) for module in modules)


def test_tensors_that_share_a_part_of_their_storage_are_refused():
    with pytest.raises(ModelError, match=r"model: expected tensors that share all of their storage or nothing"):
        assemble(flat("fedavg", "partly_shared"))


def test_a_model_that_trains_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"model: expected at least one parameter that is trained, got .*all_frozen"):
        assemble(flat("fedavg", "all_frozen"))


def asked_of_two(server_side, client_side, tmp_path):
    """Run a server and client 0 of the assembly ``one`` with client 1 of ``other``.

    Returns:
        The strategy, the error that ended its run or None, and the kinds of the messages to client 1.
    """
    clients, kinds = (
        [Clients(assembled, tmp_path / str(number)) for number, assembled in enumerate((server_side, client_side))],
        [],
    )

    def second(message):
        kinds.append(read_order(message.content)[0].kind)
        return clients[1].answer(1, message)

    strategy = SepalStrategy(server_side.method, server_side.setup, agreed=server_side.agreed, settle=0.0)
    try:
        strategy.start(InProcessGrid({1: partial(clients[0].answer, 0), 2: second}))
    except RosterError as error:
        return strategy, error, kinds
    return strategy, None, kinds


def test_a_client_with_other_frozen_tensors_is_refused_before_it_trains(tmp_path, monkeypatch):
    """What is trained starts alike, so only the digest of the frozen tensors tells the two apart."""
    first = assemble(flat("fedavg", "frozen"))
    with monkeypatch.context() as patch:
        patch.setattr(own_models, "frozen", own_models.frozen_elsewhere)
        changed = assemble(flat("fedavg", "frozen"))
    assert (digest_arrays(first.setup.weights), first.agreed) == (digest_arrays(changed.setup.weights), changed.agreed)
    _, error, kinds = asked_of_two(first, changed, tmp_path)
    words = r"client-00001: initial weights: expected digest \w{12} \(frozen tensors included\), got \w{12}"
    assert re.fullmatch(words, str(error))
    assert kinds
    assert Kind.TRAIN not in kinds


def test_a_client_with_the_same_frozen_tensors_trains(tmp_path):
    first, second = (assemble(flat("fedavg", "frozen")) for _ in range(2))
    strategy, error, kinds = asked_of_two(first, second, tmp_path)
    assert error is None
    assert kinds.count(Kind.TRAIN) == 2
    expected = {**first.setup.weights, **first.setup.frozen}
    assert set(expected) - set(first.setup.weights) == {"embed.weight", "embed.bias"}
    assert strategy.progress.weights == digest_arrays(expected)
