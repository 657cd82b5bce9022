"""The checks: each raises :class:`CheckError` with what was expected of the method and what it does instead."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sepal.client_app.build import Node, Shared, build_host
from sepal.client_app.host import ClientHost
from sepal.config import flatten
from sepal.engines.in_process import run_in_process
from sepal.errors import SepalError
from sepal.method.aggregation import aggregated
from sepal.method.interface import resolve
from sepal.names import client_name
from sepal.protocol.messages import Content, Order
from sepal.protocol.payloads import seal, unseal
from sepal.protocol.types import Kind, Upload
from sepal.runs.summary import summarise
from sepal.server.guard import Guard
from sepal.server.run_state import RoundStart
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest, digest_arrays, restore
from sepal.storage.serialize import flatten as flatten_state
from sepal.strategies import registry
from sepal.study.method_checks.cases import CLIENTS, Case, ScratchStore, Stop, StopAfter
from sepal.wire.tensors import ValueCoding

UNCHANGED = frozenset({ValueCoding.SIGN, ValueCoding.NONE})  # what ``values`` does not make smaller
SMALLER = 0.8  # of the bytes with fp32, at most, with two bytes a value instead of four


class CheckError(SepalError):
    """A method does not do what every method must do."""


class Check(NamedTuple):
    """One check.

    Attributes:
        words: What it checks, as a line to show.
    """

    words: str
    check: Callable[[Case], None]


def require(condition: bool, key: str, expected: str, got: object) -> None:
    """Raise unless ``condition``.

    Raises:
        CheckError: It does not hold; the error has the other three arguments.
    """
    if not condition:
        raise CheckError(key, expected, got)


def keys_are_described(case: Case) -> None:
    """Each of the method's keys has a description and a default."""
    hyper = registry.get(str(case.keys["method"])).hyper
    for name, info in hyper.model_fields.items():
        require(bool(info.description), info.alias or name, "a description", "none")
        require(not info.is_required(), info.alias or name, "a default", "none")
    flatten(hyper())


def evaluated_at_the_end(case: Case) -> None:
    """Every client is evaluated at the end, in all views that exist."""
    run = case.finished()
    method, lines = run.strategy._method, run.lines.lines
    last = lines[-1]
    require(last["population"] == CLIENTS, "closing round", f"{CLIENTS} clients", last["population"])
    for view in ("received", "trained", "pooled"):
        figures = last["accuracy"][view]
        allowed = view == "received" and method.no_received_model
        require(bool(figures or allowed), view, "a model to evaluate, or register(no_received_model=REASON)", "none")
        if figures:
            require(0 <= figures["mean"] <= 1, view, "an accuracy", figures["mean"])
            require(figures["clients"] == CLIENTS, view, f"{CLIENTS} clients", figures["clients"])
    full = {line["round"]: line["full"] for line in lines}
    require(full == {1: False, 2: False, 3: True, 4: False, 5: True}, "full evaluations", "rounds 3 and 5", full)


def host_of(shared: Shared, name: str) -> ClientHost:
    """Return the client of a name, newly built."""
    number = [client_name(number) for number in range(CLIENTS)].index(name)
    return build_host(shared, Node(number, CLIENTS), "run", ScratchStore())


def ledger_counts_bytes(case: Case) -> None:
    """Each message of round 1, made and sealed once more, has the length that the ledger says."""
    run = case.finished()
    strategy = run.strategy
    shared = Shared.around(case.assembly(), "cpu")
    begun = RoundStart(strategy.algorithm, run.start, strategy.algorithm.plan(1))
    for entry in run.lines.records[0].ledger:
        download = begun.download(entry.client)
        message, length = f"download of {entry.client}", len(seal(download).data)
        if entry.direction == "up":
            if entry.purpose != "training":
                continue
            host = host_of(shared, entry.client)
            order = Order("run", Kind.TRAIN, begun.plan, base="")
            # determines the noise of privacy.noise
            work = host._request_digest(order, seal(download).digest(), before="")
            host.begin(bytes.fromhex(work), 0)
            _, upload = host.algorithm.train(host.algorithm.init(), download, begun.plan)
            message, length = f"upload of {entry.client}", len(seal(upload).data)
        require(entry.payload == length, message, f"{entry.payload} bytes again, as in the run", length)
    totals = strategy.report.totals.training
    for way, total in (("up", totals.up), ("down", totals.down)):
        entries = sum(entry.payload for entry in run.trained if entry.direction == way)
        require(total == entries, f"bytes {way}", f"{total}, the run's sum", entries)


def resumes_after_a_kill(case: Case, killed_after: int = 3) -> None:
    """A server that is killed and started again ends with the same bits.

    Killed while the round is being reported, after its record was written: it is replayed, not trained again. The run
    without a kill evaluates every third round, this one every round or, killed in the third, none, and its rounds
    before the kill are computed anew. So equal bits also say that evaluation is read only, and that a seed determines
    them.
    """
    assembly = case.assembly(**{"evaluate-every": 0 if killed_after == 3 else 1})
    state = resolve(assembly.method.server_state)
    with tempfile.TemporaryDirectory(prefix="sepal-check-") as scratch:
        server, clients = Path(scratch) / "server", Path(scratch) / "clients"
        stopped = False
        try:
            observers = [StopAfter(killed_after)]
            run_in_process(assembly, store=DiskRunStore(server, state), observers=observers, state_dir=clients)
        except Stop:
            stopped = True
        require(stopped, "run", f"a round {killed_after}", "none")
        resumed = run_in_process(assembly, store=DiskRunStore(server, state), state_dir=clients)
    whole = case.finished().strategy
    key = f"killed in round {killed_after} and started again"
    same = digest(resumed.progress.server) == digest(whole.progress.server)
    require(same, key, "the server's state as without a kill", "another")
    resumed_report, whole_report = resumed.report, whole.report
    require(resumed_report.digests == whole_report.digests, key, "the clients' states as without a kill", "others")
    require(len(whole_report.digests) == CLIENTS, key, f"states of {CLIENTS} clients", len(whole_report.digests))
    # A message carries evaluations, too.
    sums = [replace(report.totals.training, up_message=0, down_message=0) for report in (resumed_report, whole_report)]
    require(sums[0] == sums[1], key, f"the bytes as without a kill, {sums[1]}", sums[0])


def state_survives_the_disk(case: Case) -> None:
    """The server's last state is the same after it was written and read."""
    strategy = case.finished().strategy
    server = strategy.progress.server
    arrays, structure = flatten_state(server)
    again = restore(resolve(strategy._method.server_state), arrays, structure)
    require(digest(again) == digest(server), "server's state", "the same after it was stored", "another")


class _NoUploads:
    """A round's uploads of which none was accepted."""

    clients = ()

    def __iter__(self) -> Iterator[Upload]:
        return iter(())

    def __len__(self) -> int:
        return 0


def a_round_may_have_no_uploads(case: Case) -> None:
    """Without an upload, before the first round and after the last, the server still returns a state it can go on with.

    So it is where all clients of a round are away or refused: a mean over nobody divides by zero.
    """
    run = case.finished()
    algorithm, setup = run.strategy.algorithm, run.strategy.setup
    for number, state in ((1, run.start.server), (setup.config.rounds, run.strategy.progress.server)):
        try:
            with np.errstate(divide="raise", invalid="raise", over="raise"):
                after, figures = aggregated(algorithm, state, _NoUploads(), algorithm.plan(number))
        except (ArithmeticError, LookupError, ValueError) as error:
            expected = "a state also from a round whose uploads were all refused (len(uploads) == 0)"
            raise CheckError("aggregate", expected, f"{type(error).__name__}: {error}") from error
        expected = "a state from which a model can be made, also without uploads"
        require(not (why := Guard(algorithm, setup, state).unusable(after)), "aggregate", expected, why)
        finite = all(math.isfinite(value) for value in figures.values())
        require(finite, "aggregate", "finite figures, also without uploads", dict(figures))


def smaller_values_make_fewer_bytes(case: Case, values: str = "fp16") -> None:
    """With two bytes a value instead of four, two rounds send fewer bytes: nothing else is sent in full.

    Where an upload holds no such values (signs, masks, nothing at all), the key must change nothing.
    """
    small, full = (
        {
            way: sum(entry.payload for entry in run.trained if entry.direction == way and entry.round <= 2)
            for way in ("up", "down")
        }
        for run in (case.finished(values=values, rounds=2, **{"evaluate-every": 0}), case.finished())
    )
    if case.codings() <= UNCHANGED:
        require(small == full, f"bytes with values = {values}", f"{full}, as with fp32", small)
    else:
        most = SMALLER * full["up"]
        require(small["up"] < most, f"bytes up with values = {values}", f"at most {most:.0f}", small["up"])


def smaller_values_make_a_smaller_first_upload(case: Case) -> None:
    """The same for one upload."""
    full, small = (len(seal(run.upload).data) for run in (case.first, case.first_training(values="fp16")))
    if case.codings() <= UNCHANGED:
        require(small == full, "upload with values = fp16", f"{full} bytes, as with fp32", small)
    else:
        require(small < SMALLER * full, "upload with values = fp16", f"at most {SMALLER * full:.0f} bytes", small)


def uploads_follow_the_schema(case: Case) -> None:
    """An upload fits the schema, a bent one does not, and the client's state is the same after it was stored."""
    run = case.first
    schema = run.host.algorithm.download_schema(run.host.algorithm.init(), run.plan)
    download = unseal(seal(run.download), schema)
    content, schema = seal(run.upload), run.server.upload_schema(run.server.init(), run.host.info, run.plan)
    names = list(unseal(content, schema, lambda: download.tensors).tensors)
    require(names == list(run.upload.tensors), "upload", f"tensors {list(run.upload.tensors)}", names)
    arrays, structure = flatten_state(run.after)
    again = restore(resolve(run.assembly.method.client_state), arrays, structure)
    require(digest(again) == digest(run.after), "client's state", "the same after it was stored", "another")

    def accepted(bent: Content) -> bool:
        try:
            unseal(bent, schema, lambda: download.tensors)
        except SepalError:
            return False
        return True

    more = replace(content, scalars={**content.scalars, "unknown": 1})
    require(not accepted(more), "upload_schema", "to refuse a number that it does not name", "it is accepted")
    if content.data:
        shorter = replace(content, data=content.data[:-1])
        require(not accepted(shorter), "upload_schema", "to refuse an upload without its last byte", "it is accepted")


def training_is_pure(case: Case) -> None:
    """Training again from the same state gives the same bits, and another seed or learning rate others."""
    runs = (case.first, case.first_training(), case.first_training(seed=4), case.first_training(lr=0.0123))
    first, again, other_seed, slower = [(digest(run.after), seal(run.upload).digest()) for run in runs]
    expected = "the same bits from the same state (randomness from sepal.rng.derive alone)"
    require(first == again, "train", expected, "others")
    require(first != other_seed, "train", "other bits from another seed", "the same")
    require(first != slower, "train", "other bits with another lr (does it train?)", "the same")


def handed_in_stays(case: Case) -> None:
    """Neither server nor client writes into the run's first weights, or into a state that it is handed.

    Clients of a process share the first weights: what one writes there, the others start from, and a deployment has
    other models. A server that goes back after a divergence needs the state that it had.
    """
    run = case.finished()
    expected = "to write into no array that the method is handed (copy it first)"
    after, before = run.strategy.setup.weights, case.assembly().setup.weights
    require(digest_arrays(after) == digest_arrays(before), "the run's first weights", expected, "they have changed")
    require(digest(run.start.server) == run.digest, "the server's first state", expected, "it has changed")
    first = case.first
    handed = digest(first.after)
    first.host.algorithm.train(first.after, first.download, first.plan)
    require(digest(first.after) == handed, "the client's last state", expected, "it has changed")


def novel_clients_are_apart(case: Case) -> None:
    """One of four joins in the closing round; the others all train before.

    It starts from the method's first state, and from a newcomer's download: its private part, where the method has one,
    is as fresh as a new client's, and adapted by the method's own rule.
    """
    keys = {"rounds": 1, "clients-per-round": 0, "evaluate-every": 0, "novel-clients": 0.25}
    run = case.finished(**keys)
    strategy, lines = run.strategy, run.lines
    (novel,) = strategy.progress.novel
    *before, closing = lines.records
    never = all(novel not in record.replies for record in before)
    never = never and all(novel != entry.client for record in before for entry in record.ledger)
    require(never, novel, "a novel client that never trains", "it has a reply or a message before the closing round")
    require(closing.replies[novel].kind is Kind.ADAPT, novel, "to adapt in the closing round", "something else")
    assembly = case.assembly(**keys)
    summary = summarise(assembly, strategy.progress, strategy.report, name=case.name, engine="in-process", rounds=1)
    populations = {"participants": CLIENTS - 1, "novel": 1}
    require(summary["populations"] == populations, "populations", str(populations), summary["populations"])
    novel_accuracy = summary["novel"]["accuracy"]
    for view in ("received", "trained", "pooled"):
        accuracy = summary["accuracy"][view]
        allowed = view == "received" and assembly.method.no_received_model
        require(accuracy is not None or bool(allowed), view, "a model of participants", "none")
        if accuracy is None:
            continue
        counts = accuracy["clients"], novel_accuracy[view]["clients"]
        require(counts == (CLIENTS - 1, 1), view, f"{CLIENTS - 1} participants and a novel client", counts)
        gap, difference = summary["novel"]["gap"][view], accuracy["mean"] - novel_accuracy[view]["mean"]
        require(math.isclose(gap, difference, rel_tol=1e-6, abs_tol=1e-9), f"{view}: gap", str(difference), gap)
    require(
        novel_accuracy["kept"] is None,
        "kept",
        "no model of a novel client before the closing round",
        novel_accuracy["kept"],
    )
    algorithm, host = strategy.algorithm, host_of(Shared.around(assembly, "cpu"), novel)
    plan = replace(algorithm.plan(2), novel=True)
    start = host.algorithm.init()
    download = algorithm.newcomer(strategy.progress.server, host.info, plan)
    after = host.algorithm.adapt(start, unseal(seal(download), host.algorithm.download_schema(start, plan)), plan)
    same = digest(after) == strategy.report.digests[novel]
    require(same, novel, "the state that newcomer and adapt give from init", "another")


CHECKS = (
    Check("its keys have defaults and descriptions", keys_are_described),
    Check("every client is evaluated at the end, in all views that exist", evaluated_at_the_end),
    Check("uploads follow upload_schema, and bent ones are refused", uploads_follow_the_schema),
    Check("training again gives the same bits, another seed or learning rate others", training_is_pure),
    Check("it writes into nothing that it is handed", handed_in_stays),
    Check("the ledger counts the bytes that are sent", ledger_counts_bytes),
    Check("the server's state is the same after it was stored", state_survives_the_disk),
    Check("a round without uploads leaves a state to go on with", a_round_may_have_no_uploads),
    Check("a killed server resumes to the same bits", resumes_after_a_kill),
    Check("values of two bytes make fewer bytes", smaller_values_make_fewer_bytes),
    Check("values of two bytes make a smaller first upload", smaller_values_make_a_smaller_first_upload),
    Check("novel clients never train, and start from the first state", novel_clients_are_apart),
)
