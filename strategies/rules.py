"""The rules between run-config keys and a run's method, data and model.

:func:`sepal.strategies.assembly.assemble` checks them, so every engine, every client and every command refuses the same
keys before a run starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sepal.config import RunConfig, mark_values
from sepal.config.base import BY_NUMBER
from sepal.data import DatasetInfo, FederatedData
from sepal.data.federation import DealtData
from sepal.errors import ConfigError
from sepal.layout import Layout, statistics, trained
from sepal.method import Method, capabilities
from sepal.method.capabilities import Capability
from sepal.method.interface import resolve
from sepal.strategies import registry
from sepal.tasks import Task

# The values under which no partition acts by label, from the marks of the keys.
UNLABELLED: Mapping[str, list[str]] = {
    key: values for key, values in mark_values(RunConfig, BY_NUMBER).items() if key.startswith("partition.")
}


def check_method(method: Method, config: RunConfig) -> None:
    """Raise if a key is set that the method does not take.

    Raises:
        ConfigError: See above; the error names the methods that take it.
    """
    if config.privacy.by_clients and not method.private_phases:
        others, void = (
            _names(lambda candidate: bool(candidate.private_phases)),
            _void(method, capabilities.PRIVATE, method.client),
        )
        expected = f"0: uploads of {method.name} are not clipped and noised{void} (those of {others} are)"
        raise ConfigError("privacy.clip", expected, config.privacy.clip)
    if config.privacy.of_rounds and not method.summed_phases:
        others = _names(lambda candidate: bool(candidate.summed_phases))
        void, why = _void(method, capabilities.SUMMED, method.server), _reads(method)
        expected = f"local: {method.name} needs more than the mean of the uploads: {why}{void} (methods that take it: "
        raise ConfigError("privacy.mode", f"{expected}{others})", config.privacy.mode)
    if config.compress.name != "none" and not method.dense:
        others = _names(lambda candidate: candidate.dense)
        void = _void(method, capabilities.DENSE_CLIENT, method.client)
        void = void or _void(method, capabilities.DENSE_SERVER, method.server)
        expected = (
            f"none: {method.name} does not exchange one dense model both ways{void} (methods that take it: {others})"
        )
        if method.compression:
            expected = f"none: {method.name} compresses by keys of its own{void} (methods that take it: {others})"
        raise ConfigError("compress.name", expected, config.compress.name)
    if config.robust_mean != "none" and not method.robust:
        others, void = _names(lambda candidate: candidate.robust), _void(method, capabilities.ROBUST, method.server)
        expected = f"none: {method.name} has a mean of its own{void} (methods that take it: {others})"
        raise ConfigError("robust-mean", expected, config.robust_mean)
    if config.secure != "off" and not method.summed_phases:
        others, void = (
            _names(lambda candidate: bool(candidate.summed_phases)),
            _void(method, capabilities.SUMMED, method.server),
        )
        expected = (
            f"off: {method.name} needs more than the sum of the uploads: {_reads(method)}{void} (methods that take it: "
        )
        raise ConfigError("secure", f"{expected}{others})", config.secure)
    now, plain = config.flat(), RunConfig().flat()
    for key, reason in method.fixed_keys.items():
        default = method.defaults.get(key, plain[key])
        if now[key] not in (plain[key], default):
            expected = "nothing" if default == "" else default
            raise ConfigError(key, f"{expected} with {method.name}, {reason}", now[key])


def check_task(method: Method, config: RunConfig, task: Task, info: DatasetInfo) -> None:
    """Raise if the method needs what the task lacks, or a key does not go with the task or the data.

    Raises:
        ConfigError: See above.
    """
    lacking = [need for need in method.needs_of_task if need not in task.offers]
    if lacking:
        raise ConfigError("task", f"one with {lacking[0]}, which {method.name} needs", task.name)
    simple = task.targets.shape in ((), (1,)) and not task.targets.floating
    if config.secure != "off" and not task.scoring.counted:
        expected = "classification by accuracy with secure = sum: figures of other tasks are not summed"
        raise ConfigError("task", expected, f"{task.name}, metric {config.metric}")
    if info.labelled and not simple:
        expected = f"classification for {info.name}, whose targets are class numbers (docs/tasks.md)"
        raise ConfigError("task", expected, task.name)
    if not task.classifies and config.own.class_weights != "none":
        raise ConfigError("own.class-weights", f"none for the task {task.name}", config.own.class_weights)
    if not task.classifies and config.label_smoothing:
        expected = f"0 for the task {task.name}, whose targets are no classes of whole examples"
        raise ConfigError("label-smoothing", expected, config.label_smoothing)
    if config.augment == "crop-flip" and (info.kind != "image" or task.name == "segmentation"):
        target = (
            "data of kind " + info.kind if info.kind != "image" else "segmentation, whose targets would have to follow"
        )
        raise ConfigError("augment", f"nothing, or package.module:function of your own, for {target}", config.augment)
    if config.augment not in ("", "crop-flip") and ":" not in config.augment:
        raise ConfigError("augment", "crop-flip, or package.module:function of your own", config.augment)


def check_data(config: RunConfig, data: FederatedData) -> None:
    """Raise if an evaluation is asked for that is impossible with the data.

    Raises:
        ConfigError: See above.
    """
    kind = data.info.kind
    names = ["auto", *UNLABELLED["partition.name"]]
    within = UNLABELLED["partition.within"] if config.partition.name == "domain" else [config.partition.within]
    for key, value, allowed in (
        ("partition.name", config.partition.name, names),
        ("partition.within", config.partition.within, within),
    ):
        if not data.info.labelled and value not in allowed:
            expected = f"{', '.join(allowed)} for the task {config.task}: there are no class numbers to deal by"
            raise ConfigError(key, expected, value)
    if config.partition.noise and kind == "text":
        raise ConfigError("partition.noise", "0 for data of kind text, whose inputs are tokens", config.partition.noise)
    if config.partition.noise and not isinstance(data, DealtData):
        expected = "0 where clients bring data of their own, which nothing deals"
        raise ConfigError("partition.noise", expected, config.partition.noise)
    if config.drift.name == "label" and not data.info.labelled:
        expected = f"none or time for the task {config.task}, which has no class numbers"
        raise ConfigError("drift.name", expected, config.drift.name)
    for key, on in (("split.by", config.split.by == "time"), ("split.test-of-labels", config.split.test_of_labels)):
        if on and not data.info.labelled:
            raise ConfigError(key, f"its default for the task {config.task}, which has no class numbers", "another")
    if config.evaluate.corruption != "none" and kind != "image":
        raise ConfigError("evaluate.corruption", f"none for data of kind {kind}", config.evaluate.corruption)
    if config.evaluate.shift and data.private:
        raise ConfigError("evaluate.shift", f"false ({data.private})", "true")


def check_model(config: RunConfig, layout: Layout) -> None:
    """Raise if the model has no parameter to train, or running statistics in a run whose uploads are clipped.

    Raises:
        ConfigError: See above.
    """
    if not trained(layout):
        raise ConfigError("model", "at least one parameter that is trained", f"{config.model}, which freezes all")
    if config.privacy.by_clients and statistics(layout):
        expected = "a model without running statistics, which no clipping bounds (such as one with group norm)"
        raise ConfigError("model", f"{expected}, with privacy.clip", config.model)


def _reads(method: Method) -> str:
    """Return what its server reads of single uploads, in words."""
    if method.compression:
        return "each client chooses its own entries"
    return method.reads_uploads or "its server may read single uploads"


def _names(which: Callable[[Method], bool]) -> str:
    return ", ".join(name for name in registry.METHODS if which(registry.get(name)))


def _void(method: Method, capability: Capability, algorithm: Any) -> str:
    """Return why a method of the user's own lacks what it inherits; empty if it is built in, or inherits nothing."""
    kind = resolve(algorithm)
    names = capability.overridden(kind)
    if method.name in registry.METHODS or not names:
        return ""
    return f"; {kind.__name__} overrides {', '.join(names)} and does not claim {capability.attribute} again"
