"""Who is refused, over real sockets with TLS and node keys, and what a person is told."""

from __future__ import annotations

import functools
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from flwr.common import constant
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from sepal.engines.flower import warm
from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.commands import supernode_command
from sepal.engines.flower.credentials import NodeCredentials, ServerCredentials
from sepal.engines.flower.engine import COMPLETED
from sepal.engines.flower.node_registry import NodeRegistry
from sepal.engines.flower.probe import NOT_REGISTERED, examine
from sepal.engines.flower.processes import free_port, healthy
from sepal.engines.flower.rejoining import wait_until_welcome
from sepal.errors import ConfigError
from sepal.flower import fleet
from sepal.flower.admission import MOST_CALL, MOST_STRANGERS
from sepal.flower.versions import speaks_http
from tests.e2e.attacking_client import HONEST

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Another authority's set: its client trusts another CA, or with ours copied in has a key that nobody knows."""
    directory = tmp_path_factory.mktemp("others")
    make_certificates(directory, nodes=["stranger", "lost"])
    return directory


def known_key_file(others: Path, certs: Path) -> NodeCredentials:
    (others / "nodes" / "stranger" / "ca.crt").write_bytes((certs / "ca" / "ca.crt").read_bytes())
    return NodeCredentials.of(others, "stranger")


def words(address: str, credentials: NodeCredentials | None) -> list[str]:
    return [f"{f.check}: {f.words}" for f in examine(address, credentials) if not f.good]


# Flower's own client: what the server refuses whatever a client does not check


@pytest.fixture(scope="module")
def supernodes(server, address, certs, others):
    """Flower's SuperNode in all the wrong ways, at once; each ends by itself."""
    unknown, foreign = known_key_file(others, certs), NodeCredentials.of(others, "lost")
    ways = {
        "plain text": ["--insecure"],
        "unregistered key": unknown.options(),
        "no key": ["--root-certificates", str(unknown.authority)],
        "wrong CA": foreign.options(),
    }
    started = {}
    for way, options in ways.items():
        retries = ["--max-retries", "1", "--port", str(free_port())]
        started[way] = server.spawn(
            "flower-supernode", *options, "--superlink", address, *retries, log=f"{way.replace(' ', '-')}.log"
        )
    return {way: (process.wait(200), way) for way, process in started.items()}


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("plain text", "Failed to initialize the connection"),
        ("unregistered key", "[code: 2004]"),
        ("no key", "[code: 2001]"),
        ("wrong CA", "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_a_supernode_without_the_right_key_and_certificate_does_not_get_in(way, reason, server, supernodes):
    code, _ = supernodes[way]
    log = (server.home / f"{way.replace(' ', '-')}.log").read_text()
    assert code == 1, log[-2000:]
    assert reason in log
    assert "SuperNode ID" not in log


# What a person is told


def test_a_plain_text_client_is_told_that_the_server_speaks_tls(address):
    assert words(address, None) == ["TLS: the server speaks TLS: give the client its --certs"]


@pytest.fixture
def plain_text():
    """The address of a gRPC server without TLS that has nothing to do with Flower."""
    plain = grpc.server(futures.ThreadPoolExecutor(1))
    port = plain.add_insecure_port("127.0.0.1:0")
    plain.start()
    yield f"127.0.0.1:{port}"
    plain.stop(None)


def test_a_server_that_is_not_flowers_is_named(plain_text):
    findings = list(examine(plain_text, None))
    if speaks_http():
        assert findings[-1].check == "version"
        assert "the server speaks gRPC (Flower 1.39), Flower 1.4" in findings[-1].words
        return
    assert findings[-1].check == "API"
    assert "not the Fleet API of Flower 1.39" in findings[-1].words


def test_a_client_with_certificates_refuses_a_plain_text_server(plain_text, certs):
    lines = words(plain_text, NodeCredentials.of(certs, HONEST))
    assert lines == ["TLS: the server speaks plain text: start it with --certs"]


def test_the_wrong_authority_is_named(address, others):
    (line,) = words(address, NodeCredentials.of(others, "lost"))
    assert line.startswith("certificate: of another authority than ")


def test_an_unregistered_key_is_named(address, others, certs):
    credentials = known_key_file(others, certs)
    assert words(address, credentials) == [f"key: {NOT_REGISTERED}"]
    with pytest.raises(ConfigError, match="key: expected one with which a client can join, got not registered"):
        wait_until_welcome(address, credentials, patience=0)


def test_a_registered_key_is_welcome(address, certs):
    findings = list(examine(address, NodeCredentials.of(certs, HONEST)))
    assert all(finding.good for finding in findings), findings
    assert (findings[-1].check, findings[-1].words) == ("key", "registered")


@contextmanager
def another_server(directory: Path) -> Iterator[int]:
    """A gRPC server with the certificate in ``directory``; its port on all addresses."""
    files = [(directory / "server" / name).read_bytes() for name in ("server.key", "server.pem", "ca.crt")]
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_secure_port("0.0.0.0:0", grpc.ssl_server_credentials([(files[0], files[1])], files[2]))
    server.start()
    try:
        yield port
    finally:
        server.stop(None)


def test_an_expired_certificate_is_refused_and_named(tmp_path):
    """A gRPC server whose certificate ended 600 days ago; its authority is still good."""
    make_certificates(tmp_path, nodes=["site"], days=30, now=datetime.now(UTC) - timedelta(days=630))
    with another_server(tmp_path) as port:
        (line,) = words(f"localhost:{port}", NodeCredentials.of(tmp_path, "site"))
        assert line.startswith("certificate: expired on ")
        trust = grpc.ssl_channel_credentials((tmp_path / "ca" / "ca.crt").read_bytes())
        channel = grpc.secure_channel(f"localhost:{port}", trust)
        with channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/flwr.proto.Fleet/PullMessages")(b"", timeout=10)
        assert "CERTIFICATE_VERIFY_FAILED" in refused.value.details()


@pytest.mark.parametrize("days", [-1, 10], ids=["expired", "soon"])
def test_a_client_whose_copy_of_the_authority_ends_is_told_which_file_to_replace(days, tmp_path):
    """The server has a certificate of the renewed authority, which this client does not have yet."""
    make_certificates(tmp_path, nodes=["site"], authority_days=365 + days, now=datetime.now(UTC) - timedelta(days=365))
    file = tmp_path / "nodes" / "site" / "ca.crt"
    before = file.read_bytes()
    make_certificates(tmp_path, renew_authority=True)
    file.write_bytes(before)
    with another_server(tmp_path) as port:
        found = [f for f in examine(f"localhost:{port}", NodeCredentials.of(tmp_path, "site")) if "ca.crt" in f.words]
    assert [finding.good for finding in found] == [days > 0]
    assert found[0].words.startswith(f"{file} {'expires' if days > 0 else 'expired'} on ")
    assert found[0].words.endswith("(`sepal certs --renew-ca`), and start this client again")


def test_a_certificate_that_is_not_valid_yet_is_named(tmp_path):
    make_certificates(tmp_path, nodes=["site"], now=datetime.now(UTC) + timedelta(days=2))
    with another_server(tmp_path) as port:
        (line,) = words(f"localhost:{port}", NodeCredentials.of(tmp_path, "site"))
    assert line.startswith("certificate: valid from ")
    assert line.endswith(": set the clock")


def test_a_certificate_for_other_addresses_is_named(tmp_path):
    make_certificates(tmp_path, nodes=["site"])
    with another_server(tmp_path) as port:
        (line,) = words(f"127.0.0.2:{port}", NodeCredentials.of(tmp_path, "site"))
    assert line.startswith("certificate: for localhost, 127.0.0.1, ::1, not for 127.0.0.2: run `sepal certs --host")


@pytest.mark.parametrize(("seconds", "accepted"), [(-400, ("399", "400", "401")), (60, ("59", "60", "61"))])
def test_a_clock_that_is_off_is_measured_and_named(address, certs, monkeypatch, seconds, accepted):
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(seconds=seconds)

    monkeypatch.setattr(fleet, "datetime", Clock)
    (line,) = words(address, NodeCredentials.of(certs, HONEST))
    assert line.removeprefix("clock: ").partition(".")[0] in accepted
    side = "behind" if seconds < 0 else "ahead of"
    assert line.endswith(f" s {side} the server's; it may be 5 s ahead and 305 s behind: set it")


def test_join_without_certificates_ends_in_one_line(address, tmp_path):
    command = [sys.executable, "-m", "sepal.cli", "join", address]
    environment = {**os.environ, "SEPAL_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 2
    lines = completed.stderr.strip().splitlines()
    assert lines[0] == f"sepal: preparing to join {address}"
    assert lines[1].startswith("sepal: warning: without --certs nothing is encrypted")
    assert lines[-1].startswith(f"sepal: {address}: TLS: expected one with which a client can join, got the server")


def test_a_key_counts_from_when_it_is_put_there_until_it_is_taken_away(server, address, certs):
    make_certificates(certs, nodes=["late"])
    credentials = NodeCredentials.of(certs, "late")
    assert words(address, credentials) == [f"key: {NOT_REGISTERED}"]
    server.registry.tick()
    assert words(address, credentials) == []
    (certs / "server" / "nodes" / "late.pub").unlink()
    server.registry.sync()
    assert words(address, credentials) == [], "a file that is being replaced is missing for a moment"
    server.registry.sync()
    assert words(address, credentials) == [f"key: {NOT_REGISTERED}"]


def test_a_removed_key_is_cut_off_also_where_node_ids_were_lost(server, address, certs, tmp_path):
    """As a container that is made anew beside an old database: Flower lists the nodes with their keys."""
    make_certificates(certs, nodes=["kept", "removed"])
    server.registry.sync()
    lines = []
    fresh = NodeRegistry(
        ServerCredentials.of(certs / "server"), server.environment, tmp_path / "nodes.json", lines.append
    )
    fresh.sync()
    assert words(address, NodeCredentials.of(certs, "removed")) == []
    (certs / "server" / "nodes" / "removed.pub").unlink()
    fresh.sync()
    fresh.sync()
    assert words(address, NodeCredentials.of(certs, "removed")) == [f"key: {NOT_REGISTERED}"]
    assert words(address, NodeCredentials.of(certs, "kept")) == []
    assert [line.partition(" ")[0] for line in lines] == ["unregistered:"]


# A client's own processes


def test_a_resident_process_and_its_supernode_speak_tls_and_it_shows_its_secret(server, address, certs, tmp_path):
    """Where a SuperNode has a certificate of its own; `sepal join` has none, and listens on 127.0.0.1 alone."""
    make_certificates(certs, nodes=["resident"])
    server.registry.sync()
    server_certs, port = certs / "server", free_port()
    files = {"ssl-ca-certfile": "ca.crt", "ssl-certfile": "server.pem", "ssl-keyfile": "server.key"}
    tls = [f"--{option}={server_certs / file}" for option, file in files.items()]
    node = {"partition-id": 0, "num-partitions": 1, "name": "resident"}
    options = supernode_command(address, port, node, NodeCredentials.of(certs, "resident"))[1:]
    process = server.spawn(sys.executable, "-P", "-m", "sepal.engines.flower.node", *options, *tls, log="resident.log")
    try:
        keys = {"method": "fedavg", "dataset": "digits", "clients": 1, "rounds": 1, "evaluate-every": 0}
        keys |= {"partition.subsample": 120, "out": str(tmp_path), "name": "resident"}
        run = server.run_app(write_app(tmp_path / "app")[0].parent, keys, timeout=240)
        assert run.status == COMPLETED, "\n".join(run.log[-80:])
        assert "client process ready" in (server.home / "resident.log").read_text()
        assert not healthy(port), "plain text is not taken"
        for secret in (None, bytes(32)):
            stranger = warm.connect(f"localhost:{port}", False, (server_certs / "ca.crt").read_bytes(), secret)
            stranger._retry_invoker = None  # it would interrupt this process
            with pytest.raises(httpx.HTTPStatusError, match="401 Unauthorized"):
                stranger.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
            stranger.close()
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.skipif(speaks_http(), reason="gRPC, of Flower 1.39")
@pytest.mark.parametrize("caller", ["no key", "unknown key"])
def test_a_stranger_fills_no_memory_of_the_server(address, certs, others, caller):
    """gRPC takes a whole message before Flower asks for a key, and Flower's limit for a message is 2 GiB.

    A call whose message never comes shows whether the server waits for it, which a measurement of memory shows only
    where the server is slow enough: sixty calls of 12 MiB took it 50 to 510 MiB.
    """
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    if caller == "unknown key":
        key = serialization.load_ssh_private_key(known_key_file(others, certs).key.read_bytes(), None)
        stamp = datetime.now(UTC).isoformat()
        values = {constant.PUBLIC_KEY_HEADER: public_key_to_bytes(key.public_key()), constant.TIMESTAMP_HEADER: stamp}
        metadata = (*values.items(), (constant.SIGNATURE_HEADER, sign_message(key, stamp.encode("ascii"))))
    trust = grpc.ssl_channel_credentials((certs / "ca" / "ca.crt").read_bytes())
    end = threading.Event()

    def message_that_never_comes():
        end.wait(60)
        yield from ()

    with grpc.secure_channel(address, trust) as channel:
        call = functools.partial(channel.stream_unary, request_serializer=bytes)
        push, introduce = call("/flwr.proto.Fleet/PushObject"), call("/flwr.proto.Fleet/ActivateNode")
        try:
            with pytest.raises(grpc.RpcError) as refused:
                push(message_that_never_comes(), metadata=metadata, timeout=30)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED, "is not waited for"
            waiting = [introduce.future(message_that_never_comes(), metadata=metadata, timeout=60) for _ in range(5)]
            answered: queue.Queue[grpc.Future] = queue.Queue()
            for introduction in waiting:
                introduction.add_done_callback(answered.put)
            codes = {answered.get(timeout=30).code() for _ in range(5 - MOST_STRANGERS)}
            assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}, "so many introductions are waited for, and no more"
        finally:
            end.set()
        assert all(introduction.code() != grpc.StatusCode.OK for introduction in waiting), "waits for the end"
        # One field of bytes with an unknown number, which a parser takes in and nobody looks at.
        body = b"\xa2\x06" + varint(MOST_CALL) + bytes(MOST_CALL)
        with pytest.raises(grpc.RpcError, match=f"larger than max .* vs. {MOST_CALL}"):
            introduce(iter([body]), metadata=metadata, timeout=60)


def varint(number: int) -> bytes:
    """Return a protobuf varint."""
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])
