"""Devices of training: which one a process uses, and what makes its results repeatable."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from sepal.errors import ConfigError, DeviceMemoryError, one_line
from sepal.seeding import generators_seeded

log = logging.getLogger("sepal")
AT_ONCE = 16  # clients that train at once on an accelerator; measured on one GPU (tools/results/gpu.md)
NO_DOUBLE = frozenset({"mps"})  # kinds without float64, which some methods need: never chosen by ``auto``


def choose_device(device: str) -> str:
    """Return the device that ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``, ``xpu``, … means on this machine.

    ``auto`` is torch's accelerator if there is one, but not ``mps``, which has no float64. A kind without a number is
    the process's current device of that kind.

    Raises:
        ConfigError: This machine does not have the device.
    """
    if device == "cpu":
        return device
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if device == "auto":
        return "cpu" if accelerator is None or accelerator.type in NO_DOUBLE else accelerator.type
    if accelerator is None:
        raise ConfigError("device", "cpu or auto on a machine without an accelerator", device)
    count = torch.accelerator.device_count()
    kind, _, number = device.partition(":")
    if kind != accelerator.type or int(number or 0) >= count:
        numbered = ", ".join(f"{accelerator.type}:{index}" for index in range(min(count, 8)))
        raise ConfigError("device", f"auto, cpu, {accelerator.type}" + (f", {numbered}" if count > 1 else ""), device)
    return device


def spread(device: str, gpus: str, workers: int) -> Sequence[str]:
    """Return the device of each in-process worker: all accelerators in turn, or those of the key ``gpus``.

    Args:
        device: The run's key.
        gpus: Numbers of accelerators such as ``0,1``; empty for all.
        workers: Number of workers; several share an accelerator if there are more of them.

    Raises:
        ConfigError: This machine does not have a device, or ``gpus`` is given with a device that it does not fit.
    """
    chosen = choose_device(device)
    if gpus and (chosen == "cpu" or ":" in chosen):
        raise ConfigError("gpus", "an accelerator without a number as device", f"device = {chosen}")
    if chosen == "cpu" or ":" in chosen:
        return [chosen] * workers
    count = torch.accelerator.device_count()
    numbers = [int(part) for part in gpus.split(",")] if gpus else range(count)
    devices = [choose_device(f"{chosen}:{number}") for number in numbers] if gpus or count > 1 else [chosen]
    return [devices[worker % len(devices)] for worker in range(workers)]


def at_once(batch: int, device: str) -> int:
    """Return how many clients of a worker train at once: ``batch``, or for 0 what suits the device."""
    return batch or (1 if device == "cpu" else AT_ONCE)


def be_deterministic(enabled: bool) -> None:
    """Let torch use only algorithms whose results repeat, or any; an operator that has none then raises an error.

    To be called before the first use of an accelerator: cuBLAS reads its setting once.
    """
    if enabled == torch.are_deterministic_algorithms_enabled():
        return
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch._C._set_deterministic_algorithms(enabled)  # torch's own function imports its compiler, about a second


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Let the global generators start from ``seed``; the CPU's states are restored afterwards.

    Args:
        seed: Any int from 0.
        device: The device on which is trained.
    """
    with generators_seeded(seed):
        kind = torch.device(device).type
        if kind != "cpu":
            module, short = torch.get_device_module(kind), seed % 2**63
            module.manual_seed_all(short) if hasattr(module, "manual_seed_all") else module.manual_seed(short)
        yield


def check_precision(precision: str, device: str) -> None:
    """Raise if the device has no autocast for the run key ``precision``.

    Raises:
        ConfigError: See above.
    """
    kind = torch.device(device).type
    if precision != "fp32" and not torch.amp.autocast_mode.is_autocast_available(kind):
        raise ConfigError("precision", f"fp32 on {kind}, for which torch has no autocast", precision)


@contextmanager
def device_memory() -> Iterator[None]:
    """Turn torch's error about a full device into one line, and give cached memory back for the next client.

    Raises:
        DeviceMemoryError: The device's memory was full.
    """
    try:
        yield
        return
    except torch.OutOfMemoryError as reason:
        log.warning("%s", one_line(str(reason)))
    # Out of the except block, whose traceback holds the tensors.
    if torch.accelerator.is_available():
        with suppress(RuntimeError):  # a kind of device whose memory torch does not cache
            torch.accelerator.empty_cache()
    raise DeviceMemoryError("device", "an answer that fits its memory", "none: try a smaller batch-size or width")
