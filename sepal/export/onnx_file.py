"""Writes a client's module as ONNX."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sepal.errors import ConfigError, ModelError, one_line
from sepal.export.portable import Origin
from sepal.storage.files import write_atomically


def write_onnx(
    module: torch.nn.Module, x: torch.Tensor, path: Path, origin: Origin, facts: Mapping[str, str] | None = None
) -> None:
    """Write a module as ONNX, for batches of any size, with what its inputs and outputs are as metadata.

    Args:
        module: The module.
        x: Two or more examples.
        path: The file.
        origin: What the module was built from.
        facts: Which model it is, for the metadata, too.

    Raises:
        ConfigError: onnx or onnxscript is not installed.
        ModelError: ONNX cannot express it.
    """
    try:
        import onnx

        batch = torch.export.Dim("batch")
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
            warnings.simplefilter("ignore", FutureWarning)  # from torch's own exporter
            torch.onnx.export(
                module,
                (x[:2],),
                Path(scratch) / "model.onnx",
                input_names=["x"],
                output_names=["y"],
                dynamo=True,
                dynamic_shapes=({0: batch},),
                external_data=False,
                verbose=False,
            )
            model = onnx.load(Path(scratch) / "model.onnx")
        _leave_out_notes(model)
        sides = {key: json.dumps(getattr(origin, key)) for key in ("columns", "class_names", "mean", "std", "task")}
        onnx.helper.set_model_props(model, {**sides, **(facts or {})})
        write_atomically(path, model.SerializeToString())
    except ImportError as missing:
        raise ConfigError("--onnx", "onnx and onnxscript: pip install onnx onnxscript", str(missing)) from None
    except torch.onnx.errors.OnnxExporterError as reason:
        raise ModelError("--onnx", "a model that ONNX can express", _cause(reason)) from None


def _leave_out_notes(message: Any) -> None:
    """Remove the exporter's notes from a protobuf message and all in it: paths and lines of sources on this machine."""
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                _leave_out_notes(inner)


def _cause(error: BaseException) -> str:
    """Return the first line of what made the exporter fail; its own message is a list of its steps."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
