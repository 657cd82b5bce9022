"""Pa3dFL's hypernetwork: what it generates at every width, limit cases, sizes, and what it refuses."""

import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from sepal import models
from sepal.errors import ModelError
from sepal.models.decomposed import Decomposed
from sepal.strategies.pa3dfl.contract import Hyper, State
from sepal.strategies.pa3dfl.hypernetwork import Hypernetwork, _Tensors
from tests.strategies.hypernetworks import WIDTHS, bits, decomposed, network, shapes, step, stirred, trained

# --------------------------------------------------------------------------------------------------------- generation


def test_an_infinite_temperature_gives_every_client_the_same():
    hypernetwork, state = network()
    state = stirred(state)
    generated = [hypernetwork.generate(state, client, shapes(1 / 2)) for client in "ab"]
    assert any(not np.array_equal(generated[0][name], generated[1][name]) for name in generated[0])
    log = np.full_like(state.weights["log-temperature"], 200)  # exp is infinite in float32
    state = replace(state, weights={**state.weights, "log-temperature": log})
    generated = [hypernetwork.generate(state, client, shapes(1 / 2)) for client in "ab"]
    assert all(np.array_equal(generated[0][name], generated[1][name]) for name in generated[0])
    log = log.copy()
    log[hypernetwork.layer["body.conv2.bias"]] = 0  # one layer of its own
    state = replace(state, weights={**state.weights, "log-temperature": log})
    generated = [hypernetwork.generate(state, client, shapes(1 / 2)) for client in "ab"]
    differing = {name for name in generated[0] if not np.array_equal(generated[0][name], generated[1][name])}
    assert differing == {"body.conv2.theta_v", "body.conv2.bias"}


def test_a_narrow_client_gets_the_first_entries():
    hypernetwork, state = network()
    wide, narrow = (hypernetwork.generate(stirred(state), "a", shapes(width)) for width in (1, 3 / 16))
    for name, value in narrow.items():
        expected = wide[name][tuple(slice(side) for side in value.shape)]
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        assert value.dtype == np.float32


def test_generation_depends_neither_on_order_nor_on_torchs_generator():
    hypernetwork, state = network()
    turned = State(dict(reversed(state.embeddings.items())), state.weights)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    in_order, in_turned_order = (hypernetwork.generate(s, "b", shapes(1)) for s in (state, turned))
    assert all(np.array_equal(in_order[name], in_turned_order[name]) for name in in_order)
    assert bits(network()[1]) == bits(state)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_downloads_are_near_the_common_first_weights():
    hypernetwork, state = network(Hyper(), [f"client-{number}" for number in range(50)])
    first = {p.name: state.weights[f"decoder.{p.name}.bias"] for p in decomposed().personal}
    sent = hypernetwork.generate(state, "client-3", shapes(1))
    for name in ("body.conv1.theta_v", "body.conv2.theta_v", "body.fc1.theta_v", "local_head.weight"):
        assert float((sent[name] - first[name]).std()) < 0.25 * float(first[name].std()), name
        assert not np.array_equal(sent[name], first[name])


def test_at_the_start_a_client_attends_a_few_others():
    hypernetwork, state = network(Hyper(), [f"client-{number}" for number in range(50)])
    clients = list(state.embeddings)[:10]
    sent = ((client, hypernetwork.generate(state, client, shapes(1 / 16))) for client in clients)
    _, figures = step(hypernetwork, state, sent, 0.02)
    assert 1.2 < figures.attended < 8
    assert 10 < figures.h < 60


def test_a_client_that_joins_late_takes_part_at_once():
    hypernetwork, state = network()
    state = stirred(state)
    joined = hypernetwork.join(state, ["late", "a"])
    assert set(joined.embeddings) == {"a", "b", "c", "late"}
    assert np.array_equal(joined.embeddings["a"], state.embeddings["a"])
    assert np.array_equal(joined.embeddings["late"], hypernetwork.join(network()[1], ["late"]).embeddings["late"])
    assert not np.array_equal(joined.embeddings["late"], joined.embeddings["a"])
    sent = hypernetwork.generate(joined, "late", shapes(1 / 2))
    after, figures = step(hypernetwork, joined, [("late", sent)], 0.1)
    assert figures.norm == 0  # what it was sent is what it is compared with
    assert np.array_equal(after.embeddings["late"], joined.embeddings["late"])
    after, _ = step(hypernetwork, joined, [("late", trained(sent, 0))], 0.1)
    assert not np.array_equal(after.embeddings["late"], joined.embeddings["late"])
    alone = hypernetwork.generate(hypernetwork.join(State({}, state.weights), ["late"]), "late", shapes(1 / 16))
    assert all(np.isfinite(value).all() for value in alone.values())


def test_a_step_leaves_the_state_it_came_from_and_repeats_to_the_same_bits():
    hypernetwork, state = network()
    before = bits(state)
    uploads = {c: trained(hypernetwork.generate(state, c, shapes(width)), 1) for c, width in WIDTHS.items()}
    first_step, _ = step(hypernetwork, state, uploads.items(), 0.1)
    second_step, _ = step(hypernetwork, state, uploads.items(), 0.1)
    assert bits(state) == before
    assert bits(first_step) == bits(second_step) != before
    assert list(first_step.weights) == list(hypernetwork.shapes)
    assert all(first_step.weights[name].shape == shape for name, shape in hypernetwork.shapes.items())
    assert all(array.dtype == np.float32 for array in (*first_step.weights.values(), *first_step.embeddings.values()))


def test_uploads_are_read_one_at_a_time():
    hypernetwork, state = network(clients=[str(number) for number in range(6)])
    alive = []

    def uploads():
        for number in range(6):
            new = trained(hypernetwork.generate(state, str(number), shapes(1)), number)
            alive.append(weakref.ref(new["body.fc1.theta_v"]))
            assert sum(reference() is not None for reference in alive) <= 2
            yield str(number), new
            del new

    step(hypernetwork, state, uploads(), 0.1)
    assert len(alive) == 6


@pytest.mark.parametrize("width", WIDTHS.values())
def test_only_the_entries_of_a_clients_width_are_computed(width, monkeypatch):
    hypernetwork, state = network()
    sizes, decoded = [], _Tensors.decoded

    def counted(*args):
        entries = decoded(*args)
        sizes.append(entries.numel())
        return entries

    monkeypatch.setattr(_Tensors, "decoded", counted)
    hypernetwork.generate(state, "a", shapes(width))
    assert sum(sizes) == sum(math.prod(shape) for shape in shapes(width).values())


def test_no_upload_is_no_step():
    hypernetwork, state = network()
    after, figures = step(hypernetwork, state, [], 0.1)
    assert bits(after) == bits(state)
    assert (figures.loss, figures.norm, figures.finite) == (0, 0, True)


# --------------------------------------------------------------------------------------------------- sizes and refusals


def test_sizes_of_the_papers_networks_and_the_limit():
    """One number for each personal entry and hidden unit, and one for its bias: 65 × 774,868 and the small rest."""
    cifar = decomposed(name="cnn-cifar100-pa3dfl", shape=(3, 32, 32), classes=100)
    personal = sum(p.size for p in cifar.personal)
    assert personal == 25 * 16 * 3 + 64 * 16 * 64 + 24 * 16 * 1600 + 12 * 16 * 384 + (64 + 64 + 384 + 192) + 19_300
    small = 5 + 3 * (64 * 64 + 64) + 5 * (64 * 64 + 64)  # temperatures, encoder, hidden layers of five decoders
    assert Hypernetwork(cifar.personal, 0, Hyper()).bytes == 4 * (65 * 774_868 + small)
    assert round(65 * 774_868 + small, -5) == 50.4e6
    fashion = decomposed(name="cnn-fmnist-pa3dfl", shape=(1, 28, 28), classes=10)
    decoders = 4 * 64 * sum(p.size for p in fashion.personal)
    assert round(decoders / 1e6) == 433
    assert Hypernetwork(fashion.personal, 0, Hyper()).bytes < Hyper().most_mib << 20  # it fits
    for task_model, sizes in ((cifar, (192, 50, 27)), (fashion, (419, 110, 58))):
        networks = (Hypernetwork(task_model.personal, 0, Hyper(decoder_rank=rank)) for rank in (64, 16, 8))
        assert tuple(round(network.bytes / 2**20) for network in networks) == sizes
    plain = models.build("resnet18-gn", (3, 32, 32), 10).to("meta")
    resnet = Decomposed(plain, (3, 32, 32), whole=("blocks.6.conv2", "blocks.6.shortcut.0", "blocks.7.conv2")).personal
    with pytest.raises(ModelError, match=r"hypernetwork: expected at most 1024 MiB .* got 4847 at rank 64"):
        Hypernetwork(resnet, 0, Hyper())
    assert Hypernetwork(resnet, 0, Hyper(decoder_rank=8)).bytes < 1 << 30  # decoders of low rank fit


def test_a_step_that_is_not_finite_keeps_the_state_and_says_so():
    hypernetwork, state = network()
    new = trained(hypernetwork.generate(state, "a", shapes(1)), 0)
    new["body.fc1.theta_v"] = np.full_like(new["body.fc1.theta_v"], 3e38)
    after, figures = step(hypernetwork, state, [("a", new)], 0.1)
    assert after is state
    assert not figures.finite
    weights = {**state.weights, "hidden.bias": np.full_like(state.weights["hidden.bias"], np.nan)}
    broken = State(state.embeddings, weights)
    after, figures = step(hypernetwork, broken, [("a", trained(hypernetwork.generate(state, "a", shapes(1)), 0))], 0.1)
    assert after is broken
    assert not figures.finite
