"""Where a deployed client draws its noise from, and that a message which is sent again has the same bits."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from sepal.client_app.app import handle
from sepal.client_app.secure_sums import VAULT
from sepal.config import RunConfig
from sepal.engines.in_process import run_in_process
from sepal.errors import ProtocolError, SepalError
from sepal.flower.replies import enter_run
from sepal.method.tensors import dense, dense_schema
from sepal.protocol.messages import Content, Order, read_reply, write_order
from sepal.protocol.payloads import seal, unseal
from sepal.protocol.types import Kind, Payload, Plan
from sepal.secure.client import _unpacked
from sepal.secure.noise import seed_of
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import ValueCoding

RUN = {
    "method": "fedavg",
    "dataset": "digits",
    "clients": 2,
    "partition.subsample": 100,
    "privacy.clip": 1.0,
    "privacy.noise": 1.0,
}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A function that sends round 1 to the client of a home directory, and returns reply and content."""
    enter_run()

    def send(
        home,
        least_noise=0.0,
        phase="",
        round=1,
        content=None,
        views=(),
        keep=False,
        kind=Kind.TRAIN,
        base="",
        only_secure=False,
        **keys,
    ):
        monkeypatch.setenv("SEPAL_HOME", str(tmp_path / home))
        order = Order("0" * 32, kind, Plan(round, phase), base, keep=keep, views=views)
        message = Message(write_order(order, content or Content()), dst_node_id=1, message_type="train")
        node = {"partition-id": 0, "num-partitions": 2, "least-noise": least_noise, "only-secure": only_secure}
        return read_reply(handle(message, Context(1, 1, node, RecordDict(), {**RUN, **keys})).content)

    return send


def test_a_deployed_clients_noise_is_a_secret_of_its_home(train):
    """The same seed, data and round: two homes send different values, far more than training would explain."""
    contents = [train(home)[1] for home in ("one", "two")]
    values = [np.frombuffer(content.data[-4000:], "<f4") for content in contents]
    assert (values[0] != values[1]).all()
    plain = [train(home, **{"privacy.noise": 0.0, "method": "fedavg", "seed": 1})[1] for home in ("three", "four")]
    assert plain[0].data == plain[1].data, "without noise, the homes do not matter"


def test_a_round_that_is_asked_again_has_the_same_bits_even_if_its_state_was_lost(train, tmp_path):
    reply, content = train("one")
    assert train("one")[1].data == content.data, "the stored reply"
    (path,) = (tmp_path / "one").rglob(f"{reply.version}.safetensors")
    path.unlink()
    again, repeated = train("one")
    assert repeated.data == content.data, "trained again"
    assert again.version == reply.version


def test_in_a_simulation_the_noise_comes_from_the_seed(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    assert train("one")[1].data == train("two")[1].data
    assert train("three", seed=1)[1].data != train("one")[1].data


def test_the_secret_does_not_leave_the_client(train, tmp_path):
    reply, content = train("one")
    (identity,) = (tmp_path / "one").rglob("identity")
    secret = identity.read_text()
    assert len(secret) == 32
    assert secret not in repr(reply)
    assert secret.encode() not in content.data


def test_a_node_sends_no_upload_with_less_noise_than_its_operator_demands(train):
    """Neither with a small multiplier, nor with none, nor in a phase whose uploads have no noise."""
    assert train("one", least_noise=1.0)[0].kind is Kind.TRAIN
    for noise in (0.0, 0.5):
        with pytest.raises(ProtocolError, match=r"privacy\.noise: expected at least 1, as this node demands"):
            train("one", least_noise=1.0, **{"privacy.noise": noise})
    with pytest.raises(ProtocolError, match="phase: expected one whose uploads have noise, as this node demands"):
        train("one", least_noise=1.0, method="dmpfl", phase="1")


@pytest.mark.parametrize("kind", list(Kind))
def test_a_node_that_demands_secure_sums_answers_no_other_run(train, kind):
    """Not even how many examples it has; with secure sums it trains, and sends its keys."""
    off = {"privacy.noise": 0.0, "privacy.clip": 0.0, "method": "fedavg"}
    with pytest.raises(ProtocolError, match=r"secure: expected sum, as this node demands \(sepal join --only-secure\)"):
        train("one", kind=kind, only_secure=True, **off)
    if kind is Kind.TRAIN:
        summed = train("two", only_secure=True, clients=3, secure="sum", **off)[1]
        assert len(summed.data) == 64, "two public keys, and no update"


SUMMED = {"privacy.noise": 0.0, "privacy.clip": 0.0, "clients": 3, "secure": "sum", "only_secure": True}


def are_alike(replies):
    return len({(len(c.data), *c.scalars, str(replace(head, version="", metrics={}))) for head, c in replies}) == 1


def test_a_deployed_clients_share_follows_from_a_secret_of_its_round_and_a_simulations_from_the_seed(
    train, tmp_path, monkeypatch
):
    keys = {"clients": 3, "secure": "sum", "privacy.mode": "distributed", "method": "fedavg"}

    def session(home):
        assert len(train(home, **keys)[1].data) == 64, "two public keys, and no update"
        (path,) = (path for path in (tmp_path / home).rglob(VAULT) if path.is_file())
        return _unpacked(path.read_bytes().partition(b"\n")[2])

    first, second = session("one"), session("two")
    assert (first.weight, first.clip, first.noise, first.repeatable) == (1.0, RUN["privacy.clip"], 1.0, False)
    assert first.noise_secret != second.noise_secret
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    third = session("three")
    assert (third.noise_secret, third.repeatable) == (seed_of(RunConfig().seed, "client-00000", 1), True)


def test_no_answer_tells_whether_a_node_is_beyond_the_range_that_the_server_chooses(train):
    """It was an error before any sum; its entries move by more than 1e-2 and by less than 1."""
    assert are_alike([train("one", **SUMMED, **{"secure-range": reach}) for reach in (8.0, 1.0, 1e-2, 1e-6)])


def test_no_answer_tells_whether_training_ends_in_numbers_that_can_be_sent(train):
    """Rates and ranges that the server chooses: the last ones end beyond 1e6, and in no finite numbers."""
    rates = [{"lr": rate, "secure-range": 1e6} for rate in (0.1, 1e6, 1e12, 1e30)]
    assert are_alike([train("one", **SUMMED, **rate) for rate in rates])


def test_no_answer_tells_how_far_an_entry_moves_that_the_server_chooses(train):
    """The bias of one class is at the end of what may be sent; the more of it there is, the further it moves beyond."""
    setup = assemble({**RUN, "privacy.clip": 0.0, "privacy.noise": 0.0, "clients": 3, "secure": "sum"}).setup
    start = {name: array.copy() for name, array in setup.weights.items()}
    bias = max(name for name in start if name.endswith("bias"))
    start[bias][:] = 999_990.0
    content = seal(Payload(dense(start, setup.layout, ValueCoding.FP32)))
    assert are_alike([train("one", **SUMMED, content=content, round=2, lr=rate) for rate in (0.1, 1000.0)])


def test_equal_updates_have_other_noise_after_another_download(train):
    """At so small a rate the update is 0 for both downloads: what is added to them is the noise itself."""
    setup = assemble({**RUN, "lr": 1e-30}).setup

    def noise(scale, **options):
        start = {name: scale * array for name, array in setup.weights.items()}
        content = seal(Payload(dense(start, setup.layout, ValueCoding.FP32)))
        schema = dense_schema(setup.layout)
        got = unseal(train("one", round=2, content=content, lr=1e-30, **options)[1], schema)
        return np.concatenate([(got.tensors[name].dense() - start[name]).ravel() for name in start])

    first, second = noise(np.float32(1)), noise(np.float32(2))
    assert 0.9 < first.std() < 1.1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    again = noise(np.float32(1), views=("received",))
    np.testing.assert_array_equal(first, again, "what the server wants to know of the round does not matter")


OTHERS = [{"local-epochs": 2}, {"batch-size": 3}, {"weight-decay": 1e-20}, {"threads": 2}, {"device": "cpu"}]


@pytest.mark.parametrize("changed", OTHERS)
def test_equal_updates_have_other_noise_under_another_run_config(train, changed):
    """Else two configurations whose updates are equal, as with a trap neuron that stays dead, show that they are."""

    def noise(views, **keys):
        setup = assemble({**RUN, "lr": 1e-30}).setup
        content = seal(Payload(dense(setup.weights, setup.layout, ValueCoding.FP32)))
        sent = train("one", round=2, content=content, views=views, lr=1e-30, **keys)[1]
        got = unseal(sent, dense_schema(setup.layout))
        return np.concatenate([(got.tensors[n].dense() - w).ravel() for n, w in setup.weights.items()])

    first, second = noise(()), noise(("received",), **changed)
    assert 0.9 < second.std() < 1.1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_equal_updates_have_other_noise_after_another_work_that_led_to_the_same_version(train):
    """A version without an upload has the same name under any run config: the server can put one in another's place."""
    sent, versions = [], []
    for views, epochs in ((), 1), (("received",), 2):
        reply = train("one", kind=Kind.ADAPT, keep=True, views=views, lr=1e-30, **{"local-epochs": epochs})[0]
        content = seal(Payload(dense(assemble(RUN).setup.weights, assemble(RUN).setup.layout, ValueCoding.FP32)))
        sent.append(train("one", round=2, base=reply.version, content=content, views=views, lr=1e-30)[1].data)
        versions.append(reply.version)
    assert versions[0] == versions[1]
    first, second = (np.frombuffer(data[-4000:], "<f4") for data in sent)
    assert (first != second).mean() > 0.99


@pytest.mark.parametrize("method", ["fedavg", "fedpse", "fedstc", "dmpfl"])
def test_an_update_that_is_not_finite_gives_noise_and_no_error(method):
    """An error would tell the server that the update overflowed."""
    flat = {**RUN, "method": method, "lr": 1e30, "rounds": 1}
    flat |= {"dmpfl.schedule": "2a:1"} if method == "dmpfl" else {}
    strategy = run_in_process(assemble(flat))
    after = strategy.algorithm.model(strategy.progress.server)
    assert all(np.isfinite(array).all() for array in after.values())
    with pytest.raises(SepalError, match="most clients diverged"):
        run_in_process(assemble({**flat, "privacy.noise": 0.0}))
