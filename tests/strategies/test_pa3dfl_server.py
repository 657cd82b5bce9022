"""Pa3dFL: widths on both sides, and what the server holds."""

from dataclasses import replace

import numpy as np
import pytest

from sepal import models
from sepal.client_app.build import Node
from sepal.engines.in_process import run_in_process, worker
from sepal.method import ClientInfo
from sepal.method.interface import resolve
from sepal.method.tensors import dense_specs
from sepal.protocol.payloads import seal
from sepal.server.downloads import most_message_bytes
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest, digest_arrays
from sepal.strategies.assembly import assemble
from sepal.strategies.pa3dfl.contract import DecomposedShape
from sepal.strategies.pa3dfl.server import Pa3dFLServer
from sepal.wire import decode
from tests.strategies.baselines import Sent
from tests.strategies.pa3dfl import CAPACITIES, FLAT, Federation, arrays
from tests.strategies.recorded_messages import bytes_of, record_messages

# -------------------------------------------------------------------------------------------------------------- widths


def test_both_sides_compute_the_width_and_only_the_clients_width_travels():
    federation = Federation(CAPACITIES)
    state, sizes = federation.first(), []
    for number, width in enumerate((1, 1 / 2, 1 / 16, 11 / 16)):
        client = federation.hosts[number].algorithm
        assert client.shape.width == width
        payload = federation.server.download(state, client.trainer.client, federation.plan)
        layout = DecomposedShape(federation.assembly.setup, width).shared
        assert {name: tensor.shape for name, tensor in payload.tensors.items()} == {p.name: p.shape for p in layout}
        sizes.append(len(seal(payload).data))
    assert sizes[2] < sizes[1] < sizes[3] < sizes[0]


def test_the_share_of_the_smallest_width_is_that_of_table_2():
    """CIFAR-100's CNN with 10 classes: 21,043 of 797,962 parameters at width 1/16, both heads counted: .0264."""
    federation = Federation([1.0])
    setup = federation.assembly.setup
    plain = models.build("cnn-cifar100-pa3dfl", (3, 32, 32), 10)
    paper_task = replace(
        setup,
        layout=models.layout(plain),
        make=lambda: models.build("cnn-cifar100-pa3dfl", (3, 32, 32), 10),
        input_shape=(3, 32, 32),
    )
    assert DecomposedShape.of(paper_task, 1 / 256).share == pytest.approx(21_043 / 797_962, abs=1e-9)


def test_an_honest_upload_is_within_the_limit_also_where_it_is_more_than_twice_the_model():
    """Short kernels and a small p_min: har-cnn of 36,806 entries at p_min = 1/64 sends 93,460 at width 1."""
    federation = Federation([1.0], **{"pa3dfl.least": 1 / 64})
    plain = models.build("har-cnn", (9, 128), 6)
    setup = replace(
        federation.assembly.setup,
        layout=models.layout(plain),
        make=lambda: models.build("har-cnn", (9, 128), 6),
        input_shape=(9, 128),
    )
    sent = sum(part.size for part in DecomposedShape.of(setup, 1.0).shared)
    assert sent > 2 * sum(part.size for part in setup.layout)
    assert most_message_bytes(setup) == 2 * 4 * sent + (64 << 10)


def test_multiply_adds_count_a_recovered_weight_once_a_batch():
    """digits-cnn at width 1, forward: conv1 9·16·8² = 9,216, conv2 9·16·32·4² = 73,728 an example; weights are put
    together at 9·9·16·1 = 1,296 and 9·16·32·16 = 73,728 a batch. fc1 (R1 = R2 = 2): inner 16·2·128 = 4,096, outer
    16·2·2 = 64; heads 2·320. Backward is twice that, without the gradients of the image (9,216), of the fixed head's
    weight (320) and of the local head's detached features (320). 48 examples make 3 batches of 16.
    """
    example = 3 * (9_216 + 73_728 + 4_096 + 64 + 640) - 9_216 - 640
    federation = Federation([1.0], **{"local-epochs": 1, "batch-size": 16})
    trainer = federation.hosts[0].algorithm.trainer
    federation.trained(federation.first(), 0)
    expected = len(trainer.y) * example + 3 * 3 * (1_296 + 73_728)
    assert len(trainer.y) == 48
    assert trainer.spent()["multiply-adds"] == pytest.approx(expected, rel=1e-9)


def mixed(monkeypatch):
    monkeypatch.setattr(worker, "Node", lambda number, of: Node(number, of, capacity=CAPACITIES[number % 4]))


class Stop(BaseException):
    pass


class Watch:
    """Keeps the rounds' lines; stops where it is told to."""

    def __init__(self, stop=0):
        self.stop, self.lines = stop, []

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.lines.append(line)
        if record.round == self.stop:
            raise Stop

    def closed(self, progress, line):
        pass


def test_mixed_capacities_run_to_the_end_and_a_killed_run_continues_to_the_same_bits(monkeypatch, tmp_path):
    mixed(monkeypatch)
    assembly, watch = assemble({**FLAT, "clients-per-round": 3}), Watch()
    whole = run_in_process(assembly, observers=[watch])
    clients = sorted(watch.lines[-1]["clients"], key=lambda client: client["name"])
    metrics = [client["metrics"] for client in clients]
    assert [figures["width"] for figures in metrics] == [1, 0.5, 1 / 16, 11 / 16]
    shares = [figures["share"] for figures in metrics]
    assert shares[2] < shares[1] < shares[3] < shares[0]
    assert all(0 <= figures["alpha"] <= 1 for figures in metrics)
    assert {"hypernetwork.absorbed", "hypernetwork.h", "hypernetwork.attended"} <= set(watch.lines[0]["method"])
    state = resolve(assembly.method.server_state)
    for stop in (1, 3):
        where = {"state_dir": tmp_path / f"{stop}" / "clients"}
        with pytest.raises(Stop):
            run_in_process(
                assembly, store=DiskRunStore(tmp_path / f"{stop}" / "s", state), observers=[Watch(stop)], **where
            )
        resumed = run_in_process(assembly, store=DiskRunStore(tmp_path / f"{stop}" / "s", state), **where)
        assert digest(resumed.progress.server) == digest(whole.progress.server)
        assert resumed.report.digests == whole.report.digests


# ----------------------------------------------------------------------------------------------- what the server holds


def test_embeddings_and_hypernetwork_appear_in_no_message_of_a_whole_run(monkeypatch):
    recorded, states, aggregate = record_messages(monkeypatch), [], Pa3dFLServer.aggregate

    def kept(server, state, uploads, plan):
        after = aggregate(server, state, uploads, plan)
        states.extend([state, after[0]])
        return after

    monkeypatch.setattr(Pa3dFLServer, "aggregate", kept)
    strategy = run_in_process(assemble({**FLAT, "evaluate-every": 1}))
    messages = b"".join(bytes_of(part) for pair in recorded for part in pair)
    general = strategy.progress.server.general["body.conv1.theta_u"].ravel()
    assert general[:4].tobytes() in messages, "what does travel is found in this way"
    networks = [state.hypernetwork for state in states]
    assert len(networks) == 2 * strategy.setup.config.rounds
    # a personal tensor at the start is its decoder's bias
    secrets = [array for hypernetwork in networks for array in hypernetwork.embeddings.values()]
    secrets += [
        array for hypernetwork in networks for name, array in hypernetwork.weights.items() if not name.endswith(".bias")
    ]
    assert len(secrets) > 100
    for array in (array.ravel() for array in secrets if array.size > 3 and np.ptp(array) > 0):
        for begin in (0, array.size // 2 - 2, array.size - 4):
            assert array[begin:][:4].tobytes() not in messages


def test_a_download_holds_general_and_personal_tensors_alone_and_the_digest_covers_the_rest():
    strategy = run_in_process(assemble(FLAT))
    server, state = strategy.algorithm, strategy.progress.server
    assert len(state.hypernetwork.embeddings) == 4
    plan = server.plan(5)
    assert not plan.scalars
    for name in state.hypernetwork.embeddings:
        for capacity in CAPACITIES:
            content = seal(server.download(state, ClientInfo(name, 10, capacity), plan))
            assert not content.scalars
            specs = dense_specs(DecomposedShape.of(strategy.setup, capacity).shared)
            assert list(decode(content.data, specs)) == [p.name for p in server.full.shared]
    contents = server.model(state)
    network = {f"hypernetwork/{name}" for name in state.hypernetwork.weights}
    assert network | {f"embedding/{name}" for name in state.hypernetwork.embeddings} < set(contents)
    for changed in ("embedding/client-00000", "hypernetwork/log-temperature", "body.conv1.theta_u"):
        assert digest_arrays({**contents, changed: contents[changed] + 1}) != digest_arrays(dict(contents))


def test_who_joins_late_has_an_embedding_from_its_name_and_takes_part_at_once():
    federation = Federation(CAPACITIES[:3])
    server = federation.server
    state = server.joined(server.init(), [host.info for host in federation.hosts[:2]])
    first = Sent(federation.trained(state, number) for number in (0, 1))
    state, _ = server.aggregate(state, first, federation.plan)
    late = federation.hosts[2].info
    assert late.name not in state.hypernetwork.embeddings
    state = server.joined(state, [late])
    joined = state.hypernetwork.embeddings[late.name]
    upload = federation.trained(state, 2)
    after, metrics = server.aggregate(state, Sent([upload]), federation.plan)
    assert metrics["hypernetwork.norm"] > 0
    step = after.hypernetwork.embeddings[late.name] - joined
    assert 0 < np.abs(step).max() < 0.5
    again = federation.download(state, 2), federation.download(state, 2)
    assert digest_arrays(arrays(again[0])) == digest_arrays(arrays(again[1]))


def test_a_novel_client_has_an_embedding_and_a_received_model_in_the_closing_round(monkeypatch):
    mixed(monkeypatch)
    watch = Watch()
    strategy = run_in_process(assemble({**FLAT, "rounds": 2, "novel-clients": 0.25}), observers=[watch])
    (novel,) = strategy.progress.novel
    state = strategy.progress.server.hypernetwork
    assert len(state.embeddings) == 4
    drawn = strategy.algorithm.hypernetwork.join(replace(state, embeddings={}), [novel]).embeddings[novel]
    np.testing.assert_array_equal(state.embeddings[novel], drawn)  # it never trained
    figures = {client["name"]: client for client in watch.lines[-1]["clients"]}
    assert figures[novel]["received"] is not None
    assert figures[novel]["trained"] is not None


def test_the_server_makes_one_model_for_each_width():
    """Capacities within a step of the widths share one; a roster of a thousand makes sixteen at most."""
    federation = Federation(CAPACITIES)
    first, again, wider = (ClientInfo("c", 1, capacity) for capacity in (0.25, 0.3, 0.5))  # widths 1/2, 1/2, 11/16
    assert federation.server.shape(first) is federation.server.shape(again)
    assert federation.server.shape(wider).width == 11 / 16


def test_the_server_reads_the_uploads_of_a_step_one_at_a_time(monkeypatch):
    """When the step has taken n clients' tensors, n uploads were read for it."""
    federation = Federation(CAPACITIES)
    server, state = federation.server, federation.first()
    uploads = [federation.trained(state, number) for number in range(4)]
    read, counts, step = [], [], server.hypernetwork.step

    class Counted(Sent):
        def __iter__(self):
            for upload in super().__iter__():
                read.append(upload.client.name)
                yield upload

    def watched(before, new, rounded):
        read.clear()

        def counted_uploads():
            for entry in new:
                counts.append(len(read))
                yield entry

        return step(before, counted_uploads(), rounded)

    monkeypatch.setattr(server.hypernetwork, "step", watched)
    sent = Counted(uploads)
    monkeypatch.setattr(Counted, "clients", [upload.client for upload in uploads])
    server.aggregate(state, sent, federation.plan)
    assert counts == [1, 2, 3, 4]


def test_nobody_attends_an_evicted_client():
    """What the others get is as if it had never joined; a name that the server does not know changes nothing."""
    federation = Federation(CAPACITIES)
    server, state = federation.server, federation.first()
    never = server.joined(server.init(), [federation.hosts[number].info for number in (0, 2, 3)])
    left = server.evicted(state, [federation.hosts[1].info.name])
    assert digest(left) == digest(never) != digest(state)
    assert digest(server.evicted(state, ["stranger"])) == digest(state)
    downloads = [server.download(s, federation.hosts[0].info, federation.plan) for s in (left, never, state)]
    got = [digest_arrays(arrays(payload)) for payload in downloads]
    assert got[0] == got[1] != got[2]


def test_a_round_without_uploads_changes_nothing():
    server = Federation([1.0]).server
    state = server.init()
    assert server.aggregate(state, Sent(), server.plan(1)) == (state, {})
