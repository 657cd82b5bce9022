"""Restricts what a deployed node accepts from the run config, which the server writes.

Code (``package.module:function``) and paths come from the node's own config or must be on its list ``allow``. Sizes
are bounded by the node's memory.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from sepal.config import RunConfig, base, mark_values
from sepal.config.agreement import SERVER_ONLY
from sepal.config.base import AUTO
from sepal.config.elsewhere import PATHS, check_code
from sepal.data.catalogue import default_model
from sepal.data.federation import DealtData
from sepal.data.own import kind_of
from sepal.data.schema import parsed, schema_of
from sepal.data.sources import FOLDER
from sepal.errors import ProtocolError
from sepal.protocol.types import Kind
from sepal.tasks.inputs import row_size, several

if TYPE_CHECKING:
    from sepal.client_app.build import Node
    from sepal.data import FederatedData
    from sepal.protocol.messages import Order

COPIES = 6  # copies of a model in training: weights, gradient, two moments of Adam, the download, the upload
SHARE = 0.5  # of the memory that is available
MOST = 0.8  # of it, for all that an answer takes
NO_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")  # torch's words

# Of the keys that deal and split a node's own files: the values that never act by label.
BY_NUMBER: Mapping[str, Sequence[Any]] = mark_values(RunConfig, base.BY_NUMBER)


def local_config(run_config: Mapping[str, Any], node: Node) -> dict[str, Any]:
    """Return the run config with this node's own paths and code.

    Raises:
        ProtocolError: The run config names code or a path that the node neither has in its own config nor allows.
    """
    flat = {**run_config, "client-names": "numbers"}  # a node has its own name, and looks for no owners'
    if node.data:
        flat["own.data"] = ""
    how = "this node allows (sepal join --allow package.module:function)"
    check_code(flat, node.allow, how, ProtocolError, modules=False)
    hub = str(flat.get("hf.name", ""))
    if node.data_dir:
        flat["hf.name"] = flat["folder.schema"] = ""  # the node's own copy, and the schema beside its data
    elif hub and hub not in node.allow:
        expected = "a data set that this node allows (sepal join --allow OWNER/NAME), or its own copy (--data-dir)"
        raise ProtocolError("hf.name", expected, hub)
    for key in (key for key in PATHS if key not in SERVER_ONLY):
        value, node_value = str(flat.get(key, "")), getattr(node, key.replace("-", "_"), "")
        if node_value:
            flat[key] = node_value
        elif value and value not in node.allow:
            expected = f"a path that this node allows (sepal join --allow PATH, or its own --{key})"
            raise ProtocolError(key, expected, value)
    return flat


def check_noise(node: Node, config: RunConfig, order: Order, private: Collection[str]) -> None:
    """Check that an upload in answer to ``order`` has the noise that the node's operator requires.

    Args:
        node: The node's own configuration.
        config: The run's configuration.
        order: The server's order.
        private: Phases whose uploads have noise (:attr:`sepal.method.interface.Method.private_phases`).

    Raises:
        ProtocolError: The upload would have less noise, or none.
    """
    if not node.least_noise:
        return
    if node.only_secure and not config.privacy.distributed:
        expected = "distributed: this node demands noise in a secure sum (sepal join --only-secure --least-noise)"
        raise ProtocolError("privacy.mode", expected, config.privacy.mode)
    if config.privacy.of_rounds and not node.only_secure:
        expected = "local: this node adds the noise itself (sepal join --least-noise)"
        raise ProtocolError("privacy.mode", expected, config.privacy.mode)
    if config.privacy.noise < node.least_noise:
        expected = f"at least {node.least_noise:g}, as this node demands (sepal join --least-noise)"
        raise ProtocolError("privacy.noise", expected, config.privacy.noise)
    if order.kind is Kind.TRAIN and order.plan.phase not in private and not node.only_secure:  # else all rounds have it
        expected = "one whose uploads have noise, as this node demands (sepal join --least-noise)"
        raise ProtocolError("phase", expected, order.plan.phase)


def check_secure(node: Node, config: RunConfig) -> None:
    """Check that the run has secure sums, if the node's operator demands them.

    Raises:
        ProtocolError: It has none, so that the server would see single updates.
    """
    if node.only_secure and config.secure == "off":
        raise ProtocolError("secure", "sum, as this node demands (sepal join --only-secure)", config.secure)


def check_split(node: Node, config: RunConfig) -> None:
    """Check that the number of examples tells no label counts, if the node sends no accuracies, which tell them, too.

    The node's own files are dealt and split by the server's keys. Rules that act by label would answer, without an
    upload, how many examples each label has. So each key has one of the values ``BY_NUMBER``, under which no number of
    examples depends on the labels.

    Raises:
        ProtocolError: A key acts by label.
    """
    from sepal.data.sources import FILES

    if node.accuracies or node.data or config.dataset not in FILES:
        return
    keys = config.flat()
    for key, values in BY_NUMBER.items():
        if keys[key] not in values:
            words = " or ".join(str(value).lower() or "none" for value in values)
            expected = f"{words}, for this node's own files: others tell label counts (sepal join --no-accuracies)"
            raise ProtocolError(key, expected, keys[key])


def check_columns(node: Node, data: FederatedData) -> None:
    """Check that the server names no column of the node's own table, if the node sends no accuracies.

    A column that the server calls the labels' or the owners' answers what it holds, and a digest of categories that are
    found in the data says which occur there. A schema beside the data fixes both.

    Raises:
        ProtocolError: The server names a column that no schema names, or categories are those of the data.
    """
    if node.accuracies or not isinstance(data, DealtData) or data.spec.dataset != FOLDER:
        return
    keys, schema = data.spec.folder, schema_of(data.spec.folder)
    where = "a schema.toml beside this node's own data that says so (sepal join --no-accuracies)"
    for key, value, schema_value in (("label", keys.label, schema.label), ("person", keys.person, schema.client)):
        if value and value != schema_value:
            raise ProtocolError(f"folder.{key}", where, value)
    if keys.leave_out:
        raise ProtocolError("folder.leave-out", where, keys.leave_out)
    if not schema.column and not parsed(data.info.schema).is_plain:
        raise ProtocolError("folder.schema", f"{where}: a digest of the categories is sent", "none")


def available() -> int:
    """Return the bytes of memory that are available on this machine."""
    return int(psutil.virtual_memory().available)


@contextmanager
def limited_memory() -> Iterator[None]:
    """Answer a message within ``MOST`` of the memory that is available when it begins.

    The server decides on model, batch and method, and so on what a training step takes: activations, copies, several
    models at once. So the whole answer is measured by the operating system: an allocation beyond the limit fails, in
    this process alone. The limit is on the data segment and anonymous memory (Linux); files that are mapped, such as
    prepared data, do not count.

    Raises:
        ProtocolError: The answer takes more.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    room = int(MOST * available())
    most = _data_bytes() + room
    for bound in (soft, hard):
        most = most if bound == resource.RLIM_INFINITY else min(most, bound)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    except (MemoryError, RuntimeError) as reason:
        if isinstance(reason, RuntimeError) and not any(words in str(reason) for words in NO_MEMORY):
            raise
        expected = f"an answer within {room / 2**30:.3g} GiB of this node's"
        raise ProtocolError("memory", expected, "a model, batch or method that takes more") from reason
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Return the bytes of this process that count for the limit."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if line.startswith("VmData:")
    )
    return int(line.split()[1]) << 10


def check_sizes(flat: Mapping[str, Any], room: int = 0) -> None:
    """Check that a model and a batch of the sizes in the run config fit this machine's memory.

    Only ``dataset = own`` takes its sizes from the run config. A model is built without memory for its weights.

    Args:
        flat: The run config.
        room: Bytes that may be used; 0 for half of the available memory.

    Raises:
        ProtocolError: They do not fit.
    """
    if flat.get("dataset") != "own":
        return
    room = room or int(SHARE * available())
    expected = f"sizes that fit {room / 2**30:.3g} GiB of this node's memory"
    text = str(flat.get("own.shape", ""))
    parts = several(text)
    sides = [row_size(parts)] if parts else [int(side[:12]) for side in text.split("x") if side.isdecimal()]
    batch = flat.get("batch-size", 0)
    if 4 * math.prod(sides) * max(batch if isinstance(batch, int) else 0, 1) > room:
        raise ProtocolError("own.shape", expected, f"{text} in batches of {batch}")
    model = str(flat.get("model", AUTO))
    if ":" in model or not sides or (model == AUTO and parts):  # several inputs have no model by default
        return
    counts = [flat.get(key, 0) for key in ("own.classes", "own.vocabulary")]
    classes, vocabulary = (count if isinstance(count, int) else 0 for count in counts)
    if model == AUTO:
        model = default_model(kind_of(sides, vocabulary), tuple(sides))
    size = _model_bytes(model, sides, classes, vocabulary)
    if COPIES * size > room:
        raise ProtocolError("model", expected, f"{model} of {size / 2**30:.3g} GiB")


def _model_bytes(model: str, shape: list[int], classes: int, vocabulary: int) -> int:
    import torch

    from sepal import models

    with torch.device("meta"):  # shapes only
        module = models.build(model, shape, classes, vocabulary)
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


def parse_allowed(text: str) -> frozenset[str]:
    """Return the entries of the node's key ``allow``, which are separated by commas."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())
