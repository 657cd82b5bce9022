"""The resident client process behind a SuperNode: it has imported everything, and forks for each message.

Flower starts a new Python process for every message, which imports torch and the app again: 2 to 3 seconds. This
process takes the place of ``flower-superexec`` next to a SuperNode with ``--isolation process``. It acquires tasks over
Flower's Runtime API and answers each from a fork of itself, which runs Flower's own ``run_clientapp``.

A fork must run the app bundle's code. The first fork for a bundle compares its files with what was imported here,
before it loads a ClientApp. If they differ, it answers with an error, and Flower's own process is used for that bundle
from then on. If the installation changes, this process replaces itself.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

from flwr.app import Context, Error, Message

from sepal.engines.flower.code import Code, preload
from sepal.engines.flower.unpacking import bundles, unpack
from sepal.errors import ProtocolError
from sepal.flower import executor as private

Pull: TypeAlias = Callable[[private.RuntimeHttpClient], tuple[Message, Context, private.Run, private.Fab]]
R = TypeVar("R")

METHODS = frozenset(f"/flwr.proto.Runtime/{name}" for name in ("AcquireTask", "PullPendingTasks", "ClaimTask"))
IDLE, BUSY = 1.0, 0.1  # seconds between polls for tasks, and for ended children


@dataclass(frozen=True)
class Child:
    """A fork that answers a message: its task, and the pipe through which it names the message."""

    spec: private.ExecutionSpec
    note: int


class ForkExecutor:
    """A :class:`flwr.supercore.superexec.executor.Executor` that forks for tasks with this process's code.

    Args:
        code: What this process has imported.
        node: Process id of the SuperNode; a fork ends when it does.
        certificates: PEM root certificates of the Runtime API; None without TLS.
    """

    def __init__(self, code: Code, node: int, certificates: bytes | None) -> None:
        self.children: dict[int, Child] = {}
        self._code, self._node, self._certificates = code, node, certificates
        self._cold = private.SubprocessExecutor()
        self._foreign: set[str] = set()  # bundles with other code

    def get_eligible_capacity(
        self,
        supported_task_types: set[private.TaskType],
        *,
        insecure: bool = False,
        root_certificates_path: str | None = None,
    ) -> tuple[set[private.TaskType], set[str]]:
        """Accept every kind of task."""
        return supported_task_types, set()

    def wait_for_capacity(
        self,
        task_type: private.TaskType | None = None,
        *,
        fab_hash: str | None = None,
        insecure: bool = False,
        root_certificates_path: str | None = None,
    ) -> None:
        """Return at once."""

    def launch(self, spec: private.ExecutionSpec) -> private.LaunchResult:
        """Fork for the task, or start Flower's own process if the bundle's code is known to differ."""
        fab = spec.fab_hash or ""
        if spec.task_type is not private.TaskType.CLIENT_APP or not fab or self._is_ours(fab) is False:
            return self._cold.launch(spec)
        parent_end, child_end = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(parent_end)
            answer(spec, self._node, self._certificates, child_end, partial(self._check, fab))
        os.close(child_end)
        self.children[pid] = Child(spec, parent_end)
        return private.LaunchResult.accepted()

    def reconcile(self) -> None:
        """Reap the forks that have ended, and answer for those that were killed, so that no round waits for them."""
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            child = self.children.pop(pid, None)
            if child is None:
                continue
            words = os.read(child.note, 1 << 16)
            os.close(child.note)
            if os.WIFSIGNALED(status) and words:
                reason = f"the client's process was ended by signal {os.WTERMSIG(status)}"
                private.log(WARNING, "task %d: %s", child.spec.task_id, reason)
                with contextlib.suppress(Exception):
                    answer_for(child.spec, self._certificates, words, reason)

    def close(self) -> None:
        """Leave the forks alone: they answer and end by themselves."""

    def _is_ours(self, fab: str) -> bool | None:
        """Return whether a bundle holds the code that was imported here; None before it is unpacked.

        Only a difference is remembered: a directory that a kill left half unpacked may look like no code at all.
        """
        if fab in self._foreign:
            return False
        unpacked = bundles(private.get_flwr_home(), fab)
        if not unpacked:
            return None
        same = all(self._code.same_as(bundle) for bundle in unpacked)
        if not same:
            self._foreign.add(fab)
            private.log(WARNING, "bundle %.8s holds other code than this client: a new process per message", fab)
        return same

    def _check(self, fab: str) -> None:
        """Raise an error if a bundle, which is unpacked by now, holds other code."""
        if not self._is_ours(fab):
            raise ProtocolError("bundle", "the code that this client has imported", f"another, {fab[:8]}: ask again")


def answer(
    spec: private.ExecutionSpec, node: int, certificates: bytes | None, note: int, check: Callable[[], None]
) -> NoReturn:
    """Answer one message in a fork, then end the fork without the parent's exit handlers.

    Args:
        spec: The task.
        node: Process id of the SuperNode.
        certificates: Of the Runtime API.
        note: File descriptor to which the message is written, without its content, once it is there.
        check: Called when the bundle is unpacked, before its ClientApp is loaded; may raise an error, which is sent.
    """
    code = 1
    try:
        flower = private.runner()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        # Flower's mods would not do: the bundle may name a ClientApp without them.
        steps = vars(flower)
        install = steps["install_from_fab"]
        steps["pull_task_input"] = noting(note, steps["pull_task_input"])
        steps["install_from_fab"] = lambda fab, skip_prompt: unpack(install, fab, private.get_flwr_home())
        steps["get_load_client_app_fn"] = after(check, steps["get_load_client_app_fn"])
        flower.run_clientapp(
            spec.runtime_api_address, spec.token, spec.insecure, certificates, node, runtime_dependency_install=False
        )
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def noting(note: int, pull: Pull) -> Pull:
    """Return ``pull`` that also tells the parent which message is being answered."""

    def pull_and_note(client: private.RuntimeHttpClient) -> tuple[Message, Context, private.Run, private.Fab]:
        pulled = pull(client)
        with contextlib.suppress(OSError):  # the parent has restarted
            os.write(note, outline(pulled[0]).SerializeToString())
        return pulled

    return pull_and_note


def after(check: Callable[[], None], step: Callable[..., R]) -> Callable[..., R]:
    """Return ``step`` that is preceded by ``check``."""

    def checked(*parts: Any, **named: Any) -> R:
        check()
        return step(*parts, **named)

    return checked


def outline(message: Message) -> private.ProtoMessage:
    """Return a message without its content."""
    return private.message_to_proto(private.remove_content_from_message(message))


def answer_for(spec: private.ExecutionSpec, certificates: bytes | None, words: bytes, reason: str) -> None:
    """Send the error reply of a fork that was killed, and finish its task."""
    from flwr.app import RecordDict

    message = private.message_from_proto(private.ProtoMessage.FromString(words))
    about = message.metadata
    reply = Message(Error(private.ErrorCode.CLIENT_APP_CRASHED, reason), reply_to=message)
    client = connect(spec.runtime_api_address, spec.insecure, certificates, token=spec.token)
    try:
        private.runner().push_message(client, reply, Context(about.run_id, about.dst_node_id, {}, RecordDict(), {}))
        client.PushTaskOutput(private.PushTaskOutputRequest(sub_status="failed", details=reason))
    finally:
        client.close()


def connect(
    address: str, insecure: bool, certificates: bytes | None, secret: bytes | None = None, token: str = ""
) -> private.RuntimeHttpClient:
    """Return a client of a SuperNode's Runtime API, for a task by its token or for acquiring tasks."""
    retries = private.make_simple_http_retry_invoker()
    retries.max_tries = 1  # the caller's own loop tries again
    interceptors: list[private.ProtobufClientInterceptor] = [
        private.RuntimeVersionHttpInterceptor(component_name="SuperExec")
    ]
    interceptors += [private.RuntimeTokenHttpInterceptor(token)] if token else []
    interceptors += (
        [private.SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=METHODS)] if secret else []
    )
    return private.RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=insecure,
        root_certificates=certificates,
        interceptors=interceptors,
        retry_invoker=retries,
    )


def serve(arguments: argparse.Namespace) -> None:
    """Acquire tasks and launch them until the SuperNode ends."""
    code = Code.imported_by(preload)
    private.runner()  # raises an error here if Flower has changed, not in each fork
    gc.freeze()  # forks share the pages of what was imported
    path = arguments.root_certificates
    certificates = Path(path).read_bytes() if path else None
    secret = Path(arguments.superexec_auth_secret_file).read_bytes()
    executor = ForkExecutor(code, arguments.node, certificates)
    insecure = certificates is None
    client = connect(arguments.runtime_api_address, insecure, certificates, secret)
    plugin = private.AutoExecPlugin(arguments.runtime_api_address, insecure, path, False, executor=executor)
    private.log(INFO, "client process ready")
    looked = 0.0
    while True:
        executor.reconcile()
        if code.changed():  # forks that are still answering finish by themselves
            private.log(INFO, "the installation has changed: starting anew")
            os.execv(sys.executable, [sys.executable, "-P", "-m", "sepal.engines.flower.warm", *sys.argv[1:]])
        # A SuperNode has one message at a time. But Flower leaves tasks whose message it dropped, and their forks hang.
        if not executor.children or time.monotonic() - looked >= IDLE:
            looked = time.monotonic()
            try:
                answer = client.AcquireTask(
                    private.AcquireTaskRequest(supported_task_types=plugin.supported_task_types)
                )
            except Exception as reason:
                private.log(ERROR, "the SuperNode does not answer: %s", reason)
            else:
                if answer.HasField("task") and answer.token:
                    plugin.launch_task(token=answer.token, task=answer.task)
        if not wait(arguments.wake, BUSY if executor.children else IDLE):
            return


def wait(wake: int, seconds: float) -> bool:
    """Wait up to ``seconds`` for a message to the SuperNode; return False if the SuperNode has ended."""
    ready, _, _ = select.select([wake], [], [], seconds)
    return not ready or bool(os.read(wake, 1 << 10))


def main() -> None:
    """Run the process; ``sepal.engines.flower.node`` starts it."""
    parser = argparse.ArgumentParser(description="Resident client process behind a SuperNode.")
    parser.add_argument("--runtime-api-address", required=True, help="HOST:PORT of the SuperNode's Runtime API")
    parser.add_argument("--root-certificates", help="PEM file; none for plain HTTP")
    parser.add_argument("--superexec-auth-secret-file", required=True)
    parser.add_argument("--node", type=int, required=True, help="process id of the SuperNode")
    parser.add_argument("--wake", type=int, required=True, help="file descriptor that is readable when a message came")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # nothing to clean up, and torch's exit handlers take long
    with contextlib.suppress(KeyboardInterrupt):
        serve(parser.parse_args())


if __name__ == "__main__":
    main()
