"""What every registered method must do: the suite that a new method joins by its line in the registry.

A variant that takes other paths joins by a line in ``CASES`` of tests/methods.py.

Four rounds on handwritten digits with four clients, two of them sampled each round, and everything asked of the method
from outside: no test here knows a method by name. The tests of a case share its run, so xdist gives them to one worker.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sepal.client_app.build import Node, Shared, build_host
from sepal.config import flatten
from sepal.engines.in_process import run_in_process
from sepal.errors import SepalError
from sepal.protocol.fields import client_name
from sepal.protocol.messages import Order
from sepal.protocol.method import Kind, resolve
from sepal.protocol.payloads import seal, unseal
from sepal.server.run_state import RoundStart
from sepal.server.run_store import DiskRunStore
from sepal.server_app.summary import summarise
from sepal.storage.serialize import digest, restore
from sepal.storage.serialize import flatten as flatten_state
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import ValueCoding
from tests.methods import CASES, LEARNING, TO_LEARN, Stop, StopAfter, codings, finished, first, flat, trained_first
from tests.scratch_store import ScratchStore

GENERATES = {"pa3dfl", "pfedhn"}
METHODS = pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in CASES])
# A kill before the first checkpoint and one at a checkpoint take the engine's path, whatever the method: one case per
# kind of state. The same holds for the two codings of 16 bits: one dense and one sparse upload.
KINDS = ("fedavg", "fedstc", "fedpse", "dmpfl", "subfedavg", "pa3dfl")
KILLS = [(name, 3) for name in CASES]
KILLS += [(name, after) for name in KINDS for after in (1, 2)]
SMALLER = [*((name, "fp16") for name in KINDS), ("fedavg", "bf16"), ("fedpse", "bf16")]


def grouped(pairs):
    """Mark (name of a case, value) to run where the other tests of the case do."""
    return [pytest.param(*pair, marks=pytest.mark.xdist_group(pair[0])) for pair in pairs]


def host_of(shared, name):
    """The client of a name, newly built."""
    return build_host(shared, Node([client_name(number) for number in range(4)].index(name), 4), "run", ScratchStore())


def trained(run):
    """The ledger's entries of training."""
    return [entry for record in run.lines.records for entry in record.ledger if entry.purpose == "training"]


@METHODS
def test_every_client_is_evaluated_at_the_end_in_all_views_that_exist(name):
    run = finished(name)
    method, lines = run.strategy._method, run.lines
    last = lines.lines[-1]
    assert last["phase"] == "closing"
    assert last["population"] == 4
    for view in ("received", "trained", "pooled"):
        exists = last["accuracy"][view] is not None
        assert exists or (view == "received" and method.received), f"{view} is null without a reason"
        if exists:
            assert 0 <= last["accuracy"][view]["mean"] <= 1
            assert last["accuracy"][view]["clients"] == 4
    assert {line["round"]: line["full"] for line in lines.lines} == {1: False, 2: False, 3: True, 4: False, 5: True}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in LEARNING])
def test_training_learns_something(name):
    """Ten classes at Dirichlet(1): the most frequent class of one's own data is worth about .3."""
    keys = {"rounds": 3, "local-epochs": 2, "clients-per-round": 0, "batch-size": 16, "partition.subsample": 500}
    # Sparse models start slowly: their signals are small at first. The rates are not those of a calibration.
    keys |= {"momentum": 0.8, "lr": 0.1, "evaluate-every": 0}
    strategy = run_in_process(assemble(flat(name, **(keys | TO_LEARN.get(name, {})))))
    assert strategy.report.accuracy["trained"]["mean"] > 0.5


@METHODS
def test_the_ledger_counts_the_encoded_bytes(name):
    """Each message of round 1 is made and sealed once more, in both directions; its length is what the ledger says."""
    run = finished(name)
    strategy, lines = run.strategy, run.lines
    shared = Shared.around(assemble(flat(name)), "cpu")
    begun = RoundStart(strategy.algorithm, run.start, strategy.algorithm.plan(1))
    for entry in lines.records[0].ledger:
        download = begun.download(entry.client)
        if entry.direction == "down":
            assert entry.payload == len(seal(download).data)
        elif entry.purpose == "training":
            host = host_of(shared, entry.client)
            algorithm = host.algorithm
            order = Order("run", Kind.TRAIN, begun.plan, base="")
            asked = host._asked(order, seal(download).digest(), before="")  # determines the noise
            host.begin(bytes.fromhex(asked), 0)
            _, upload = algorithm.train(algorithm.init(), download, begun.plan)
            assert entry.payload == len(seal(upload).data)
    training = trained(run)
    totals = strategy.report.totals.training
    assert totals.up == sum(e.payload for e in training if e.direction == "up")
    assert totals.down == sum(e.payload for e in training if e.direction == "down")


@METHODS
def test_no_weights_are_downloaded_in_the_first_round(name):
    """Clients derive W_0 from the seed. Hypernetworks generate personal tensors that no client can derive."""
    sizes = [entry.payload for entry in finished(name).lines.records[0].ledger if entry.direction == "down"]
    assert sizes
    least_model = 1000 * 4  # bytes; FedPSE sends its empty sparse update, 187 bytes
    assert all((size > least_model) == (name.partition("-")[0] in GENERATES) for size in sizes)


@METHODS
def test_a_download_is_composed_once_and_an_upload_decoded_at_most_twice(name):
    run = finished(name)
    replies = [reply for record in run.lines.records for reply in record.replies.values()]
    assert run.composed == {(reply.round, reply.client.name): 1 for reply in replies}
    assert set(run.decoded) == {(reply.round, reply.client.name) for reply in replies if reply.kind is Kind.TRAIN}
    assert max(run.decoded.values()) <= 2


@pytest.mark.parametrize(("name", "killed_after"), grouped(KILLS))
def test_a_killed_server_resumes_to_the_same_end(name, killed_after, tmp_path):
    """Killed while the round is being reported, after its record was written: it is replayed, not trained again.

    The run without a kill evaluates every third round, this one every round or, killed in the third, none, and its
    rounds before the kill are computed anew. So equal bits also say that evaluation is read only, and that a seed
    determines them.
    """
    assembly = assemble(flat(name, **{"evaluate-every": 0 if killed_after == 3 else 1}))
    state = resolve(assembly.method.server_state)
    directory = {"state_dir": tmp_path / "clients"}
    with pytest.raises(Stop):
        run_in_process(
            assembly,
            store=DiskRunStore(tmp_path / "server", state),
            observers=[StopAfter(killed_after)],
            **directory,
        )
    resumed = run_in_process(assembly, store=DiskRunStore(tmp_path / "server", state), **directory)
    whole = finished(name).strategy
    assert digest(resumed.progress.server) == digest(whole.progress.server)
    assert resumed.report.digests == whole.report.digests
    assert len(whole.report.digests) == 4
    totals = [run.report.totals.training for run in (resumed, whole)]
    payloads = [replace(each, up_message=0, down_message=0) for each in totals]  # a message carries evaluations, too
    assert payloads[0] == payloads[1]


@METHODS
def test_states_survive_the_disk(name):
    strategy = finished(name).strategy
    server = strategy.progress.server
    arrays, structure = flatten_state(server)
    assert digest(restore(resolve(strategy._method.server_state), arrays, structure)) == digest(server)


@pytest.mark.parametrize(("name", "values"), grouped(SMALLER))
def test_smaller_values_make_fewer_bytes(name, values):
    """Nothing is sent in full behind the run's back: two bytes a value instead of four must show in two rounds.

    Where an upload holds no such values (signs, masks, nothing at all), the key must change nothing.
    """
    small, full = (
        {
            way: sum(entry.payload for entry in trained(run) if entry.direction == way and entry.round <= 2)
            for way in ("up", "down")
        }
        for run in (finished(name, values=values, rounds=2, **{"evaluate-every": 0}), finished(name))
    )
    if codings(name) <= {ValueCoding.SIGN, ValueCoding.NONE}:
        assert small == full
    else:
        assert small["up"] < 0.8 * full["up"]


@METHODS
def test_smaller_values_make_a_smaller_first_upload(name):
    """The same for one upload of every method."""
    full = first(name)
    small = trained_first(name, values="fp16")
    lengths = [len(seal(run.upload).data) for run in (small, full)]
    if codings(name) <= {ValueCoding.SIGN, ValueCoding.NONE}:
        assert lengths[0] == lengths[1]
    else:
        assert lengths[0] < 0.8 * lengths[1]


@METHODS
def test_an_upload_follows_the_contract_and_a_bent_one_does_not(name):
    run = first(name)
    assembly, server, plan, after, upload = run.assembly, run.server, run.plan, run.after, run.upload
    schema = run.host.algorithm.download_schema(run.host.algorithm.init(), plan)
    download = unseal(seal(run.download), schema)
    content, schema = seal(upload), server.upload_schema(server.init(), run.host.info, plan)
    assert list(unseal(content, schema, lambda: download.tensors).tensors) == list(upload.tensors)
    kind = resolve(assembly.method.client_state)
    arrays, structure = flatten_state(after)
    assert digest(restore(kind, arrays, structure)) == digest(after)
    bent = replace(content, scalars={**content.scalars, "unknown": 1})
    with pytest.raises(SepalError, match="unknown"):
        unseal(bent, schema, lambda: download.tensors)
    if content.data:
        with pytest.raises(SepalError):
            unseal(replace(content, data=content.data[:-1]), schema, lambda: download.tensors)


@METHODS
def test_training_again_from_the_same_state_gives_the_same_bits_and_another_seed_gives_others(name):
    runs = (first(name), trained_first(name), trained_first(name, seed=4))
    outcomes = [(digest(run.after), seal(run.upload).digest()) for run in runs]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] != outcomes[2]


@pytest.mark.parametrize("name", registry.METHODS)
def test_its_keys_have_defaults_and_descriptions(name):
    hyper = registry.get(name).hyper
    for key, info in hyper.model_fields.items():
        assert info.description, f"{name}.{key} has no description"
    assert isinstance(flatten(hyper()), dict)


@METHODS
def test_novel_clients_never_train_and_are_reported_apart(name):
    """One of four joins in the closing round; the others all train before. It starts from the method's first state, and
    from a newcomer's download: its private part, where the method has one, is as fresh as a new client's, and adapted
    by the method's own rule.
    """
    keys = {"rounds": 1, "clients-per-round": 0, "evaluate-every": 0, "novel-clients": 0.25}
    run = finished(name, **keys)
    strategy, lines = run.strategy, run.lines
    (novel,) = strategy.progress.novel
    *before, closing = lines.records
    assert all(novel not in record.replies for record in before)
    assert all(novel != entry.client for record in before for entry in record.ledger)
    assert closing.replies[novel].kind is Kind.ADAPT
    assembly = assemble(flat(name, **keys))
    summary = summarise(assembly, strategy.progress, strategy.report, name=name, engine="in-process", rounds=1)
    assert summary["populations"] == {"participants": 3, "novel": 1}
    theirs = summary["novel"]["accuracy"]
    for view in ("received", "trained", "pooled"):
        ours = summary["accuracy"][view]
        assert ours is not None or (view == "received" and assembly.method.received)
        if ours is not None:
            assert (ours["clients"], theirs[view]["clients"]) == (3, 1)
            assert summary["novel"]["gap"][view] == pytest.approx(ours["mean"] - theirs[view]["mean"])
    assert theirs["kept"] is None, "there was no model before the closing round"
    algorithm, host = strategy.algorithm, host_of(Shared.around(assembly, "cpu"), novel)
    plan = replace(algorithm.plan(2), novel=True)
    start = host.algorithm.init()
    download = algorithm.newcomer(strategy.progress.server, host.info, plan)
    after = host.algorithm.adapt(start, unseal(seal(download), host.algorithm.download_schema(start, plan)), plan)
    assert digest(after) == strategy.report.digests[novel]
