"""A client's host: exactly the version that is named, the same answer to the same question, nothing else kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import RecordDict

from sepal.client_app.host import ClientHost
from sepal.client_app.state_store import DiskStateStore
from sepal.errors import DataError, ProtocolError, StateError, WireError
from sepal.protocol.messages import Content, Order, read_reply, version, write_order
from sepal.protocol.payloads import seal
from sepal.protocol.types import ClientInfo, Kind, Payload, Plan, Schema
from sepal.wire.tensors import TensorSpec, whole

RUN = "run-1"


@dataclass(frozen=True)
class State:
    total: npt.NDArray[np.float32]
    steps: int = 0


class Half:
    """Adds what it receives; uploads its total. Predicts by its total."""

    def __init__(self):
        self.calls = []

    def init(self):
        return State(np.zeros(2, np.float32))

    def download_schema(self, state, plan):
        return Schema({"w": TensorSpec((2,))}, {"rate": (float, 0.0, 1.0)})

    def train(self, state, download, plan):
        self.calls.append("train")
        total = state.total + download.tensors["w"].dense()
        return State(total, state.steps + 1), Payload({"w": whole(total)}, {"n": plan.round})

    def adapt(self, state, download, plan):
        self.calls.append("adapt")
        return State(state.total + 100, state.steps)

    def predictor(self, state, download, plan):
        if download is None:
            return lambda x: ("own", float(state.total[0]))
        return lambda x: ("received", float(download.tensors["w"].dense()[0]))


def evaluate(predictor, view) -> Mapping[str, float]:
    predictions.append((view, *predictor(None)))
    return {"correct": 1.0, "examples": 2.0, "loss": 0.5}


predictions: list[tuple[str, str, float]] = []


@pytest.fixture
def host(tmp_path):
    predictions.clear()
    store = DiskStateStore(tmp_path, State)
    return ClientHost(RUN, ClientInfo("a", 10), Half(), store, evaluate, {"weights": "w"}, lambda: {"seconds": 1.0})


def content(value=1.0, rate=0.5) -> Content:
    return seal(Payload({"w": whole(np.full(2, value))}, {"rate": rate}))


def order(kind=Kind.TRAIN, round=1, base="", durable="", views=(), keep=False, run=RUN) -> Order:
    return Order(run, kind, Plan(round), base, durable, views, keep)


def ask(host, order_, content_) -> RecordDict:
    return host.handle(write_order(order_, content_))


def wire(records: RecordDict) -> dict[str, bytes]:
    return {name: record.deflate() for name, record in records.items()}


def test_training_commits_and_names_the_version_it_reached(host):
    reply, upload = read_reply(ask(host, order(), content()))
    assert reply.version == version(1, "", content().digest(), upload.digest())
    assert (reply.run, reply.round, reply.kind, reply.base) == (RUN, 1, Kind.TRAIN, "")
    assert reply.download == content().digest()
    loaded = host.store.load(reply.version)
    assert loaded.state.total.tolist() == [1, 1]
    assert reply.state == "", "digests come back in the closing round only"
    assert upload.scalars == {"n": 1}


def test_an_upload_that_cannot_be_sent_names_the_method_and_the_tensor(host):
    class Wide(Half):
        def train(self, state, download, plan):
            after, upload = super().train(state, download, plan)
            wide = replace(upload.tensors["w"], values=upload.tensors["w"].values.astype(np.float64))
            return after, Payload({"w": wide}, upload.scalars)

    with pytest.raises(WireError) as refused:
        replace(host, algorithm=Wide()).answer(write_order(order(), content()))
    assert str(refused.value) == "w values, in the upload of Wide: expected float32 (2,), got float64 (2,)"


def test_the_next_round_starts_from_the_version_that_is_named(host):
    first = read_reply(ask(host, order(), content(1)))[0].version
    second = read_reply(ask(host, order(round=2, base=first), content(10)))[0].version
    assert host.store.load(second).state.total.tolist() == [11, 11]
    again = read_reply(ask(host, order(round=3, base=first), content(5)))[0].version
    assert host.store.load(again).state.total.tolist() == [6, 6], "the server may be behind: its word counts"
    assert host.store.load(again).state.steps == 2


def test_the_same_order_again_is_answered_from_the_store_byte_for_byte(host):
    views = ("received", "trained")
    first = ask(host, order(views=views), content())
    ask(host, order(round=2), content())
    assert wire(ask(host, order(views=views), content())) == wire(first)
    assert host.algorithm.calls == ["train", "train"]


@pytest.mark.parametrize(
    "other_order",
    [
        (order(round=2), content()),
        (order(), content(2.0)),
        (order(), content(rate=0.25)),
        (order(views=("trained",)), content()),
        (order(Kind.ADAPT, views=("trained",)), content()),
    ],
    ids=["round", "download", "scalar", "views", "kind"],
)
def test_another_order_is_not_a_replay(host, other_order):
    ask(host, order(), content())
    ask(host, *other_order)
    assert len(host.algorithm.calls) == 2


def test_durable_prunes_what_is_older(host):
    names = [""]
    for round in (1, 2, 3):
        durable = names[2] if round == 3 else ""
        names.append(read_reply(ask(host, order(round=round, base=names[-1], durable=durable), content()))[0].version)
    assert host.store.load(names[1]) is None
    assert host.store.load(names[2])
    assert host.store.load(names[3])


def saved(host) -> list[str]:
    return sorted(host.store._named("safetensors"))


def test_adapting_is_scratch_unless_it_is_to_be_kept(host):
    base = read_reply(ask(host, order(), content()))[0].version
    before = saved(host)
    reply, upload = read_reply(ask(host, order(Kind.ADAPT, 2, base), content()))
    assert saved(host) == before
    assert (reply.version, reply.state, upload) == ("", "", Content())
    reply, upload = read_reply(ask(host, order(Kind.ADAPT, 2, base, keep=True), content()))
    assert host.store.load(reply.version).state.total.tolist() == [101, 101]
    assert reply.version == version(2, base, content().digest(), Content().digest())
    assert upload == Content()


def test_the_views_are_those_that_were_asked_for(host):
    ask(host, order(views=("received", "trained", "pooled")), content(3))
    assert predictions == [("received", "received", 3.0), ("trained", "own", 3.0), ("pooled", "own", 3.0)]
    reply = read_reply(ask(host, order(round=2, views=("received",)), content()))[0]
    assert {key for key in reply.metrics if "." in key} == {"received.correct", "received.examples", "received.loss"}


def test_figures_that_diverged_are_left_out(host):
    host = replace(host, evaluate=lambda predictor, view: {"correct": 1.0, "examples": 2.0, "loss": float("nan")})
    host = replace(host, spent=lambda: {"seconds": 1.0, "steps": float("inf"), "joules": -1.0})
    reply = read_reply(ask(host, order(views=("trained",)), content()))[0]
    assert reply.metrics == {"trained.correct": 1.0, "trained.examples": 2.0, "seconds": 1.0}


def test_a_query_says_who_it_is_and_needs_no_state(host):
    records = ask(host, order(Kind.QUERY, 0, base=version(3, "", "", "")), Content())
    reply = read_reply(records)[0]
    assert reply.client == ClientInfo("a", 10)
    assert reply.facts == {"weights": "w", "store": host.store.identity, "versions": ""}
    assert saved(host) == []


def refused(host, order_, content_, kind):
    before = saved(host)
    with pytest.raises(kind) as caught:
        read_reply(ask(host, order_, content_))
    assert saved(host) == before
    assert host.algorithm.calls == []
    return str(caught.value)


def test_an_unknown_base_is_refused(host):
    words = refused(host, order(base=version(7, "", "d", "u")), content(), StateError)
    assert words.startswith("a: base: expected the state of version 7-")
    assert words.endswith("got none: it was lost, or is of another directory")


def test_another_run_is_refused(host):
    assert refused(host, order(run="run-2"), content(), ProtocolError) == "a: run: expected run-1, got run-2"
    with pytest.raises(ProtocolError):
        read_reply(ask(host, order(Kind.QUERY, run="run-2"), Content()))


@pytest.mark.parametrize(
    ("content_", "words"),
    [
        (Content(), "scalars.rate"),
        (content(rate=2.0), "at most 1.0"),
        (seal(Payload({"v": whole(np.ones(2))}, {"rate": 0.5})), "v"),
        (seal(Payload({"w": whole(np.ones(3))}, {"rate": 0.5})), "w"),
        (Content(b"junk", {"rate": 0.5}), "a: "),
    ],
)
def test_a_download_against_the_contract_is_refused(host, content_, words):
    from sepal.errors import SepalError

    assert words in refused(host, order(), content_, SepalError)


def test_an_error_of_the_method_travels_by_its_type_and_commits_nothing(host):
    def fail(state, download, plan):
        raise DataError("labels", "at most 9", 11)

    host.algorithm.train = fail
    assert refused(host, order(), content(), DataError) == "a: labels: expected at most 9, got 11"


def test_a_bug_is_raised_and_not_dressed_up(host):
    def fail(state, download, plan):
        raise ZeroDivisionError

    host.algorithm.train = fail
    with pytest.raises(ZeroDivisionError):
        ask(host, order(), content())
    assert saved(host) == []


def test_junk_is_answered_with_an_error(host):
    with pytest.raises(ProtocolError, match="a: message: expected a record named sepal"):
        read_reply(host.handle(RecordDict()))


def test_the_kept_view_is_the_model_before_the_last_download_is_taken(host):
    """Trained once from 1: the total is 1. The closing round's download is 5, and closing adds 100."""
    first, _ = read_reply(ask(host, order(), content()))
    predictions.clear()
    views = ("received", "trained", "kept")
    kept_order = order(Kind.ADAPT, 2, first.version, views=views, keep=True)
    reply, _ = read_reply(ask(host, kept_order, content(5.0)))
    assert predictions == [("received", "received", 5.0), ("kept", "own", 1.0), ("trained", "own", 101.0)]
    assert reply.metrics["kept.correct"] == 1.0


def test_a_client_without_a_model_has_no_kept_view(host, monkeypatch):
    monkeypatch.setattr(Half, "predictor", lambda self, state, download, plan: None)
    reply, _ = read_reply(ask(host, order(Kind.ADAPT, 2, views=("kept",), keep=True), content(5.0)))
    assert not [key for key in reply.metrics if key.startswith("kept")]


@pytest.mark.parametrize("kind", [Kind.TRAIN, Kind.ADAPT])
def test_a_server_cannot_wipe_states_by_a_durable_that_is_newer_than_base(host, kind):
    names = [""]
    for round in (1, 2, 3):
        names.append(read_reply(ask(host, order(round=round, base=names[-1]), content()))[0].version)
    future = version(10**8, "", "x", "y")
    for durable in (names[3], future):
        with pytest.raises(ProtocolError, match="durable: expected a version no newer than base"):
            read_reply(ask(host, order(kind, 4, names[2], durable, keep=True), content()))
    with pytest.raises(ProtocolError, match="durable: expected a version no newer than base, none"):
        read_reply(ask(host, order(kind, 4, "", future, keep=True), content()))
    assert all(host.store.load(name) for name in names[1:])


@pytest.mark.parametrize(("views", "calls"), [(("received", "kept"), []), (("received", "trained"), ["adapt"])])
def test_nobody_trains_for_an_evaluation_that_needs_no_training(host, views, calls):
    ask(host, order(Kind.ADAPT, views=views), content())
    assert host.algorithm.calls == calls
