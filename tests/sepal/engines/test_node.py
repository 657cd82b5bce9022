"""The SuperNode of `sepal join`: its pauses, late and lost replies, and what Flower's own code must be for that."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import inspect
import logging
import os
import re
import stat
import subprocess
import sys
import textwrap
import threading
import time
import types

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.task_identity import TaskIdentity

from sepal.engines.flower import node
from sepal.flower import supernode, versions


@pytest.fixture
def slept(monkeypatch):
    pauses = []
    monkeypatch.setattr(supernode.time, "sleep", pauses.append)
    return pauses


def replies_in(state):
    """What Flower's loop asks for, which has another name from 1.41 on."""
    inner = getattr(state, "_state", state)
    return getattr(state, "get_messages_legacy" if hasattr(inner, "get_messages_legacy") else "get_messages")(
        is_reply=True
    )


@pytest.mark.parametrize(
    "name", ["start_client_internal", "_pull_and_store_message", "_push_messages", "_insert_message"]
)
def test_a_changed_flower_is_noticed_at_the_start(monkeypatch, name):
    internal = importlib.import_module("flwr.supernode.start_client_internal")
    supernode.loop()

    def changed(**_):
        """Another function than the one that we know."""

    monkeypatch.setattr(internal, name, changed)
    with pytest.raises(
        versions.FlowerChangedError, match=f"{name}: expected the source of Flower 1.39 to 1.42, got"
    ) as e:
        supernode.loop()
    assert "\n" not in str(e.value)
    monkeypatch.delattr(internal, name)
    with pytest.raises(versions.FlowerChangedError, match="got nothing in 1"):
        supernode.loop()


def test_the_functions_around_flowers_own_are_told_from_a_change(monkeypatch):
    internal = importlib.import_module("flwr.supernode.start_client_internal")
    for name in ("_pull_and_store_message", "_push_messages"):
        monkeypatch.setattr(internal, name, getattr(internal, name))
    supernode.push_late_replies(internal)
    supernode.give_up_lost_content(internal)
    supernode.answer_abandoned(internal)
    supernode.loop()


def test_a_state_that_keeps_its_messages_elsewhere_is_noticed(monkeypatch):
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    monkeypatch.setattr(InMemoryNodeState, "store_message", lambda self, message: None)
    with pytest.raises(versions.FlowerChangedError, match="InMemoryNodeState"):
        supernode.loop()


@pytest.mark.parametrize("release", ["1.38.0", "1.43.0", "2.0.0"])
def test_another_release_is_refused_in_one_line(monkeypatch, release):
    monkeypatch.setattr(versions, "version", lambda _: release)
    with pytest.raises(versions.FlowerChangedError, match=f"flwr: expected 1.39 to 1.42, got {release}"):
        versions.require_supported()


def test_pauses_grow_to_flowers_own_and_are_short_again_after_a_message(slept):
    read, write = os.pipe()
    os.set_blocking(write, False)
    pauses = supernode.Pauses(write)
    for _ in range(40):
        pauses.sleep(3)
    assert slept[0] == 0.1
    assert sorted(slept) == slept
    assert slept[-1] == 3.0
    pauses.sleep(0.5)
    assert os.read(read, 10) == b".", "the client process is woken"
    assert slept[-1] == 0.02
    pauses.sleep(3)
    assert slept[-1] == 0.1
    pauses.sleep(7)
    assert slept[-1] == 7, "not one of the two pauses"


def test_a_client_that_waits_looks_as_seldom_as_it_is_told(slept):
    pauses = supernode.Pauses(os.open(os.devnull, os.O_WRONLY), poll=30.0)
    for _ in range(40):
        pauses.sleep(3)
    assert (slept[0], slept[-1]) == (0.1, 30.0)
    for _ in range(40):
        pauses.sleep(0.5)
    assert slept[-1] == 0.5, "the client's own reply is not waited for any longer"
    pauses.sleep(3)
    assert slept[-1] == 0.1


def test_a_reader_that_does_not_read_does_not_stop_the_supernode(slept):
    _, write = os.pipe()
    os.set_blocking(write, False)
    pauses = supernode.Pauses(write)
    for _ in range(70_000):
        pauses.sleep(0.5)
    assert len(slept) == 70_000


def test_flowers_module_is_built_as_expected():
    import importlib

    module = importlib.import_module("flwr.supernode.start_client_internal")
    before = module.time
    try:
        supernode.shorten(module, supernode.Pauses(-1))
        assert module.time.sleep is not time.sleep
    finally:
        module.time = before


def test_a_late_reply_is_pushed_although_no_message_comes():
    """Flower pushes after a message only: a reply whose place an older one took would wait for the next message."""
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    module, state = types.ModuleType("flowers"), InMemoryNodeState(object_store=None)
    module._pull_and_store_message = lambda *, state, name: 7 if name == "a message" else None
    supernode.push_late_replies(module)
    assert module._pull_and_store_message(state=state, name="a message") == 7
    headers = [
        types.SimpleNamespace(message_id=name, run_id=1, reply_to_message_id=to) for name, to in (("m", ""), ("r", "m"))
    ]
    order, reply = (types.SimpleNamespace(metadata=metadata) for metadata in headers)
    state.store_message(order)
    assert module._pull_and_store_message(state=state, name="none") is None, "no reply: Flower waits and looks again"
    state.store_message(reply)
    assert module._pull_and_store_message(state=state, name="none") is not None, "Flower goes on to the push stage"
    assert [message.metadata.message_id for message in replies_in(state)] == ["r"], "still there for it"
    assert module._pull_and_store_message(state=state, name="none") is None


def test_flowers_loop_pulls_by_keyword_and_pushes_unless_none_was_pulled():
    """What :func:`push_late_replies` relies on."""
    module = importlib.import_module("flwr.supernode.start_client_internal")
    source = inspect.getsource(module.start_client_internal)
    assert "_pull_and_store_message(\n                state=state," in source
    assert "if run_id is None:" in source
    assert re.search(r"state\.get_messages(_legacy)?\(is_reply=True\)", inspect.getsource(module._push_messages))


class Waiting:
    """A store in which the content of ``whole`` is there, and that of ``lost`` never comes."""

    deleted = ()

    def get(self, object_id):
        return b"content" if object_id == "whole" else b""

    def delete(self, object_id):
        self.deleted += (object_id,)


def test_a_reply_whose_content_never_comes_is_given_up(monkeypatch):
    """A process that was killed between a reply and its content would stop the SuperNode for good."""
    monkeypatch.setattr(supernode, "CONTENT", 0.05)
    module, store, contents = types.ModuleType("flowers"), Waiting(), []

    def push(*, state, object_store):
        contents.append(object_store.get("whole"))
        with contextlib.suppress(TimeoutError):
            while object_store.get("lost") == b"":
                time.sleep(0.01)
        object_store.delete("reply")

    module._push_messages = push
    supernode.give_up_lost_content(module)
    module._push_messages(state=None, object_store=store)
    assert (contents, store.deleted) == ([b"content"], ("reply",))


def test_flower_waits_for_content_without_end_and_survives_an_exception():
    """What :func:`give_up_lost_content` works around, and relies on."""
    module = importlib.import_module("flwr.supernode.start_client_internal")
    assert "_push_messages(\n                state=state,\n                object_store=store," in inspect.getsource(
        module.start_client_internal
    )
    source = inspect.getsource(module._push_messages)
    assert 'while (content := object_store.get(tree.object_id)) == b"":' in source
    assert "except Exception as err:" in source


RUN = 7


@pytest.fixture
def open_message(monkeypatch):
    """Flower's module, the state of a SuperNode with a message of run 7, its task's number, and the store."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    flowers, store = importlib.import_module("flwr.supernode.start_client_internal"), ObjectStoreFactory().store()
    module = types.ModuleType("flowers")
    module._push_messages, module._insert_message = flowers._push_messages, flowers._insert_message
    state = InMemoryNodeState(store)
    with monkeypatch.context() as server:  # only there a process has a run
        for name, value in (("_run_id", RUN), ("_task_id", 1), ("_node_id", 1)):
            server.setattr(TaskIdentity, name, value)
        message = Message(RecordDict({"a": ConfigRecord({"b": 1})}), dst_node_id=5, message_type="train")
    number = state.create_task(task_type=TaskType.CLIENT_APP, run_id=RUN, fab_hash="f")
    module._insert_message(message, state, store)
    return module, state, number, store


def test_a_message_whose_task_ended_without_a_reply_is_answered(open_message):
    """Flower 1.39 waits without end for a process that was killed between the task's input and its message."""
    module, state, number, store = open_message
    assert state.claim_task(number)
    assert state.activate_task(number)
    assert supernode.abandoned(state) == []
    assert state.finish_task(number, "failed", "no heartbeat")
    sent = []

    def send(message, tree, seconds):
        sent.append(message)
        return set(), "session"

    supernode.answer_abandoned(module)
    push = threading.Thread(
        target=module._push_messages,
        kwargs={"state": state, "object_store": store, "send": send, "push_object": None},
        daemon=True,
    )
    push.start()
    push.join(20)
    assert not push.is_alive()
    assert [(message.has_error(), message.error.code, message.metadata.run_id) for message in sent] == [(True, 8, RUN)]
    assert not state.msg_store, "neither is left for the next message's task"


def test_a_message_with_a_reply_or_an_open_task_is_not_answered_for(open_message):
    from flwr.app import Error, Message

    module, state, number, store = open_message
    state.create_task(task_type=TaskType.CLIENT_APP, run_id=RUN, fab_hash="f")
    state.finish_task(number, "failed", "no heartbeat")
    assert supernode.abandoned(state) == [], "another task of the run may still read the message"
    for task in state.get_tasks(run_ids=[RUN]):
        state.finish_task(task.task_id, "failed", "no heartbeat")
    (message,) = supernode.abandoned(state)
    module._insert_message(Message(Error(2, "the client's own"), reply_to=message), state, store)
    assert supernode.abandoned(state) == []
    replies = replies_in(supernode.AnsweringState(state, pytest.fail))
    assert [reply.error.reason for reply in replies] == ["the client's own"]


@pytest.mark.parametrize(("cold", "poll"), [(False, ""), (False, "60"), (True, ""), (True, "60")])
def test_the_supernode_runs_with_every_change(monkeypatch, cold, poll):
    """With ``--cold`` without the resident process, and without its pauses unless ``--poll`` asks for longer ones."""
    internal = importlib.import_module("flwr.supernode.start_client_internal")
    command = importlib.import_module("flwr.supernode.cli.flower_supernode")
    originals = {name: getattr(internal, name) for name in ("time", "_pull_and_store_message", "_push_messages")}
    for name, value in originals.items():
        monkeypatch.setattr(internal, name, value)  # put back afterwards
    monkeypatch.setattr(node, "keep_executor", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["node", *["--cold"] * cold, "--port", "1", *(["--poll", poll] if poll else [])])
    observed = []

    def wrapped(function):
        """The names of the functions that are wrapped around Flower's."""
        cells = inspect.getclosurevars(function).nonlocals
        return [function.__name__, *wrapped(cells["push"])] if "push" in cells else []

    def started():
        if poll:
            pauses = internal.time.sleep.__self__
            assert pauses._longest[supernode.MESSAGE] == 60.0
        observed.extend(wrapped(internal._push_messages))
        observed.extend(name for name, value in originals.items() if getattr(internal, name) is not value)
        tls = [part for part in sys.argv if part.startswith("--ssl-")]
        assert tls == ["--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile"]
        observed.extend([*sys.argv[:3], *sys.argv[9:11]])

    monkeypatch.setattr(command, "flower_supernode", started)
    node.run()
    pauses = [] if cold and not poll else ["time"]
    process = [] if cold else ["--isolation", "process"]
    changed = ["push_or_answer", "push_or_give_up", *pauses, "_pull_and_store_message", "_push_messages"]
    assert observed == [*changed, "flower-supernode", "--port", "1", *process]


def test_a_server_writes_no_lines_of_its_own_into_a_nodes_log():
    """Flower writes a message's group id, which is any text, into the log as it is."""
    logger, lines = logging.Logger("of a test"), []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    supernode.log_one_line(logger)
    logger.info("[RUN %s, ROUND %s]", 7, "1]\nINFO : all is well \x1b[2J")
    logger.info("as\nFlower writes it: %.8s, %d", "0123456789", 3)
    assert lines == ["[RUN 7, ROUND 1] INFO : all is well ?[2J]", "as\nFlower writes it: 01234567, 3"]


def test_a_node_whose_heartbeat_ends_by_an_error_ends():
    """A server at its limit of calls refuses a heartbeat: Flower's thread ended, and the node was offline for good."""
    script = """
        import time

        import grpc
        from flwr.supercore.heartbeat import HeartbeatSender

        from sepal.engines.flower import node

        class Refused(grpc.RpcError):
            def code(self):
                return grpc.StatusCode.RESOURCE_EXHAUSTED

        def beat():
            raise Refused("no call left")

        def run():
            HeartbeatSender(beat).start()
            time.sleep(3)

        node.run = run
        node.main()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    completed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert completed.returncode == node.LOST
    assert "sepal: the SuperNode's loop ended: a thread of it, Refused('no call left')" in completed.stderr


def test_the_directory_of_certificate_and_secret_is_locked_against_cleaners_of_old_files():
    """As systemd-tmpfiles asks before it deletes what is ten days old, while the executor may still read it."""
    with node.own_directory() as directory:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        cleaner = os.open(directory, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(cleaner)
    assert not directory.exists()


def test_a_node_whose_loop_ends_by_an_error_removes_its_directory(tmp_path):
    """As where client and server end together: the SuperNode is ended from another thread, without its own blocks."""
    code = "import threading, time\nfrom sepal.engines.flower import node\nnode.end_with_threads()\n"
    code += "with node.own_directory() as directory:\n    (directory / 'secret').write_text('x')\n"
    code += "    threading.Thread(target=lambda: 1 / 0).start()\n    time.sleep(60)\n"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == node.LOST
    assert node.ENDED in completed.stderr
    assert list(tmp_path.iterdir()) == []
