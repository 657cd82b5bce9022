"""The resident client process: whose code a fork runs, and the SuperNode's pauses."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import threading
import time
import types

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supercore.task_identity import TaskIdentity

from sepal_engines.flower import node, warm
from sepal_engines.flower.code import Code, digest, stamp
from sepal_engines.flower.engine import wants_gpu

FILES = {"sepal/__init__.py": "", "sepal/rng.py": "A = 1\n", "sepal/lazy.py": "B = 1\n", "client_app/app.py": "C = 1\n"}


def write(root, files=FILES):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def code(tmp_path):
    root = write(tmp_path / "installed")
    stamps = tuple(stamp(root / name) for name in FILES)
    digests = {name: digest(root / name) for name in FILES}
    return Code(root, digests, stamps, frozenset(FILES) - {"sepal/lazy.py"})


def test_a_bundle_without_code_or_with_the_same_code_is_answered_by_a_fork(code, tmp_path):
    assert code.same_as(write(tmp_path / "none", {"pyproject.toml": ""}))
    assert code.same_as(write(tmp_path / "same"))
    assert code.same_as(write(tmp_path / "part", {"client_app/app.py": "C = 1\n", "users.py": "D = 1\n"}))


@pytest.mark.parametrize(
    "files",
    [
        {**FILES, "sepal/rng.py": "A = 2\n"},
        {**FILES, "sepal/lazy.py": "B = 2\n"},  # not imported yet, but a later message may import it
        {**FILES, "sepal/more.py": ""},
        {name: text for name, text in FILES.items() if name != "sepal/rng.py"},
        {**FILES, "models.py": ""},
    ],
    ids=["changed", "changed and not imported yet", "added", "removed", "a module that hides a package"],
)
def test_a_bundle_with_other_code_is_not(code, tmp_path, files):
    assert not code.same_as(write(tmp_path / "bundle", files))


def test_an_upgrade_of_the_installation_is_seen(code):
    assert not code.changed()
    os.utime(code.root / "sepal/lazy.py", ns=(1, 1))
    assert code.changed()
    again = Code(code.root, code.digests, tuple(stamp(code.root / name) for name in FILES), code.imported)
    (code.root / "sepal/rng.py").unlink()
    assert again.changed()


def test_the_running_code_is_that_of_this_checkout():
    import client_app.app

    found = Code.now()
    assert found.same_as(found.root)
    assert os.path.join("client_app", "app.py") in found.imported
    assert client_app.app.app is not None


@pytest.fixture
def slept(monkeypatch):
    found = []
    monkeypatch.setattr(node.time, "sleep", found.append)
    return found


def test_pauses_grow_to_flowers_own_and_are_short_again_after_a_message(slept):
    read, write = os.pipe()
    os.set_blocking(write, False)
    pauses = node.Pauses(write)
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


def test_a_reader_that_does_not_read_does_not_stop_the_supernode(slept):
    _, write = os.pipe()
    os.set_blocking(write, False)
    pauses = node.Pauses(write)
    for _ in range(70_000):
        pauses.sleep(0.5)
    assert len(slept) == 70_000


def test_flowers_module_is_built_as_expected():
    import importlib

    module = importlib.import_module("flwr.supernode.start_client_internal")
    before = module.time
    try:
        assert node.shorten(module, node.Pauses(-1))
        assert module.time.sleep is not time.sleep
    finally:
        module.time = before
    assert not node.shorten(types.ModuleType("another"), node.Pauses(-1))


def test_a_late_reply_is_pushed_although_no_message_comes():
    """Flower pushes after a message only: a reply whose place an older one took would wait for the next message."""
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    module, state = types.ModuleType("flowers"), InMemoryNodeState(object_store=None)
    module._pull_and_store_message = lambda *, state, name: 7 if name == "a message" else None
    assert node.push_late_replies(module)
    assert module._pull_and_store_message(state=state, name="a message") == 7
    made = [
        types.SimpleNamespace(message_id=name, run_id=1, reply_to_message_id=to) for name, to in (("m", ""), ("r", "m"))
    ]
    asked, reply = (types.SimpleNamespace(metadata=metadata) for metadata in made)
    state.store_message(asked)
    assert module._pull_and_store_message(state=state, name="none") is None, "no reply: Flower waits and looks again"
    state.store_message(reply)
    assert module._pull_and_store_message(state=state, name="none") is not None, "Flower goes on to the push stage"
    assert [each.metadata.message_id for each in state.get_messages(is_reply=True)] == ["r"], "still there for it"
    assert module._pull_and_store_message(state=state, name="none") is None
    assert not node.push_late_replies(types.ModuleType("another"))


def test_flowers_loop_pulls_by_keyword_and_pushes_unless_none_was_pulled():
    """What :func:`push_late_replies` relies on."""
    module = importlib.import_module("flwr.supernode.start_client_internal")
    source = inspect.getsource(module.start_client_internal)
    assert "_pull_and_store_message(\n                state=state," in source
    assert "if run_id is None:" in source
    assert "state.get_messages(is_reply=True)" in inspect.getsource(module._push_messages)


class Waiting:
    """A store in which the content of ``whole`` is there, and that of ``lost`` never comes."""

    deleted = ()

    def get(self, object_id):
        return b"content" if object_id == "whole" else b""

    def delete(self, object_id):
        self.deleted += (object_id,)


def test_a_reply_whose_content_never_comes_is_given_up(monkeypatch):
    """A process that was killed between a reply and its content would stop the SuperNode for good."""
    monkeypatch.setattr(node, "CONTENT", 0.05)
    module, store, found = types.ModuleType("flowers"), Waiting(), []

    def push(*, state, object_store):
        found.append(object_store.get("whole"))
        with contextlib.suppress(TimeoutError):
            while object_store.get("lost") == b"":
                time.sleep(0.01)
        object_store.delete("reply")

    module._push_messages = push
    assert node.give_up_lost_content(module)
    module._push_messages(state=None, object_store=store)
    assert (found, store.deleted) == ([b"content"], ("reply",))
    assert not node.give_up_lost_content(types.ModuleType("another"))


def test_flower_waits_for_content_without_end_and_survives_an_exception():
    """What :func:`give_up_lost_content` mends, and relies on."""
    module = importlib.import_module("flwr.supernode.start_client_internal")
    assert "_push_messages(\n                state=state,\n                object_store=store," in inspect.getsource(
        module.start_client_internal
    )
    source = inspect.getsource(module._push_messages)
    assert 'while (content := object_store.get(tree.object_id)) == b"":' in source
    assert "except Exception as err:" in source


RUN = 7


@pytest.fixture
def asked(monkeypatch):
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


def test_a_message_whose_task_ended_without_a_reply_is_answered(asked):
    """Flower 1.39 waits without end for a process that was killed between the task's input and its message."""
    module, state, number, store = asked
    assert state.claim_task(number)
    assert state.activate_task(number)
    assert node.abandoned(state) == []
    assert state.finish_task(number, "failed", "no heartbeat")
    sent = []

    def send(message, tree, seconds):
        sent.append(message)
        return set(), "session"

    assert node.answer_abandoned(module)
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
    assert not node.answer_abandoned(types.ModuleType("another"))


def test_a_message_with_a_reply_or_an_open_task_is_not_answered_for(asked):
    from flwr.app import Error, Message

    module, state, number, store = asked
    state.create_task(task_type=TaskType.CLIENT_APP, run_id=RUN, fab_hash="f")
    state.finish_task(number, "failed", "no heartbeat")
    assert node.abandoned(state) == [], "another task of the run may still read the message"
    for task in state.get_tasks(run_ids=[RUN]):
        state.finish_task(task.task_id, "failed", "no heartbeat")
    (message,) = node.abandoned(state)
    module._insert_message(Message(Error(2, "the client's own"), reply_to=message), state, store)
    assert node.abandoned(state) == []
    replies = node.AnsweringState(state, pytest.fail).get_messages(is_reply=True)
    assert [reply.error.reason for reply in replies] == ["the client's own"]


def test_a_node_on_a_gpu_starts_cold():
    assert wants_gpu({"device": "cuda"})
    assert not wants_gpu({"device": "cpu"})


def task(kind="flwr-clientapp", fab="f" * 64):
    return ExecutionSpec(TaskType(kind), "127.0.0.1:1", "token", True, None, False, None, False, 7, fab)


@pytest.mark.parametrize(
    ("ending", "answered"),
    [
        ("os.write(note, b'outline'); os.kill(os.getpid(), 9)", True),
        ("os.kill(os.getpid(), 9)", False),  # it had not read its message: the SuperNode notices by itself
        ("os.write(note, b'outline'); os._exit(1)", False),  # it has sent its own error
    ],
    ids=["killed", "killed before it read its message", "failed"],
)
def test_a_fork_that_was_killed_is_answered_for(monkeypatch, code, ending, answered):
    found = []
    monkeypatch.setattr(warm, "noting", lambda note: note)
    monkeypatch.setattr(
        warm, "answer", lambda spec, node, certificates, mods: exec(ending, {"os": os, "note": mods[0]})
    )
    monkeypatch.setattr(warm, "answer_for", lambda *parts: found.append(parts))
    executor = warm.ForkExecutor(code, os.getpid(), None)
    executor._same["f" * 64] = True
    executor.launch(task())
    end = time.monotonic() + 20
    while executor.children and time.monotonic() < end:
        executor.reconcile()
    assert not executor.children
    assert [(parts[0].task_id, parts[2]) for parts in found] == ([(7, b"outline")] if answered else [])


def test_other_code_and_other_tasks_get_flowers_own_process(monkeypatch, code, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    write(tmp_path / "apps" / f"sepal.sepal-fl.0.1.0.{'e' * 8}", {**FILES, "sepal/rng.py": "A = 2\n"})
    cold = []
    monkeypatch.setattr(warm.SubprocessExecutor, "launch", lambda self, spec: cold.append(spec.fab_hash))
    executor = warm.ForkExecutor(code, os.getpid(), None)
    executor.launch(task(fab="e" * 64))
    executor.launch(task(fab=""))
    assert cold == ["e" * 64, ""]
    assert not executor.children


def test_the_supernode_runs_with_every_change(monkeypatch):
    command = importlib.import_module("flwr.supernode.cli.flower_supernode")

    internal = importlib.import_module("flwr.supernode.start_client_internal")
    own = {name: getattr(internal, name) for name in ("time", "_pull_and_store_message", "_push_messages")}
    for name, value in own.items():
        monkeypatch.setattr(internal, name, value)  # put back afterwards
    monkeypatch.setattr(node, "keep_executor", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["node", "--port", "1"])
    found = []

    def wrapped(function):
        """The names of the functions that are wrapped around Flower's."""
        cells = inspect.getclosurevars(function).nonlocals
        return [function.__name__, *wrapped(cells["push"])] if "push" in cells else []

    def started():
        found.extend(wrapped(internal._push_messages))
        found.extend(name for name, value in own.items() if getattr(internal, name) is not value)

    monkeypatch.setattr(command, "flower_supernode", started)
    node.main()
    assert found == ["push_or_answer", "push_or_give_up", "time", "_pull_and_store_message", "_push_messages"]
