"""``sepal join --most-uploads``: what a client has sent is counted over all runs, and bounded."""

from __future__ import annotations

import errno
import re
from threading import Thread

import pytest
from flwr.app import Context, Message, RecordDict
from typer.testing import CliRunner

from sepal.cli.joining import STRICT_NOISE, STRICT_UPLOADS
from sepal.cli.main import app
from sepal.client_app.app import handle
from sepal.client_app.build import Node
from sepal.client_app.upload_count import UploadCount
from sepal.engines.flower import rejoining
from sepal.errors import ConfigError, ModelError, ProtocolError, SepalError, StateError
from sepal.flower.replies import enter_run
from sepal.protocol.messages import Content, Order, read_reply, write_order
from sepal.protocol.payloads import seal
from sepal.protocol.types import ClientInfo, Kind, Plan
from sepal.runs.privacy import epsilon
from sepal.strategies.assembly import assemble
from sepal.training.trainer import Trainer

RUN = {"dataset": "digits", "clients": 2, "partition.subsample": 100, "privacy.clip": 1.0, "privacy.noise": 1.0}
WORDS = r"uploads: expected at most 2 over all runs, as this node demands .*, got a request for one more"


def downloaded(round):
    """The first weights, as a server sends them after round 1."""
    assembly = assemble({**RUN, "method": "fedavg"})
    server = assembly.method.make_server(assembly.setup)
    return seal(server.newcomer(server.init(), ClientInfo("a", 50), Plan(round)))


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A function that asks a client for round 1 of a run, by number, and returns its upload."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path))
    enter_run()

    def send(run, most, partition=0, kind=Kind.TRAIN, round=1, views=("received",), **keys):
        order = Order(f"{run:032x}", kind, Plan(round), views=views)
        content = Content() if round == 1 else downloaded(round)
        message = Message(write_order(order, content), dst_node_id=1, message_type="train")
        node = {"partition-id": partition, "num-partitions": 2, "most-uploads": most}
        context = Context(1, 1, node, RecordDict(), {**RUN, "method": "fedavg", **keys})
        return read_reply(handle(message, context).content)[1].data

    return send


def test_a_server_that_asks_under_many_run_ids_gets_no_more_than_the_operator_allows(train):
    sent = [train(run, 2) for run in (1, 2)]
    for run in (3, 4):
        with pytest.raises(ProtocolError, match=WORDS):
            train(run, 2)
    assert [train(run, 2) for run in (1, 2)] == sent, "what was sent before may be sent again: it has the same bits"
    assert train(3, 3)


def test_a_server_that_has_gone_back_to_a_copy_gets_no_other_upload_of_an_earlier_round(train):
    """The server's count of uploads is as old as its copy, so nobody's ε would have it."""
    sent = [train(1, 0, round=round) for round in (3, 4)]
    with pytest.raises(StateError, match="went-back: expected a round after those it answered"):
        train(1, 0, round=3, views=())
    assert [train(1, 0, round=round) for round in (3, 4)] == sent, "the same bits may be sent again"
    train(1, 0, round=4, views=())  # as after a kill within the round
    train(2, 0, round=3)  # of another run
    free = {"privacy.noise": 0.0, "privacy.clip": 0.0}
    train(3, 0, round=4, **free)
    train(3, 0, round=3, **free)


def test_uploads_with_noise_are_counted_before_a_bound_is_set(train):
    train(1, 0), train(2, 0)
    with pytest.raises(ProtocolError, match=WORDS):
        train(3, 2)


def test_an_upload_that_is_made_again_costs_nothing(train, tmp_path):
    """Its state was lost after it was counted; training gives the same bits."""
    first = train(1, 2)
    for path in (tmp_path / "state").glob("0*/*/*.safetensors"):
        path.unlink()
    assert train(1, 2) == first
    assert train(2, 2)


def test_what_is_no_upload_costs_nothing(train):
    for run in range(3):
        train(run, 2, kind=Kind.ADAPT)
    train(1, 2), train(2, 2)
    assert train(3, 2, partition=1), "another client's uploads are not this one's"


def test_without_noise_uploads_are_bounded_too(train):
    plain = {"privacy.clip": 0.0, "privacy.noise": 0.0}
    train(1, 2, **plain), train(2, 2, **plain)
    with pytest.raises(ProtocolError, match=WORDS):
        train(3, 2, **plain)


def test_a_line_that_a_power_failure_cut_counts(tmp_path):
    path = tmp_path / "uploads" / "sent"
    UploadCount(path).spend("run 1-x")
    path.write_bytes(b"run 1-")
    with pytest.raises(ProtocolError):
        UploadCount(path, 1).spend("run 2-x")
    UploadCount(path, 2).spend("run 2-x")
    assert path.read_bytes() == b"run 1-\nrun 2-x\n"


def test_of_many_at_once_none_is_one_too_many(tmp_path):
    allowance, refused = UploadCount(tmp_path / "uploads" / "a", 5), []

    def spend(number):
        try:
            allowance.spend(f"run {number}-x")
        except ProtocolError:
            refused.append(number)

    threads = [Thread(target=spend, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 15
    assert len(allowance.path.read_bytes().splitlines()) == 5


def test_a_request_that_gives_another_upload_is_charged_again(tmp_path):
    """As on a GPU. The first upload of a request costs nothing beyond the request."""
    allowance = UploadCount(tmp_path / "uploads" / "a", 2)
    for line in ("run request", "run request one", "run request", "run request one", "run request two"):
        allowance.spend(line)
    for line in ("run request three", "run other"):
        with pytest.raises(ProtocolError, match=WORDS):
            allowance.spend(line)


def test_an_upload_is_charged_before_training_and_each_error_after_it_is_the_same(train, monkeypatch, tmp_path):
    def fail(error):
        def fit(*args, **kwargs):
            raise error

        monkeypatch.setattr(Trainer, "fit", fit)

    errors = set()
    for run, error in (
        (1, ModelError("x", "y", "private")),
        (2, ZeroDivisionError()),
        (3, ProtocolError("a", "b", "c")),
        (4, OSError(errno.ENOSPC, "no room")),
    ):
        fail(error)
        with pytest.raises(SepalError) as raised:
            train(run, 4)
        errors.add((type(raised.value), re.sub("code [0-9a-f]{8}", "", str(raised.value))))
    assert len(errors) == 1
    assert "private" not in str(errors)
    (path,) = tmp_path.rglob("sent")
    assert len(path.read_bytes().splitlines()) == 4


def test_a_link_in_place_of_the_count_is_not_followed(tmp_path):
    (tmp_path / "uploads").mkdir()
    (tmp_path / "other").write_text("")
    (tmp_path / "uploads" / "a").symlink_to(tmp_path / "other")
    with pytest.raises(StateError, match="no symbolic link"):
        UploadCount(tmp_path / "uploads" / "a").spend("x")
    assert (tmp_path / "other").read_text() == ""


@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
def test_the_key_is_a_whole_number(value):
    with pytest.raises(ConfigError, match="most-uploads: expected a whole number"):
        Node.of({"most-uploads": value})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--most-uploads", "7", "--no-accuracies", "--least-noise", "1.5"], (7, False, 1.5)),
        (["--privacy", "strict"], (20, False, 5.0)),
        (["--privacy", "strict", "--least-noise", "8", "--most-uploads", "50"], (50, False, 8.0)),
        (["--only-secure"], (0, True, 0.0)),
        (["--only-secure", "--least-noise", "2"], (0, True, 2.0)),
        ([], (0, True, 0.0)),
    ],
)
def test_the_options_of_join_reach_the_node(monkeypatch, tmp_path, options, expected):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path))
    node_configs = []
    monkeypatch.setattr(rejoining, "stay", lambda joined_client: node_configs.append(joined_client.node_config))
    result = CliRunner().invoke(app, ["join", "127.0.0.1:9092", *options])
    assert result.exit_code == 0, result.output
    node = Node.of(node_configs[0])
    assert (node.most_uploads, node.accuracies, node.least_noise) == expected
    assert node.only_secure == ("--only-secure" in options)


def test_what_strict_demands_is_an_epsilon_below_10():
    """As docs/privacy.md says: compared with any other data of the client, over all runs."""
    assert epsilon(STRICT_NOISE / 2, STRICT_UPLOADS, 1e-5) == pytest.approx(9.4, abs=0.05)
    assert epsilon(STRICT_NOISE, STRICT_UPLOADS, 1e-5) == pytest.approx(4.2, abs=0.05)
