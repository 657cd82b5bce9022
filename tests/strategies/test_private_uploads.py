"""``privacy.*`` in the methods that have it: what is clipped, that noise comes before selection, and who refuses it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sepal.config import PrivacySettings
from sepal.errors import ConfigError
from sepal.layout import trained
from sepal.masks.flat import Flat
from sepal.masks.selection import count, top_k
from sepal.method import Trainer
from sepal.rng import derive_seed
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.plans.plan import check_keys, make_plan
from sepal.training.privacy import release
from tests.strategies import own_models
from tests.strategies.baselines import Sent
from tests.strategies.federation import Federation

CLIP, NOISE = 0.05, 0.3
SPARSE = ("fedpse", "fedstc")
HAVE = tuple(name for name in registry.METHODS if registry.get(name).private_phases)
REFUSE = tuple(name for name in registry.METHODS if name not in HAVE)


def federation(method, clip=CLIP, noise=NOISE, **keys):
    return Federation([1.0], method=method, **{"privacy.clip": clip, "privacy.noise": noise, **keys})


def expected_release(update, round=1, clip=CLIP, noise=NOISE):
    """The release of client 0 of a run with seed 3, computed beside the methods."""
    key = derive_seed(3, "privacy", "client-00000").to_bytes(16, "little")
    return release(update, PrivacySettings(clip=clip, noise=noise), key, round)


def flat_upload(federated, upload):
    """Positions and values of a sparse upload, over the flat model."""
    tensors = upload.payload.tensors
    if "update" in tensors:
        return tensors["update"].positions(), tensors["update"].values
    return Flat(trained(federated.setup.layout)).gather(tensors)


def gained(federated, before):
    """Update and residual of client 0, before anything was clipped."""
    flat, state = Flat(trained(federated.setup.layout)), federated.states[0]
    join = lambda part: part if isinstance(part, np.ndarray) else flat.join(part)  # noqa: E731
    model, base = (state.inner.model, state.held) if hasattr(state, "held") else (state.model, state.base)
    return join(model) - join(base) + join(before.residual)


def test_the_methods_that_have_it_are_those_that_the_docs_name():
    baselines = (
        "fedavg",
        "fedavg-ft",
        "per-fedavg",
        "fedstc",
        "fedavgm",
        "fedadam",
        "fedyogi",
        "fedadagrad",
        "fedprox",
        "moon",
    )
    assert (*baselines, "fedpse", "dmpfl") == HAVE


@pytest.mark.parametrize("method", REFUSE)
def test_every_other_method_refuses_the_keys_in_one_line(method):
    with pytest.raises(ConfigError) as error:
        assemble({"method": method, "dataset": "digits", "privacy.clip": 1.0})
    assert str(error.value) == (
        f"privacy.clip: expected 0: uploads of {method} are not clipped and noised "
        f"(those of {', '.join(HAVE)} are), got 1.0"
    )


def test_a_plan_with_such_a_method_is_refused_before_any_of_its_runs(tmp_path):
    table = {"methods": ["fedavg", "ditto"], "settings": {"dataset": "digits", "privacy.clip": 1.0}}
    plan = make_plan(tmp_path / "plan.toml", table)
    with pytest.raises(ConfigError, match=r"ditto: privacy\.clip: expected 0"):
        check_keys("plan.toml", list(plan.runs()))


def test_noise_without_a_clip_is_refused():
    with pytest.raises(ConfigError, match=r"privacy\.clip: expected above 0 with privacy\.noise"):
        assemble({"method": "fedavg", "dataset": "digits", "privacy.noise": 1.0})


def test_a_model_with_running_statistics_is_refused():
    """They are averages over the client's data, which no norm of an update bounds."""
    with pytest.raises(ConfigError, match="model: expected a model without running statistics"):
        assemble({"method": "fedavg", "dataset": "digits", "model": "digits-cnn-bn", "privacy.clip": 1.0})


def test_fedavg_sends_what_it_received_and_the_clipped_change():
    """Without noise: W + Δ · clip / ‖Δ‖, by hand from the model that the client keeps."""
    federated = federation("fedavg", noise=0.0)
    flat, server = Flat(federated.setup.layout), federated.server
    upload = federated.trained(server.init(), 0, server.plan(1))
    start, end = flat.join(federated.setup.weights), flat.join(federated.states[0].model)
    change = (end - start).astype(np.float64)
    assert np.linalg.norm(change) > 2 * CLIP, "nothing to clip"
    sent = np.concatenate([tensor.values for tensor in upload.payload.tensors.values()])
    np.testing.assert_allclose(sent - start, change * CLIP / np.linalg.norm(change), atol=1e-7)


def test_fedavg_sends_noise_on_every_entry():
    federated = federation("fedavg")
    flat, server = Flat(federated.setup.layout), federated.server
    upload = federated.trained(server.init(), 0, server.plan(1))
    start, end = flat.join(federated.setup.weights), flat.join(federated.states[0].model)
    sent = np.concatenate([tensor.values for tensor in upload.payload.tensors.values()])
    np.testing.assert_array_equal(sent, start + expected_release(end - start).noised)
    assert (sent != start).all()


@pytest.mark.parametrize("method", SPARSE)
def test_noise_comes_before_the_selection(method):
    """The positions are the largest of the noised update: most of them are others than without noise."""
    federated, before = federation(method), None
    before = federated.states[0]
    upload = federated.trained(federated.server.init(), 0, federated.server.plan(1))
    vector = gained(federated, before)
    index, _ = flat_upload(federated, upload)
    expected = top_k(expected_release(vector).noised, count(0.1, vector.size))
    np.testing.assert_array_equal(index, expected)
    quiet = federation(method, noise=0.0)
    plain, _ = flat_upload(quiet, quiet.trained(quiet.server.init(), 0, quiet.server.plan(1)))
    np.testing.assert_array_equal(plain, top_k(vector, count(0.1, vector.size)))
    assert len(set(plain.tolist()) & set(index.tolist())) < len(plain) / 2


@pytest.mark.parametrize("method", SPARSE)
def test_the_residual_is_the_clipped_part_that_was_not_sent_without_noise(method):
    federated = federation(method)
    before = federated.states[0]
    index, _ = flat_upload(federated, federated.trained(federated.server.init(), 0, federated.server.plan(1)))
    expected = expected_release(gained(federated, before)).clipped.copy()
    expected[index] = 0
    flat, residual = Flat(trained(federated.setup.layout)), federated.states[0].residual
    np.testing.assert_array_equal(residual if method == "fedstc" else flat.join(residual), expected)
    assert np.linalg.norm(expected) > 0


@pytest.mark.parametrize("method", SPARSE)
def test_the_residual_is_clipped_with_the_update(method):
    """A residual a thousand times the clip: what is sent still has a norm of at most the clip."""
    federated = federation(
        method, noise=0.0, **{f"{method}.keep": 1.0}, **({"fedstc.ternary": False} if "stc" in method else {})
    )
    server, flat = federated.server, Flat(trained(federated.setup.layout))
    large = np.full(flat.size, 1000 * CLIP, np.float32)
    from dataclasses import replace

    state = federated.states[0]
    federated.states[0] = replace(state, residual=large if method == "fedstc" else flat.cut(large))
    _, values = flat_upload(federated, federated.trained(server.init(), 0, server.plan(1)))
    assert values.size == flat.size
    assert np.linalg.norm(values.astype(np.float64)) == pytest.approx(CLIP, rel=1e-5)


def dmpfl(schedule, **keys):
    return federation("dmpfl", **{"dmpfl.schedule": schedule, "dmpfl.iterations": 1, **keys})


def values_of(upload):
    return np.concatenate([tensor.values for tensor in upload.payload.tensors.values()])


def test_dmpfl_s_upload_of_phase_2a_is_the_received_model_and_a_noised_change():
    quiet = dmpfl("2a:1", clip=1e6, noise=0.0)
    start = np.concatenate(list(quiet.states[0].shared.values()))
    end = values_of(quiet.trained(quiet.server.init(), 0, quiet.server.plan(1)))
    federated = dmpfl("2a:1")
    state = federated.states[0]
    sent = values_of(federated.trained(federated.server.init(), 0, federated.server.plan(1)))
    np.testing.assert_allclose(sent, start + expected_release(end - start).noised, atol=1e-6)
    assert federated.states[0].shared is state.shared, "the model without noise is not kept"


def test_dmpfl_s_upload_of_phase_1_is_not_covered():
    """Values and masks are as without privacy; the summary has no ε for such a run (tests/server_app)."""
    noised, plain = dmpfl("1:1"), dmpfl("1:1", clip=0.0, noise=0.0)
    uploads = [federated.trained(federated.server.init(), 0, federated.server.plan(1)) for federated in (noised, plain)]
    assert values_of(uploads[0]).tobytes() == values_of(uploads[1]).tobytes()


@pytest.mark.parametrize("method", HAVE)
def test_a_frozen_layer_is_never_noised_nor_sent(method, monkeypatch):
    """What is clipped and noised, and what is sent, has the 714 entries of the layers that are trained at most."""
    noised, plain = [], Trainer.release
    monkeypatch.setattr(Trainer, "release", lambda self, up, n: noised.append(up.size) or plain(self, up, n))
    model = f"{own_models.__name__}:frozen"
    federated = federation(method, model=model, **({"dmpfl.schedule": "2a:4"} if method == "dmpfl" else {}))
    server, state = federated.server, federated.server.init()
    for round in (1, 2):
        upload = federated.trained(state, 0, server.plan(round))
        sent = upload.payload.tensors
        assert not [name for name in sent if "embed" in name]
        assert 0 < sum(tensor.values.size for tensor in sent.values()) <= 714
        state, _ = server.aggregate(state, Sent([upload]), server.plan(round))
    assert len(noised) == 2
    assert max(noised) <= 714
    assert not [name for name in server.model(state) if "embed" in name]
    assert federated.shared.networks
    for network, name in product(federated.shared.networks.values(), ("weight", "bias")):
        np.testing.assert_array_equal(getattr(network.module.embed, name), federated.setup.frozen[f"embed.{name}"])
