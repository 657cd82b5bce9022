"""Every method as a plain Flower Strategy: the bits of the in-process engine, what is refused by name, and errors."""

from __future__ import annotations

import copy
import logging
import re

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy
from torch.utils.data import DataLoader

from sepal.client_app.plain import STORE, ContextStore, wrap_client
from sepal.client_app.state_store import Stored
from sepal.config import RunConfig
from sepal.config.base import flat_keys
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, ProtocolError, RosterError, RoundError
from sepal.protocol.messages import Content, Reply, write_error
from sepal.protocol.types import ClientInfo, Kind
from sepal.server.roster import PATIENCE
from sepal.server.round import Round
from sepal.storage.serialize import digest
from sepal.strategies import registry
from sepal.strategies.baselines.fedavg import FedAvg
from sepal.strategies.baselines.fedbuff import FedBuff
from sepal.strategies.baselines.fedper import FedPer
from sepal.strategies.fedpse import FedPSE
from sepal.strategies.plain import KEYS
from sepal.study.method_checks.cases import RoundLog
from tests.contract.plain_flower import CLIENTS, ROUNDS, ContextGrid, Net, Twin, arrays, contexts, load
from tests.methods import CASES

CHOOSING = {"fedbuff"}  # decides itself who trains, and is refused
PRIVATE = {name for name, keys in CASES.items() if "privacy.clip" in keys}  # refused by name, see below


class Versions(RoundLog):
    """Keeps the server's state and the clients' versions after the last round but the closing one."""

    def round(self, progress, record, line):
        super().round(progress, record, line)
        if record.round <= ROUNDS:
            self.after = digest(progress.server), dict(progress.versions)


def closing_digests(strategy, grid):
    """Return the digests of the clients' states after a closing round, which plain Flower does without."""
    run = strategy.run
    round = Round(run.inputs(ROUNDS + 1, (), {}), run.setup, run.store, local=False)

    def deliver(nodes, compose, take):
        for node in nodes:
            take(node, grid.answer(Message(compose(node)[1], node, MessageType.EVALUATE)).content)
        return {}

    round.send(strategy._contact.connections.nodes, deliver)
    return {name: reply.state for name, reply in round.record().replies.items()}


@pytest.mark.parametrize("case", [name for name in CASES if name not in PRIVATE and name not in CHOOSING])
def test_three_rounds_have_the_bits_of_the_in_process_engine(case):
    """A version's name is a digest of all downloads and uploads on the way to it; a state has what is not sent."""
    twin, versions = Twin(case), Versions()
    ran = run_in_process(twin.assembly, observers=[versions])
    strategy, grid = twin.strategy(), ContextGrid(twin.app(), contexts())
    result = strategy.start(grid, twin.arrays, num_rounds=ROUNDS)
    state = strategy.run.state
    assert (digest(state.server), dict(state.versions)) == versions.after
    assert len(result.train_metrics_clientapp) == ROUNDS
    assert closing_digests(strategy, grid) == dict(ran.report.digests)


def started(method=FedAvg, app=None, *, rounds=2, nodes=None, with_arrays=None, start=(), **keys):
    strategy = method(Net, **{"lr": 0.1, **keys})
    grid = ContextGrid(app or wrap_client(method, Net, load), nodes or contexts())
    result = strategy.start(grid, with_arrays or arrays(), num_rounds=rounds, **dict(start))
    return strategy, grid, result


def test_every_method_is_a_flower_strategy():
    assert all(isinstance(registry.get(name)(Net), Strategy) for name in registry.names())


def test_metrics_arrays_and_a_line_a_round_are_what_flowers_users_expect(caplog):
    caplog.set_level(logging.INFO)
    _, grid, result = started(FedPSE, keep=0.3)
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == [1, 2]
    assert {"received-accuracy", "trained-accuracy", "bytes-up", "clients"} <= set(result.train_metrics_clientapp[2])
    assert 0 <= result.evaluate_metrics_clientapp[2]["accuracy"] <= 1
    Net().load_state_dict(result.arrays.to_torch_state_dict())  # num_batches_tracked and all
    lines = [record.message for record in caplog.records if record.name == "flwr"]
    assert [line.split(":")[0] for line in lines if line.startswith("round ")] == ["round 1/2", "round 2/2"]
    assert set(grid.kinds) == {"query", "train", "evaluate"}
    assert grid.kinds.count("query") == CLIENTS


def test_evaluation_follows_the_fractions_and_trains_nobody():
    _, grid, result = started(FedPer, fraction_train=0.5, fraction_evaluate=0.25)
    assert (grid.kinds.count("train"), grid.kinds.count("evaluate")) == (2 * 2, 2 * 1)
    assert result.evaluate_metrics_clientapp[1]["clients"] == 1
    assert not started(fraction_evaluate=0.0)[2].evaluate_metrics_clientapp


def test_keys_of_the_users_own_are_not_fatal_and_are_named(caplog):
    caplog.set_level(logging.INFO)
    run_config = {"num-server-rounds": 3, "learning-rate": 0.5, "local-epochs": 2, "clients": "all of them"}
    strategy, _, _ = started(run_config=run_config, rounds=1, start={"train_config": ConfigRecord({"lr": 0.25})})
    assert (strategy.run.config.local_epochs, strategy.run.config.lr) == (2, 0.25)
    named = "run config: num-server-rounds, learning-rate, clients: your own keys, which Sepal does not read"
    assert named in caplog.messages


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"kep": 0.1}, "fedavg.kep: expected a known key"),
        ({"lr": "fast"}, "lr: expected"),
        ({"rounds_": 3}, "rounds: expected num_rounds of start"),
        ({"clients_per_round": 3}, "clients-per-round: expected fraction_train"),
        ({"evaluate_clients": 3}, "evaluate-clients: expected fraction_evaluate"),
        ({"privacy.clip": 1.0}, "privacy.clip: expected a key that works in a Flower app of your own"),
        ({"privacy.noise": 1.0}, "privacy.noise: expected a key that works in a Flower app of your own"),
        ({"task": "regression"}, "task: expected a key that works in a Flower app of your own"),
        ({"dataset": "digits"}, "dataset: expected a key that works in a Flower app of your own"),
        ({"on_divergence": "rollback"}, "on-divergence: expected a key that works in a Flower app of your own"),
        ({"start": {"train_config": ConfigRecord({"learning-rate": 0.1})}}, "learning-rate: expected a key that"),
        ({"start": {"train_config": ConfigRecord({"clients": 3})}}, "clients: expected min_available_nodes"),
        ({"start": {"evaluate_config": ConfigRecord({"x": 3})}}, "evaluate_config: expected nothing"),
        ({"fraction_train": 0.0}, "fraction_train: expected a share"),
        ({"fraction_evaluate": 2.0}, "fraction_evaluate: expected a share"),
        ({"min_available_nodes": 0}, "min_available_nodes: expected at least 1"),
    ],
)
def test_what_has_no_effect_is_refused_by_name(keys, words):
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        started(**keys)


def test_a_method_that_decides_itself_who_trains_is_refused():
    assert {name for name in registry.names() if registry.get(name).chooses} == CHOOSING
    words = "method: expected one whose clients fraction_train draws .*, got fedbuff, which decides from its state who"
    with pytest.raises(ConfigError, match=words):
        started(FedBuff)


def test_keys_of_the_users_own_may_have_the_name_of_a_group():
    assert isinstance(FedAvg(Net, {"partition.my-own": 1.0, "hf.token": "x", "split.mine": 3}), Strategy)
    with pytest.raises(ConfigError, match=r"privacy\.nois: expected a key that works in a Flower app of your own"):
        FedAvg(Net, {"privacy.nois": 1.0})


@pytest.mark.parametrize(
    "key", sorted(key for key in flat_keys(RunConfig) if ("." in key and key not in KEYS) or key.startswith("secure"))
)
def test_no_key_of_sepals_groups_in_a_run_config_is_taken_for_the_users_own(key):
    """``privacy.noise`` was: the run went on without noise; ``secure`` was: the server saw every update."""
    with pytest.raises(ConfigError, match=f"{re.escape(key)}: expected a key that works in a Flower app of your own"):
        FedAvg(Net, {key: 1.0})


def test_a_central_evaluation_is_refused_where_there_is_no_whole_global_model():
    evaluations = []
    started(start={"evaluate_fn": lambda number, weights: evaluations.append((number, len(weights)))})
    assert evaluations == [(number, len(arrays())) for number in range(3)]
    with pytest.raises(ConfigError, match="evaluate_fn: expected None: fedper has no whole global model"):
        started(FedPer, start={"evaluate_fn": lambda number, weights: None})


def test_flowers_differential_privacy_around_a_method_is_refused():
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(Net), 0.1, 1.0, CLIENTS)
    with pytest.raises(ConfigError, match=r"num_rounds: .*differential privacy works on dense arrays"):
        private.start(ContextGrid(wrap_client(FedAvg, Net, load), contexts()), arrays(), num_rounds=1)


def test_the_four_steps_work_without_start_and_only_in_their_order():
    strategy, grid = FedAvg(Net, rounds=2), ContextGrid(wrap_client(FedAvg, Net, load), contexts())
    first = arrays()
    with pytest.raises(ConfigError, match="aggregate_train: expected replies"):
        strategy.aggregate_train(1, [])
    replies = grid.send_and_receive(strategy.configure_train(1, first, ConfigRecord(), grid))
    second, metrics = strategy.aggregate_train(1, replies)
    assert metrics["clients"] == CLIENTS
    with pytest.raises(ConfigError, match="arrays: expected those that aggregate_train returned"):
        strategy.configure_train(2, first, ConfigRecord(), grid)
    with pytest.raises(ConfigError, match="server_round: expected 2"):
        strategy.configure_train(3, second, ConfigRecord(), grid)
    replies = grid.send_and_receive(strategy.configure_evaluate(1, second, ConfigRecord(), grid))
    assert strategy.aggregate_evaluate(1, replies)["clients"] == CLIENTS


def fails(*numbers, after=0):
    calls = []

    def broken(context):
        calls.append(context.node_config["partition-id"])
        if calls[-1] in numbers and calls.count(calls[-1]) > after:
            try:
                {}["ward"]
            except KeyError as reason:
                raise ValueError("the table of the ward cannot be read") from reason
        return load(context)

    return broken


@pytest.mark.parametrize("after", [0, 1], ids=["at once", "in round 1"])
def test_the_cause_of_a_clients_error_is_shown_in_full_and_the_others_go_on(after, caplog):
    strategy, _, result = started(app=wrap_client(FedAvg, Net, fails(2, after=after)))
    error_messages = [message for message in caplog.messages if "the table of the ward cannot be read" in message]
    assert len([message for message in error_messages if "KeyError: 'ward'" in message and "Traceback" in message]) == 1
    assert result.train_metrics_clientapp[2]["clients"] == CLIENTS - 1
    assert strategy.run.state.round == 2


@pytest.mark.parametrize(("after", "error"), [(0, RosterError), (1, RoundError)])
def test_without_any_client_the_run_ends_with_the_cause(after, error):
    with pytest.raises(error, match="the table of the ward cannot be read"):
        started(app=wrap_client(FedAvg, Net, fails(*range(CLIENTS), after=after)))


def test_a_client_without_its_context_takes_no_further_part(caplog):
    nodes = contexts()

    class Forgets(ContextGrid):
        def answer(self, message):
            if message.metadata.group_id == "2" and message.metadata.dst_node_id == 1:
                nodes[1].state.clear()
            return super().answer(message)

    strategy, grid = FedAvg(Net), Forgets(wrap_client(FedAvg, Net, load), nodes)
    result = strategy.start(grid, arrays(), num_rounds=3)
    assert [result.train_metrics_clientapp[number]["clients"] for number in (1, 2, 3)] == [4, 3, 3]
    assert any("context.state: expected what the run's first message brought" in line for line in caplog.messages)


def test_a_node_that_flower_reports_as_gone_is_named_with_flowers_reason(caplog):
    class Gone(ContextGrid):
        def answer(self, message):
            reply = super().answer(message)
            if message.metadata.dst_node_id == 3 and message.metadata.message_type == MessageType.TRAIN:
                reply = Message(Error(5, "Node Unavailable, and a long reason " + "x" * 500), reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = 1  # as a SuperLink reports it
            return reply

    result = FedAvg(Net).start(Gone(wrap_client(FedAvg, Net, load), contexts()), arrays(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["clients"] == CLIENTS - 1
    assert any(
        line.startswith("client-00002: error 5: Node Unavailable") and line[-500:] == "x" * 500
        for line in caplog.messages
    )


def test_a_newcomer_joins_between_rounds_and_a_second_client_of_a_name_is_refused(caplog):
    nodes = contexts(5)
    late = {node: nodes.pop(node) for node in (4, 5)}
    late[5].node_config["name"] = "client-00000"

    class Grows(ContextGrid):
        def get_node_ids(self):
            return [1, 2, 3] if "evaluate" not in self.kinds else [1, 2, 3, 4, 5]

    grid = Grows(wrap_client(FedAvg, Net, load), {**nodes, **late})
    result = FedAvg(Net).start(grid, arrays(), num_rounds=2)
    assert [result.train_metrics_clientapp[number]["clients"] for number in (1, 2)] == [3, 4]
    assert any("client client-00000: expected one client of that name" in line for line in caplog.messages)


def test_a_client_that_was_away_takes_part_again():
    """To a node that is asked anew W_0 was sent again, at which it forgot what it was: then it was a second one."""

    class Away(ContextGrid):
        def get_node_ids(self):
            return [1, 2, 3] if self.kinds.count("train") == CLIENTS else [1, 2, 3, 4]

    result = FedAvg(Net).start(Away(wrap_client(FedAvg, Net, load), contexts()), arrays(), num_rounds=4)
    assert [result.train_metrics_clientapp[number]["clients"] for number in (1, 2, 3, 4)] == [4, 3, 4, 4]


def test_a_silent_stranger_a_round_costs_no_more_than_its_patience():
    """Each took ``timeout`` of ``start``, an hour by default, in every round."""
    waited = []

    class Silent(ContextGrid):
        def get_node_ids(self):
            return [1, 2, 3, 4, *range(100, 100 + self.kinds.count("train") // CLIENTS)]

        def send_and_receive(self, messages, *, timeout=None):
            answered = [message for message in messages if message.metadata.dst_node_id < 100]
            if len(answered) < len(messages):
                waited.append(timeout)
            return super().send_and_receive(answered, timeout=timeout)

    for timeout in (3600, 5):
        grid = Silent(wrap_client(FedAvg, Net, load), contexts())
        FedAvg(Net).start(grid, arrays(), num_rounds=4, timeout=timeout)
        assert waited == [min(timeout, PATIENCE)] * 3
        waited.clear()


@pytest.mark.parametrize("key", ["least-noise", "only-secure", "most-uploads", "audit", "export"])
def test_a_node_that_demands_what_plain_flower_does_not_keep_is_refused(key):
    value = {"least-noise": 1.0, "only-secure": True, "most-uploads": 3}.get(key, "/x")
    with pytest.raises(RosterError, match=f"{key}: expected nothing: only nodes of `sepal join` hold to it"):
        started(nodes=contexts(**{key: value}))


def test_another_method_on_the_clients_is_refused_by_name():
    """FedAvg and FedProx exchange the same payloads: nothing else would notice."""
    with pytest.raises(
        RosterError, match="method: expected fedavg, as the server's strategy, got fedprox in wrap_client"
    ):
        started(app=wrap_client(registry.get("fedprox"), Net, load))


@pytest.mark.parametrize("key", ["model", "augment", "initial-weights", "out", "own.data"])
def test_a_client_takes_no_code_and_no_path_from_the_server(key, monkeypatch):
    from sepal.strategies import plain

    honest = plain.client_keys
    monkeypatch.setattr(plain, "client_keys", lambda assembly: {**honest(assembly), key: "os:system"})
    with pytest.raises(
        RosterError, match=f"{key}: expected a key of fedavg's training, from the server, got os:system"
    ):
        started()


class Photographs(torch.utils.data.Dataset):
    def __init__(self, examples):
        self.x, self.y = examples

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return {"img": torch.as_tensor(self.x[index]), "label": int(self.y[index])}


def loaders(context, **how):
    examples = load(context)
    return tuple(
        DataLoader(Photographs(part), batch_size=7, shuffle=True, **how) for part in (examples[:2], examples[2:])
    )


def test_data_may_be_arrays_datasets_or_dataloaders_of_dictionaries_with_one_result():
    plain_run = started()[0].run
    other_run = started(app=wrap_client(FedAvg, Net, loaders))[0].run
    assert digest(other_run.state.server) == digest(plain_run.state.server)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda context: loaders(context, collate_fn=lambda items: items), "data: expected a DataLoader with torch's"),
        (lambda context: ([{"a": 1, "b": 2}], [{"a": 1, "b": 2}]), "data: expected examples with one input and one of"),
        (lambda context: (*load(context)[:3], load(context)[3] + 9), "data: expected labels below 3"),
        (lambda context: (np.zeros((9, 5), np.float32), np.zeros(9, int)) * 2, "model: expected to take examples of"),
        (lambda context: None, "data: expected to return"),
    ],
)
def test_data_that_cannot_be_used_is_refused_by_name(data, words):
    with pytest.raises(RosterError, match=words):
        started(app=wrap_client(FedAvg, Net, data))


def test_models_that_differ_are_refused_by_name():
    with pytest.raises(RosterError, match="model: expected the tensors of initial_arrays"):
        started(app=wrap_client(FedAvg, lambda: torch.nn.Linear(4, 3), load))
    with pytest.raises(Exception, match="model: expected the tensors of initial_arrays"):
        started(with_arrays=ArrayRecord(torch.nn.Linear(4, 3).state_dict()))
    with pytest.raises(Exception, match="model: expected a function or class that returns a module"):
        FedAvg(lambda: 3).start(ContextGrid(wrap_client(FedAvg, Net, load), contexts()), arrays(), num_rounds=1)


def test_a_client_keeps_two_states_whatever_happens():
    _, grid, _ = started(FedPer, rounds=5)
    for context in grid.contexts.values():
        assert sum(name.startswith("sepal.state.") for name in context.state) == 2


def test_a_strategy_that_is_started_again_begins_a_new_run_also_with_clients_of_the_first():
    strategy, grid = FedPer(Net, lr=0.1), ContextGrid(wrap_client(FedPer, Net, load), contexts())
    digests = []
    for _ in range(2):
        strategy.start(grid, arrays(), num_rounds=2)
        digests.append(digest(strategy.run.state.server))
    assert digests[0] == digests[1]


def test_too_few_nodes_are_waited_for_by_name(caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(
        RosterError, match=r"clients: expected 9 registered within 0.3 s \(min_available_nodes\), got 4"
    ):
        started(min_available_nodes=9, start={"timeout": 0.3})
    assert "waiting for clients: 4 of 9 have registered" in caplog.messages


def test_a_round_without_any_connected_client_ends_the_run():
    class Leaves(ContextGrid):
        def get_node_ids(self):
            return [] if "evaluate" in self.kinds else super().get_node_ids()

    with pytest.raises(RoundError, match="round 2: expected a client that is connected, got none"):
        FedAvg(Net).start(Leaves(wrap_client(FedAvg, Net, load), contexts()), arrays(), num_rounds=2)


def test_what_a_client_says_cannot_write_to_the_terminal(caplog):
    def broken(context):
        raise ValueError("\x1b]0;owned\x07")

    with pytest.raises(RosterError):
        started(app=wrap_client(FedAvg, Net, broken))
    assert "\x1b" not in caplog.text


class Claims(ContextGrid):
    """Clients that claim examples of another shape."""

    def __init__(self, *arguments, liars, shape):
        super().__init__(*arguments)
        self.liars, self.shape = liars, shape

    def answer(self, message):
        reply = super().answer(message)
        if message.metadata.message_type == MessageType.QUERY and message.metadata.dst_node_id in self.liars:
            reply.content["facts"]["shape"] = self.shape
        return reply


@pytest.mark.parametrize("shape", ["5", "x", "1x1000000x1000000"])
def test_a_client_that_answers_first_with_another_shape_keeps_no_other_out(shape, caplog):
    grid = Claims(wrap_client(FedAvg, Net, load), contexts(), liars=[1], shape=shape)
    result = FedAvg(Net).start(grid, arrays(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["clients"] == CLIENTS - 1
    assert any("client-00000: data: expected examples of shape 4" in line for line in caplog.messages)


def test_a_shape_that_all_clients_claim_takes_no_memory_of_the_server():
    """A method's server tries an example: one of 20,000 x 20,000 pixels asked for 128 GB."""
    twin = Twin("pfedgate")
    grid = Claims(twin.app(), contexts(), liars=range(9), shape="1x1000000x1000000")
    with pytest.raises(ConfigError, match="shape of clients' examples: expected one of at most"):
        twin.strategy().start(grid, twin.arrays, num_rounds=1)


def test_what_a_client_says_looks_like_no_line_of_another_and_is_not_kept(caplog):
    def broken(context):
        if context.node_config["partition-id"] == 0:
            raise ValueError("x" * 90_000 + "\nclient-00001: evicted\nround 1/2: complete")
        return load(context)

    strategy, _, _ = started(app=wrap_client(FedAvg, Net, broken), rounds=1)
    lines = [line for message in caplog.messages for line in message.split("\n")]
    assert any("client-00001: evicted" in line for line in lines)
    assert not any(line.startswith(("client-00001: evicted", "round 1/2: complete")) for line in lines)
    assert max(map(len, caplog.messages)) < 25_000
    assert all(len(cause) < 100 for cause in strategy.contact._causes)


def test_a_refusal_that_a_client_reports_is_in_the_nodes_name(caplog):
    """The name in it is the client's choice, and may be another's."""

    class Poses(ContextGrid):
        def answer(self, message):
            if message.metadata.dst_node_id == 1:
                lie = write_error(ProtocolError("client-00001: data", "its own", "none"), "client-00001")
                return Message(lie, reply_to=message)
            return super().answer(message)

    FedAvg(Net).start(Poses(wrap_client(FedAvg, Net, load), contexts()), arrays(), num_rounds=1)
    assert any("node 1: client-00001: data: expected its own" in line for line in caplog.messages)
    assert not any(line.startswith("refused: client-00001: data") for line in caplog.messages)


def test_a_context_gives_back_what_a_client_keeps():
    """The buffers that stay with it, too, which few models have."""
    records = RecordDict({STORE: ConfigRecord({"identity": "ab"})})
    reply = Reply("run", 1, Kind.TRAIN, ClientInfo("a", 3), metrics={"seconds": 1.5})
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    stored = Stored("asked", {"w": numbers, "empty": numbers[:0]}, reply, Content(b""), {"seen": np.array(7)})
    ContextStore(records, dict[str, np.ndarray]).save("1-ab", stored)
    again = ContextStore(copy.deepcopy(records), dict[str, np.ndarray]).load("1-ab")
    assert (again.request, again.reply, digest(again.state)) == ("asked", reply, digest(stored.state))
    assert {name: int(value) for name, value in again.local.items()} == {"seen": 7}
    assert ContextStore(records, dict).load("2-ab") is None


def test_a_run_from_which_clients_diverge_ends_and_says_so():
    with pytest.raises(RoundError, match="expected a model from which most clients can train"):
        started(lr=1e30, clip_gradient=0.0, rounds=3)
