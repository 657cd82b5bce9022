"""Adapters: where a run starts, what is trained and sent, and that the plain model comes out in the end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner

from referee.matrix import models as kinds
from referee.matrix.__main__ import KEYS
from sepal import models
from sepal.cli.main import app
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.export.portable import load
from sepal.layout import Role
from sepal.models.lora import LoRA, add_adapters, merged
from sepal.models.weights import read_weights
from sepal.modules import floating, frozen_tensors
from sepal.strategies.assembly import assemble
from sepal.strategies.first_weights import torch_seed
from sepal.study.runs import model_of
from tests.strategies import own_models

VIT = {**KEYS, "own.data": f"{kinds.__name__}:images", "own.shape": "1x8x8"}
VIT |= {"model": f"{kinds.__name__}:vision_transformer", "lora.rank": 2}
DIGITS = {"dataset": "digits", "clients": 2, "rounds": 2, "partition.subsample": 100, "lr": 0.1, "evaluate-every": 0}


def adapters(module):
    return {name: part for name, part in module.named_modules() if isinstance(part, LoRA)}


@pytest.mark.parametrize("build", [kinds.Attention, kinds.Encoder, kinds.vision_transformer])
def test_a_weight_is_the_frozen_one_and_a_scaled_product(build):
    """Also where torch's kernels read the weights of attention, in evaluation, without calling its layers."""
    torch.manual_seed(0)
    shape = (1, 8, 8) if build is kinds.vision_transformer else (6, 8)
    plain, x = build(shape, 3).eval(), torch.randn(4, *shape)
    state = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    expected = plain(x)
    module = add_adapters(plain, 2, 6.0, "")
    with torch.no_grad():
        torch.testing.assert_close(module(x), expected)  # B is 0
        for part in adapters(module).values():
            part.lora_B.normal_()
        assert not torch.allclose(module(x), expected, atol=1e-3)
        tensors = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
        again = build(shape, 3).eval()
        again.load_state_dict({name: torch.from_numpy(array) for name, array in merged(tensors, 3.0).items()})
        torch.testing.assert_close(again(x), module(x), rtol=1e-4, atol=1e-5)
    changed = {name for name, tensor in again.state_dict().items() if not torch.equal(tensor, state[name])}
    assert len(changed) == len(adapters(module))


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [("", {"embed", "fc1", "fc2"}), ("fc?", {"fc1", "fc2"}), ("head,fc1.weight", {"fc1", "head"})],
)
def test_targets(targets, adapted):
    module = add_adapters(own_models.Net(10), 2, 0, targets)
    assert {name.partition(".")[0] for name in adapters(module)} == adapted
    assert {part.scale for part in adapters(module).values()} == {1.0}


@pytest.mark.parametrize(
    ("model", "targets", "error"),
    [
        ("frozen", "body.*", r"lora\.targets: expected patterns of embed\.weight, .*, got body\.\*"),
        ("tied", "fc1", r"lora\.targets: expected weights that no other layer shares, got fc1\.weight"),
        ("number", "", r"lora\.rank: expected 0 for a model without linear or attention layers before its last, got 2"),
    ],
)
def test_what_cannot_have_adapters_is_refused(model, targets, error):
    module = getattr(own_models, model)((64,), 10)
    with pytest.raises(ConfigError, match=error):
        add_adapters(module, 2, 0, targets)


@pytest.mark.parametrize("method", ["fedavg", "fedpse", "dmpfl", "fedsa-lora", "flasc"])
def test_adapters_alone_are_trained_and_sent(method):
    assembled = assemble({**VIT, "method": method, "dmpfl.readjust-every": 1})
    strategy = run_in_process(assembled)
    assert {p.name.rpartition(".")[2] for p in assembled.setup.layout} == {"lora_A", "lora_B"}
    assert {p.role for p in assembled.setup.layout} == {Role.WEIGHT}
    server = strategy._method.make_server(strategy.setup)
    before, after = server.model(server.init()), server.model(strategy.progress.server)
    assert any(not np.array_equal(before[name], after[name]) for name in after)
    for name, start in assembled.setup.weights.items():
        zero = name.endswith("lora_B")
        assert not start.any() if zero else np.abs(start).max() <= 1 / np.sqrt(start.shape[1])
    again, other_seed = assemble(VIT).setup, assemble({**VIT, "seed": 1}).setup
    assert all(np.array_equal(array, again.frozen[name]) for name, array in assembled.setup.frozen.items())
    assert not all(np.array_equal(array, other_seed.frozen[name]) for name, array in assembled.setup.frozen.items())
    assert not any(
        np.array_equal(assembled.setup.weights[name], other_seed.weights[name]) for name in after if "lora_A" in name
    )


def test_a_layer_that_the_model_freezes_gets_an_adapter_and_stays():
    assembled = assemble({**DIGITS, "model": f"{own_models.__name__}:frozen", "lora.rank": 2, "trainable": "head.*"})
    names = [parameter.name for parameter in assembled.setup.layout]
    assert {"embed.parametrizations.weight.0.lora_A", "head.weight", "head.bias"} <= set(names)
    assert not any("embed" in name or "fc1" in name for name in names if "lora" not in name)
    first = models.build(f"{own_models.__name__}:frozen", (1, 8, 8), 10, seed=torch_seed(0)).embed.weight
    assert np.array_equal(assembled.setup.frozen["embed.parametrizations.weight.original"], first.numpy())


def test_a_checkpoint_has_the_plain_names(tmp_path):
    net = own_models.Net(10)
    save_file({name: tensor + 1 for name, tensor in read_weights(net).items()}, tmp_path / "net.safetensors")
    keys = {**DIGITS, "model": f"{own_models.__name__}:other_net", "lora.rank": 2, "trainable": "head.*"}
    setup = assemble({**keys, "initial-weights": str(tmp_path / "net.safetensors")}).setup
    first_weights = read_weights(net)
    assert np.array_equal(setup.frozen["fc1.parametrizations.weight.original"], first_weights["fc1.weight"] + 1)
    assert np.array_equal(setup.frozen["fc1.bias"], first_weights["fc1.bias"] + 1)
    assert np.array_equal(setup.weights["head.weight"], first_weights["head.weight"] + 1)
    assert setup.weights["fc1.parametrizations.weight.0.lora_A"].any()


def test_an_exported_model_is_the_plain_one(tmp_path):
    """Its adapters are part of its weights: nobody who loads it needs to know of them."""
    sets = {**DIGITS, "method": "fedsa-lora", "lora.alpha": 16.0, "rounds": 1}
    options = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, ["run", *options, "--name", "r", "--out", str(tmp_path), "--workers", "1"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["export", str(tmp_path / "r"), "client-00000", "--with-client"])
    assert result.exit_code == 0, result.output
    exported, kept = model_of(tmp_path / "r", "client-00000"), load(tmp_path / "r" / "client-00000.safetensors")
    np.testing.assert_allclose(kept(exported.inputs), exported.logits, atol=1e-5)
    assert not any("lora" in name for name in {**floating(kept.module), **frozen_tensors(kept.module)})
