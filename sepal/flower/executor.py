"""What the resident client process uses of Flower: the executor's interface, the Runtime API, and ``run_clientapp``.

A warm executor for ClientApps in Flower would replace all of it. Only the names in ``__all__`` are used.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest
from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.plugin import AutoExecPlugin
from flwr.supercore.utils import get_flwr_home

from sepal.flower.versions import unchanged

__all__ = [
    "AcquireTaskRequest",
    "AutoExecPlugin",
    "ErrorCode",
    "ExecutionSpec",
    "Fab",
    "LaunchResult",
    "ProtoMessage",
    "ProtobufClientInterceptor",
    "PushTaskOutputRequest",
    "Run",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeVersionHttpInterceptor",
    "SubprocessExecutor",
    "SuperExecAuthHttpInterceptor",
    "TaskType",
    "get_flwr_home",
    "log",
    "make_simple_http_retry_invoker",
    "message_from_proto",
    "message_to_proto",
    "remove_content_from_message",
    "runner",
]


def runner() -> ModuleType:
    """Return Flower's module that answers one message, if it is as expected.

    Raises:
        FlowerChangedError: It is not.
    """
    module = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    unchanged(module, "run_clientapp")
    return module
