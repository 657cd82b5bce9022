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
    made, state = network()
    state = stirred(state)
    own = [made.generate(state, client, shapes(1 / 2)) for client in "ab"]
    assert any(not np.array_equal(own[0][name], own[1][name]) for name in own[0])
    log = np.full_like(state.weights["log-temperature"], 200)  # exp is infinite in float32
    state = replace(state, weights={**state.weights, "log-temperature": log})
    own = [made.generate(state, client, shapes(1 / 2)) for client in "ab"]
    assert all(np.array_equal(own[0][name], own[1][name]) for name in own[0])
    log = log.copy()
    log[made.layer["body.conv2.bias"]] = 0  # one layer of its own
    state = replace(state, weights={**state.weights, "log-temperature": log})
    own = [made.generate(state, client, shapes(1 / 2)) for client in "ab"]
    differing = {name for name in own[0] if not np.array_equal(own[0][name], own[1][name])}
    assert differing == {"body.conv2.theta_v", "body.conv2.bias"}


def test_a_narrow_client_gets_the_first_entries():
    made, state = network()
    wide, narrow = (made.generate(stirred(state), "a", shapes(width)) for width in (1, 3 / 16))
    for name, value in narrow.items():
        expected = wide[name][tuple(slice(side) for side in value.shape)]
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        assert value.dtype == np.float32


def test_generation_depends_neither_on_order_nor_on_torchs_generator():
    made, state = network()
    turned = State(dict(reversed(state.embeddings.items())), state.weights)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two = (made.generate(s, "b", shapes(1)) for s in (state, turned))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert bits(network()[1]) == bits(state)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_downloads_are_near_the_common_first_weights():
    made, state = network(Hyper(), [f"client-{number}" for number in range(50)])
    first = {p.name: state.weights[f"decoder.{p.name}.bias"] for p in decomposed().personal}
    sent = made.generate(state, "client-3", shapes(1))
    for name in ("body.conv1.theta_v", "body.conv2.theta_v", "body.fc1.theta_v", "local_head.weight"):
        assert float((sent[name] - first[name]).std()) < 0.25 * float(first[name].std()), name
        assert not np.array_equal(sent[name], first[name])


def test_at_the_start_a_client_attends_a_few_others():
    made, state = network(Hyper(), [f"client-{number}" for number in range(50)])
    clients = list(state.embeddings)[:10]
    sent = ((client, made.generate(state, client, shapes(1 / 16))) for client in clients)
    _, figures = step(made, state, sent, 0.02)
    assert 1.2 < figures.attended < 8
    assert 10 < figures.h < 60


def test_a_client_that_joins_late_takes_part_at_once():
    made, state = network()
    state = stirred(state)
    joined = made.join(state, ["late", "a"])
    assert set(joined.embeddings) == {"a", "b", "c", "late"}
    assert np.array_equal(joined.embeddings["a"], state.embeddings["a"])
    assert np.array_equal(joined.embeddings["late"], made.join(network()[1], ["late"]).embeddings["late"])
    assert not np.array_equal(joined.embeddings["late"], joined.embeddings["a"])
    sent = made.generate(joined, "late", shapes(1 / 2))
    after, figures = step(made, joined, [("late", sent)], 0.1)
    assert figures.norm == 0  # what it was sent is what it is compared with
    assert np.array_equal(after.embeddings["late"], joined.embeddings["late"])
    after, _ = step(made, joined, [("late", trained(sent, 0))], 0.1)
    assert not np.array_equal(after.embeddings["late"], joined.embeddings["late"])
    alone = made.generate(made.join(State({}, state.weights), ["late"]), "late", shapes(1 / 16))
    assert all(np.isfinite(value).all() for value in alone.values())


def test_a_step_leaves_the_state_it_came_from_and_repeats_to_the_same_bits():
    made, state = network()
    before = bits(state)
    uploads = {c: trained(made.generate(state, c, shapes(width)), 1) for c, width in WIDTHS.items()}
    one, _ = step(made, state, uploads.items(), 0.1)
    two, _ = step(made, state, uploads.items(), 0.1)
    assert bits(state) == before
    assert bits(one) == bits(two) != before
    assert list(one.weights) == list(made.shapes)
    assert all(one.weights[name].shape == shape for name, shape in made.shapes.items())
    assert all(array.dtype == np.float32 for array in (*one.weights.values(), *one.embeddings.values()))


def test_uploads_are_read_one_at_a_time():
    made, state = network(clients=[str(number) for number in range(6)])
    alive = []

    def uploads():
        for number in range(6):
            new = trained(made.generate(state, str(number), shapes(1)), number)
            alive.append(weakref.ref(new["body.fc1.theta_v"]))
            assert sum(reference() is not None for reference in alive) <= 2
            yield str(number), new
            del new

    step(made, state, uploads(), 0.1)
    assert len(alive) == 6


@pytest.mark.parametrize("width", WIDTHS.values())
def test_only_the_entries_of_a_clients_width_are_computed(width, monkeypatch):
    made, state = network()
    sizes, decoded = [], _Tensors.decoded

    def counted(*args):
        entries = decoded(*args)
        sizes.append(entries.numel())
        return entries

    monkeypatch.setattr(_Tensors, "decoded", counted)
    made.generate(state, "a", shapes(width))
    assert sum(sizes) == sum(math.prod(shape) for shape in shapes(width).values())


def test_no_upload_is_no_step():
    made, state = network()
    after, figures = step(made, state, [], 0.1)
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
    for made, sizes in ((cifar, (192, 50, 27)), (fashion, (419, 110, 58))):
        networks = (Hypernetwork(made.personal, 0, Hyper(decoder_rank=rank)) for rank in (64, 16, 8))
        assert tuple(round(network.bytes / 2**20) for network in networks) == sizes
    plain = models.build("resnet18-gn", (3, 32, 32), 10).to("meta")
    resnet = Decomposed(plain, (3, 32, 32), whole=("blocks.6.conv2", "blocks.6.shortcut.0", "blocks.7.conv2")).personal
    with pytest.raises(ModelError, match=r"hypernetwork: expected at most 1024 MiB .* got 4847 at rank 64"):
        Hypernetwork(resnet, 0, Hyper())
    assert Hypernetwork(resnet, 0, Hyper(decoder_rank=8)).bytes < 1 << 30  # decoders of low rank fit


def test_a_step_that_is_not_finite_keeps_the_state_and_says_so():
    made, state = network()
    new = trained(made.generate(state, "a", shapes(1)), 0)
    new["body.fc1.theta_v"] = np.full_like(new["body.fc1.theta_v"], 3e38)
    after, figures = step(made, state, [("a", new)], 0.1)
    assert after is state
    assert not figures.finite
    weights = {**state.weights, "hidden.bias": np.full_like(state.weights["hidden.bias"], np.nan)}
    broken = State(state.embeddings, weights)
    after, figures = step(made, broken, [("a", trained(made.generate(state, "a", shapes(1)), 0))], 0.1)
    assert after is broken
    assert not figures.finite
