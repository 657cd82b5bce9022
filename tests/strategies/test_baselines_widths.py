"""HeteroFL, Fjord and FedRolex: two rounds beside independent NumPy, what travels, limit cases, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.errors import ConfigError, ModelError, SepalError
from sepal.method import ClientInfo, Payload
from sepal.protocol.payloads import seal, unseal
from sepal.rng import derive
from sepal.server.downloads import most_message_bytes
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fjord import run_part
from sepal.strategies.baselines.heterofl import set_statistics
from sepal.strategies.baselines.widths import widest
from tests.strategies.baselines import assert_same_model, run
from tests.strategies.by_hand import data, gradients, softmax
from tests.strategies.federation import Federation

MLP = {"model": "tests.strategies.federation:mlp", "split.validation": 0.0}
CAPACITIES = [1.0, 0.25, 0.1]
METHODS = ["heterofl", "fjord", "fedrolex"]


def mean(w, trained, rows, weights, classes):
    """Each entry over the clients that hold it; output rows over those in ``classes``."""
    after = {name: value.copy() for name, value in w.items()}
    for name in w:
        total, count = np.zeros_like(w[name]), np.zeros_like(w[name])
        for value, hidden, weight, classes_held in zip(trained, rows, weights, classes, strict=True):
            mask = np.zeros(w[name].shape, bool)
            if name.startswith("fc1"):
                mask[hidden] = True
            elif name == "fc2.weight":
                mask[np.ix_(classes_held, hidden)] = True
            else:
                mask[classes_held] = True
            total += np.where(mask, value[name], 0) * weight
            count += mask * weight
        after[name] = np.where(count > 0, total / np.maximum(count, 1), w[name])
    return after


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_two_rounds_of_heterofl_and_fedrolex_by_hand(method):
    """An MLP of 8 hidden units; capacities 1, .25 and .1 are widths 1, .5 and .25: 8, 4 and 2 units, scaled by 1, 2, 4.

    Each client takes one step of lr .5 on all of its examples, its gradient clipped at 1. In round 2 FedRolex's windows
    begin at unit 1. Units that only wide clients hold are means over these.
    """
    federation = Federation(CAPACITIES, method=method, **MLP)
    state = federation.server.init()
    w = {name: value.astype(np.float64) for name, value in federation.setup.weights.items()}
    clipped = False
    for round in (1, 2):
        trained, held_rows, present = [], [], []
        for host, width in zip(federation.hosts, (1, 0.5, 0.25), strict=True):
            x, y = data(host)
            classes_held = np.unique(y)
            first = round - 1 if method == "fedrolex" else 0
            rows = np.sort((first + np.arange(int(8 * width))) % 8)
            absent = np.setdiff1d(np.arange(10), classes_held)
            slope, _ = gradients(w, rows, x, np.eye(10)[y], width, absent)
            norm = np.sqrt(sum((g**2).sum() for g in slope.values()))
            clipped |= norm > 1
            trained.append({n: w[n] - 0.5 * slope[n] * min(1, 1 / norm) for n in w})
            held_rows.append(rows)
            present.append(classes_held)
        assert any(len(classes_held) < 10 for classes_held in present)
        w = mean(w, trained, held_rows, [1, 1, 1], present)
        state, _ = federation.round(state, round)
        for name, value in w.items():
            np.testing.assert_allclose(state.weights[name], value, rtol=1e-4, atol=2e-5, err_msg=f"{round} {name}")
    assert clipped, "the clipping was not tried"


def test_two_rounds_of_local_training_at_each_width_by_hand():
    """An MLP of 8 hidden units; capacities 1, .25 and .1 are 8, 4 and 2 of them. One step of lr .5 a round from the
    client's own model, and nothing is sent.
    """
    federation = Federation(CAPACITIES, method="local-width", **MLP)
    state = federation.server.init()
    for round in (1, 2):
        plan = federation.server.plan(round)
        assert not any(federation.trained(state, number, plan).payload.tensors for number in range(3))
    for host, client_state, units in zip(federation.hosts, federation.states, (8, 4, 2), strict=True):
        x, y = data(host)
        w = {name: value.astype(np.float64) for name, value in federation.setup.weights.items()}
        for _ in range(2):
            slope, _ = gradients(w, np.arange(units), x, np.eye(10)[y])
            w = {name: w[name] - 0.5 * slope[name] for name in w}
        first = np.s_[:units]
        for name, region in {
            "fc1.weight": first,
            "fc1.bias": first,
            "fc2.weight": np.s_[:, first],
            "fc2.bias": ...,
        }.items():
            np.testing.assert_allclose(client_state.model[name], w[name][region], rtol=1e-4, atol=2e-5, err_msg=name)
        assert host.algorithm.predictor(client_state, Payload(), plan) is None, "there is no received model"


def test_local_training_at_full_width_is_local_training():
    federations = [Federation([1.0, 1.0], method=method) for method in ("local", "local-width")]
    for federation in federations:
        federation.round(federation.server.init(), 1)
    for first, second in zip(*(federation.states for federation in federations), strict=True):
        assert all(np.array_equal(first.model[name], second.model[name]) for name in first.model)


def test_an_honest_upload_of_flanc_is_within_the_limit_also_where_it_is_more_than_twice_the_model():
    """Its coefficients grow with the channels where kernels are short."""
    federation = Federation([1.0], method="flanc", model="tests.strategies.federation:short_kernels")
    sent = sum(
        int(np.prod(tensor.shape))
        for tensor in federation.trained(
            federation.server.init(), 0, federation.server.plan(1)
        ).payload.tensors.values()
    )
    assert sent > 2 * sum(part.size for part in federation.setup.layout)
    assert most_message_bytes(federation.setup) >= 2 * 4 * sent


@pytest.mark.parametrize("distill", [False, True])
def test_two_rounds_of_fjord_by_hand(distill):
    """Widths .2 … 1; capacities 1, .25 and .1 are p_max = 1, .4 and .2: 8, 4 and 2 units of 8 (⌈.4·8⌉ = 4).

    One step a round, of a width drawn for it; weights n_i. With distillation the same step learns the labels with all
    units and their softmax with the part.
    """
    federation = Federation(CAPACITIES, method="fjord", **{"fjord.distill": distill, **MLP, "seed": 5})
    state = federation.server.init()
    w = {name: value.astype(np.float64) for name, value in federation.setup.weights.items()}
    widths, drawn = np.array([0.2, 0.4, 0.6, 0.8, 1.0]), set()
    for round in (1, 2):
        trained, held_rows, examples = [], [], []
        for host, most in zip(federation.hosts, (1, 0.4, 0.2), strict=True):
            x, y = data(host)
            fitting = widths[widths <= most]
            width = fitting[derive(5, "fjord", host.info.name, round).integers(len(fitting))]
            drawn.add((most, width))
            rows, part = np.arange(int(np.ceil(8 * most))), np.arange(int(np.ceil(8 * width)))
            target, step = np.eye(10)[y], {name: np.zeros_like(value) for name, value in w.items()}
            if distill:
                step, z = gradients(w, rows, x, target)
                target = softmax(z)
            slope, _ = gradients(w, part, x, target)
            trained.append({n: w[n] - 0.5 * (step[n] + slope[n]) for n in w})
            held_rows.append(rows)
            examples.append(len(y))
        w = mean(w, trained, held_rows, examples, [np.arange(10)] * 3)
        state, _ = federation.round(state, round)
        for name, value in w.items():
            np.testing.assert_allclose(state.weights[name], value, rtol=1e-4, atol=2e-5, err_msg=f"{round} {name}")
    assert any(width < most for most, width in drawn), "no part was trained"


@pytest.mark.parametrize("method", METHODS)
def test_only_the_clients_width_travels_and_trains(method):
    """digits-cnn with 16, 32 and 32 channels at width .5 (fjord .4): small tensors both ways, and a smaller module."""
    federation = Federation([1.0, 0.25], method=method)
    state, _ = federation.round(federation.server.init(), 1)
    plan, host = federation.server.plan(2), federation.hosts[1]
    channels = (7, 13, 13) if method == "fjord" else (8, 16, 16)
    shapes = {
        "conv1.weight": (channels[0], 1, 3, 3),
        "conv1.bias": (channels[0],),
        "conv2.weight": (channels[1], channels[0], 3, 3),
        "conv2.bias": (channels[1],),
        "fc1.weight": (channels[2], channels[1] * 4),
        "fc1.bias": (channels[2],),
        "fc2.weight": (10, channels[2]),
        "fc2.bias": (10,),
    }
    down = federation.server.download(state, host.info, plan)
    assert {name: tensor.shape for name, tensor in down.tensors.items()} == shapes
    upload = federation.trained(state, 1, plan).payload.tensors
    assert {name: tensor.shape for name, tensor in upload.items() if name != "classes"} == shapes
    assert len(seal(down).data) < 4 * sum(np.prod(shape) for shape in shapes.values()) + 1000
    client = host.algorithm
    assert sum(p.numel() for p in client.network(client.own_width).module.parameters()) == sum(
        np.prod(shape) for shape in shapes.values()
    )
    assert client.trainer.spent()["share"] == pytest.approx(sum(np.prod(s) for s in shapes.values()) / 9258)


def test_the_received_narrow_model_is_the_full_one_cut_at_the_window():
    federation = Federation([1.0, 0.25], method="fedrolex", **MLP)
    state, _ = federation.round(federation.server.init(), 1)
    down = federation.download(state, 1, federation.server.plan(7))  # the window begins at 6: units 0, 1, 6 and 7
    np.testing.assert_array_equal(down.tensors["fc1.bias"].dense(), state.weights["fc1.bias"][[0, 1, 6, 7]])
    np.testing.assert_array_equal(down.tensors["fc2.weight"].dense(), state.weights["fc2.weight"][:, [0, 1, 6, 7]])


def test_units_that_nobody_holds_and_classes_that_nobody_has_keep_their_value():
    federation = Federation([0.25, 0.1], method="heterofl", **{**MLP, "partition.alpha": 0.05})
    state = federation.server.init()
    after, _ = federation.round(state, 1)
    for name in ("fc1.weight", "fc1.bias"):
        np.testing.assert_array_equal(after.weights[name][4:], state.weights[name][4:])
        assert (after.weights[name][:4] != state.weights[name][:4]).any()
    classes_held = np.unique(np.concatenate([data(host)[1] for host in federation.hosts]))
    missing = np.setdiff1d(np.arange(10), classes_held)
    assert len(missing)
    np.testing.assert_array_equal(after.weights["fc2.bias"][missing], state.weights["fc2.bias"][missing])
    assert (after.weights["fc2.bias"][classes_held] != state.weights["fc2.bias"][classes_held]).all()


PART, ALL = {"clients-per-round": 2}, {"clients-per-round": 0}


@pytest.mark.parametrize("sampled", [PART, ALL], ids=["part", "all"])
def test_fjord_of_one_width_is_fedavg_bit_for_bit(sampled):
    keys = {"fjord.widths": "1", "fjord.distill": False}
    assert_same_model(run("fjord", **keys, **sampled), run("fedavg", **sampled))


@pytest.mark.parametrize(("scaler", "sampled"), [(False, PART), (True, ALL)], ids=["part", "scaler-all"])
@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_at_full_width_unmasked_and_unclipped_heterofl_is_fedavg_with_equal_weights_bit_for_bit(
    method, scaler, sampled
):
    """With or without the scaler, which divides by 1; FedRolex's window holds all channels."""
    keys = {f"{method}.masked": False, f"{method}.clip": 1e9, f"{method}.scaler": scaler}
    assert_same_model(run(method, **keys, **sampled), run("fedavg", **{"fedavg.weights": "equal"}, **sampled))


def test_statistics_are_those_of_the_trained_model_over_the_training_data():
    """One batch of 5: running mean and unbiased variance of the norm's input; the momentum is what it was."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2, momentum=0.1))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32))
    before = module[0](x).detach()
    module[1].running_mean.fill_(7)
    set_statistics(module, x)
    torch.testing.assert_close(module[1].running_mean, before.mean(0))
    torch.testing.assert_close(module[1].running_var, before.var(0))
    assert module[1].momentum == 0.1
    federation = Federation([1.0, 0.25], method="heterofl", model="digits-cnn-bn")
    state, _ = federation.round(federation.server.init(), 1)
    assert np.abs(state.weights["norm1.running_mean"]).min() > 0


def test_a_part_of_a_model_trains_the_first_entries_and_their_statistics():
    federation = Federation([1.0], method="fjord", model="digits-cnn-bn")
    client = federation.hosts[0].algorithm
    whole, part = client.module(1.0).train(), client.module(0.4)
    whole.zero_grad()
    run_part(part, whole, client.trainer.x).sum().backward()
    assert whole.conv2.weight.grad[:13, :7].abs().min() > 0
    assert whole.conv2.weight.grad[13:].abs().max() == whole.conv2.weight.grad[:, 7:].abs().max() == 0
    assert (whole.norm1.running_var[:7] != 1).all()
    assert (whole.norm1.running_var[7:] == 1).all()


def test_multiply_adds_are_those_of_the_parts_that_were_trained():
    full = Federation([1.0], method="fjord", **{"fjord.widths": "1", "fjord.distill": False})
    parts = Federation([1.0], method="fjord", **{"fjord.distill": False, "local-epochs": 8})
    for federation in (full, parts):
        federation.round(federation.server.init(), 1)
    whole, some = (f.hosts[0].algorithm.trainer.spent()["multiply-adds"] for f in (full, parts))
    assert 0.1 * 8 * whole < some < 0.9 * 8 * whole


@pytest.mark.parametrize(
    ("capacity", "widths", "expected"),
    [
        (1.0, "1,0.5,0.25", 1.0),
        (0.25, "1,0.5,0.25", 0.5),
        (0.2499, "1,0.5,0.25", 0.25),
        (0.04, "0.2,0.4", 0.2),
        (0.16, "0.4", 0.4),  # .4² is a little above .16 in floating point
    ],
)
def test_the_width_is_the_largest_whose_square_the_capacity_allows(capacity, widths, expected):
    assert widest(capacity, widths) == expected


def test_a_capacity_below_the_smallest_width_is_refused_in_one_line():
    with pytest.raises(ModelError, match=r"capacity: expected at least 0\.04, the square of .* 0\.2, got 0\.03"):
        Federation([0.03], method="fjord")


@pytest.mark.parametrize("widths", ["", "1,x", "0,1", "1.5"])
def test_impossible_widths_are_refused_in_one_line(widths):
    with pytest.raises(ConfigError, match=r"heterofl.widths: expected numbers in \(0, 1\] such as 1,0.5,0.25"):
        assemble({"method": "heterofl", "heterofl.widths": widths})


@pytest.mark.parametrize("method", METHODS)
def test_an_upload_of_another_width_is_refused_by_name(method):
    federation = Federation([1.0, 0.25], method=method)
    state, plan = federation.server.init(), federation.server.plan(1)
    host = federation.hosts[0]
    wide = host.algorithm.train(federation.states[0], federation.download(state, 0, plan), plan)[1]
    schema = federation.server.upload_schema(state, federation.hosts[1].info, plan)
    with pytest.raises(SepalError, match=r"^conv1\.weight.*expected.*got") as refusal:
        unseal(seal(wide), schema)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("method", METHODS)
def test_a_residual_network_is_refused_in_one_line(method):
    keys = {"dataset": "own", "own.shape": "3x32x32", "own.classes": 10, "own.data": "a:b", "model": "resnet18-gn"}
    keys |= {"rounds": 1, "local-epochs": 1, "batch-size": 8, "lr": 0.1, "optimizer": "sgd", "method": method}
    assembly = assemble(keys)
    with pytest.raises(ModelError, match="model: expected convolutions, norms and linear layers one after another"):
        assembly.method.make_server(assembly.setup).init()


@pytest.mark.parametrize("method", ["heterofl", "fjord", "fedrolex", "flanc", "tailorfl", "local-width", "pa3dfl"])
def test_a_client_that_claims_too_small_a_capacity_is_refused_before_it_takes_part(method):
    """It would end the run in the middle of a round: honest clients refuse to start."""
    assembly = assemble({"dataset": "digits", "method": method, "clients": 2})
    server = assembly.method.make_server(assembly.setup)
    plan, state = server.plan(2), server.init()
    server.upload_schema(state, ClientInfo("honest", 10, capacity=0.5), plan)
    with pytest.raises(SepalError, match="expected"):
        server.upload_schema(state, ClientInfo("hostile", 10, capacity=1e-6), plan)
