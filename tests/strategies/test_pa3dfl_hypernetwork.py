"""Pa3dFL's hypernetwork: its gradient against autograd, limit cases, widths, and what it refuses."""

import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

import models
from models.decomposed import Decomposed, initial_weights
from sepal.errors import ModelError
from sepal.protocol.layout import Parameter, Role
from sepal.wire import ValueCoding, rounded
from strategies.pa3dfl.contract import Hyper, State
from strategies.pa3dfl.hypernetwork import Hypernetwork

WIDTHS = {"a": 1.0, "b": 1 / 2, "c": 1 / 16}
SMALL = Hyper(embedding=8, hidden=6, depth=3, decoder_rank=5)


def fp16(values):
    return rounded(values, ValueCoding.FP16)


def decomposed(width=1.0, name="digits-cnn", shape=(1, 8, 8), classes=10):
    return Decomposed(models.build(name, shape, classes).to("meta"), shape, width)


def step(made, state, uploads, rate=0.2, clip=1.0, rounded=np.copy, absorb=math.inf):
    """A step at other settings than the hypernetwork's."""
    made.hyper = made.hyper.model_copy(update={"rate": rate, "clip": clip, "absorb": absorb})
    return made.step(state, uploads, rounded)


def shapes(width):
    return {p.name: p.shape for p in decomposed(width).personal}


def network(hyper=SMALL, clients=("a", "b", "c")):
    full = Decomposed(models.build("digits-cnn", (1, 8, 8), 10), (1, 8, 8))
    made = Hypernetwork(full.personal, 7, hyper)
    return made, made.join(made.init(initial_weights(full, 7)), clients)


def stirred(state, seed=0, scale=0.3):
    """The state with noise on every tensor, so that no gradient is zero by chance."""
    rng = np.random.default_rng(seed)
    weights = {k: v + np.float32(scale) * rng.standard_normal(v.shape, np.float32) for k, v in state.weights.items()}
    return replace(state, weights=weights)


def trained(sent, seed):
    rng = np.random.default_rng(seed)
    return {k: v + np.float32(0.1) * rng.standard_normal(v.shape, np.float32) for k, v in sent.items()}


def bits(state):
    return [(k, v.tobytes()) for part in (state.weights, state.embeddings) for k, v in sorted(part.items())]


# ------------------------------------------------------------------------------------------------------------ gradient


def autograd(made, state, uploads, rounding):
    """Equation 7's gradient through the whole chain in float64, by torch; rounding is the identity to it."""
    leaves = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in state.weights.items()}
    embeddings = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in state.embeddings.items()}
    table = torch.stack([embeddings[name] for name in embeddings])
    encoded = table
    for number in range(made.hyper.depth):
        encoded = encoded @ leaves[f"encoder.{number}.weight"].T + leaves[f"encoder.{number}.bias"]
        encoded = encoded.relu() if number < made.hyper.depth - 1 else encoded
    loss = 0.0
    for client, new in uploads.items():
        scores = encoded @ encoded[list(embeddings).index(client)] / made.hyper.embedding**0.5
        sent = made.generate(state, client, {k: v.shape for k, v in new.items()})
        for name, value in new.items():
            layer = made.layer[name]
            mixed = (scores / leaves["log-temperature"][layer].exp()).softmax(0) @ encoded
            h = (leaves["hidden.weight"][layer] @ mixed + leaves["hidden.bias"][layer]).relu()
            theta = leaves[f"decoder.{name}.weight"] @ h + leaves[f"decoder.{name}.bias"]
            theta = theta[tuple(slice(side) for side in value.shape)]
            received = torch.from_numpy(rounding(sent[name].reshape(-1)).reshape(value.shape)).double()
            np.testing.assert_allclose(sent[name], theta.detach().numpy(), rtol=1e-3, atol=1e-4)
            theta = theta + (received - theta).detach()
            loss = loss + (torch.from_numpy(value).double() - theta).square().sum() / 2 / len(uploads)
    loss.backward()
    return float(loss.detach()), {**leaves, **embeddings}


@pytest.mark.parametrize("rounding", [np.copy, fp16])
def test_gradient_is_that_of_autograd_through_the_whole_chain(rounding):
    made, state = network()
    state = stirred(state)
    uploads = {
        c: trained(made.generate(state, c, shapes(width)), number) for number, (c, width) in enumerate(WIDTHS.items())
    }
    loss, leaves = autograd(made, state, uploads, rounding)
    after, figures = step(made, state, uploads.items(), rate=1.0, clip=math.inf, rounded=rounding)
    assert figures.loss == pytest.approx(loss, rel=1e-5)
    assert figures.norm == pytest.approx(
        math.sqrt(sum(float(t.grad.square().sum()) for t in leaves.values())), rel=1e-4
    )
    for before, later in ((state.weights, after.weights), (state.embeddings, after.embeddings)):
        for name, value in before.items():
            expected = leaves[name].grad.numpy()
            assert np.abs(expected).max() > 0, name
            np.testing.assert_allclose(value - later[name], expected, rtol=1e-3, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("rounding", [np.copy, fp16])
def test_nothing_changed_on_the_clients_is_a_gradient_of_exactly_zero(rounding):
    made, state = network()
    state = stirred(state)
    uploads = {c: made.generate(state, c, shapes(width)) for c, width in WIDTHS.items()}
    uploads = {c: {k: rounding(v.reshape(-1)).reshape(v.shape) for k, v in u.items()} for c, u in uploads.items()}
    after, figures = step(made, state, uploads.items(), 0.5, rounded=rounding)
    assert (figures.loss, figures.norm, figures.absorbed) == (0, 0, 0)
    assert figures.finite
    assert bits(after) == bits(state)


def test_a_step_by_hand():
    """Two clients, one entry each: e = 1 and 3, e' = 2e, so 2 and 6; τ = ∞: e^(l) = 4; h = ReLU(.5·4 + 1) = 3;
    θ = .1·3 + .7 = 1. Client "a" sends 3: ½·2² = 2, halved by the mean is 1. With δ = 1 - 3 = -2, halved -1:
    by b -1, by w -1·3 = -3, by h -.1, by the hidden weight -.1·4 = -.4, by e^(l) -.1·.5 = -.05, which both e' share
    evenly: -.025, and each e gets that times 2; by the encoder's weight -.025·(1 + 3) = -.1, by its bias -.05.
    "b" changes nothing.
    """
    made = Hypernetwork((Parameter("x.y", (1,), Role.BIAS),), 0, Hyper(embedding=1, hidden=1, depth=1))
    start = {
        "log-temperature": [200],  # exp is infinite in float32
        "encoder.0.weight": [[2]],
        "encoder.0.bias": [0],
        "hidden.weight": [[[0.5]]],
        "hidden.bias": [[1]],
        "decoder.x.y.weight": [[0.1]],
        "decoder.x.y.bias": [0.7],
    }
    arrays = {name: np.array(start[name], np.float32) for name in made.shapes}
    embeddings = {"a": np.array([1], np.float32), "b": np.array([3], np.float32)}
    state = State(embeddings, arrays)
    one = made.generate(state, "a", {"x.y": (1,)})["x.y"]
    np.testing.assert_allclose(one, [1], rtol=1e-6)
    uploads = {"a": {"x.y": np.array([3], np.float32)}, "b": {"x.y": one}}
    after, figures = step(made, state, uploads.items(), rate=1.0, clip=math.inf)
    assert figures.loss == pytest.approx(1, rel=1e-6)
    assert figures.h == pytest.approx(9)
    assert figures.attended == 2
    moved = {name: float((arrays[name] - after.weights[name]).item()) for name in arrays}
    expected = {"decoder.x.y.bias": -1, "decoder.x.y.weight": -3, "hidden.bias": -0.1, "hidden.weight": -0.4}
    assert moved == pytest.approx(
        {**expected, "encoder.0.weight": -0.1, "encoder.0.bias": -0.05, "log-temperature": 0}, rel=1e-5
    )
    assert float((embeddings["a"] - after.embeddings["a"]).item()) == pytest.approx(-0.05, rel=1e-5)
    assert float((embeddings["b"] - after.embeddings["b"]).item()) == pytest.approx(-0.05, rel=1e-5)


def test_the_gradients_norm_is_clipped():
    made, state = network()
    uploads = {"a": trained(made.generate(state, "a", shapes(1)), 0)}
    after, figures = step(made, state, uploads.items(), rate=0.25, clip=0.5)
    assert figures.norm > 0.5
    pairs = [(v, after.weights[k]) for k, v in state.weights.items()]
    pairs += [(v, after.embeddings[k]) for k, v in state.embeddings.items()]
    moved = math.sqrt(sum(float(((a.astype(np.float64) - b) ** 2).sum()) for a, b in pairs))
    assert moved == pytest.approx(0.25 * 0.5, rel=1e-3)


def test_a_step_that_would_absorb_too_much_is_shortened():
    made, state = network()
    new = trained(made.generate(state, "a", shapes(1)), 0)
    whole, figures = step(made, state, [("a", new)], rate=1.0, clip=math.inf)
    assert figures.absorbed > 1
    shortened, limited = step(made, state, [("a", new)], rate=1.0, clip=math.inf, absorb=0.5)
    assert limited.absorbed == 0.5
    for name, value in state.weights.items():
        expected = (whole.weights[name] - value) * np.float32(0.5 / figures.absorbed)
        np.testing.assert_allclose(shortened.weights[name] - value, expected, rtol=1e-2, atol=1e-6)


def test_absorbed_is_what_the_next_downloads_take_over():
    """Two clients with the same h and the same change, decoders without weight: in each layer θ moves by γ(1 + ‖h‖²)
    of the change, and nothing else moves.
    """
    made, state = network()
    decoders = [name for name in state.weights if name.startswith("decoder") and name.endswith("weight")]
    flat = {name: np.zeros_like(state.weights[name]) for name in decoders}
    same = {"log-temperature": np.full_like(state.weights["log-temperature"], 200)}
    state = replace(state, weights={**state.weights, **flat, **same})
    sent = made.generate(state, "a", shapes(1))
    new = {k: v + np.float32(0.25) for k, v in sent.items()}
    after, figures = step(made, state, [("a", new), ("b", new)], rate=0.01, clip=math.inf)
    taken = made.generate(after, "b", shapes(1))
    change = sum(float((taken[k] - sent[k]).sum()) for k in sent) / sum(0.25 * v.size for v in sent.values())
    assert figures.absorbed == pytest.approx(change, rel=1e-3)
    assert 0.01 < change < 0.01 * (1 + 5 * figures.h)


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
    with pytest.raises(ModelError, match=r"hypernetwork: expected at most 1,073,741,824 bytes .* got 5,.* at rank 64"):
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
