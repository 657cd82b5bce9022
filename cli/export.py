"""``sepal export`` and ``sepal predict``: export a client's model from its run, and use it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sepal.cli.app import app
from sepal.cli.notices import starting, tell
from sepal.errors import ConfigError, DataError, one_line

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sepal.client_app.portable import Loaded


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run directory, or a run's name.")],
    client: Annotated[str, typer.Argument(help="The client's name, such as client-00003, or its number, 3.")],
    out: Annotated[Path | None, typer.Option(help="The file; by default RUN/client-00003.safetensors.")] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write CLIENT.onnx beside it (needs onnx and onnxscript).")
    ] = False,
    view: Annotated[str, typer.Option(help="Instead: its received, trained or kept model (docs/views.md).")] = "",
) -> None:
    """Write a client's deployed model, whose accuracy the tables show, as safetensors and ONNX."""
    with starting():
        import torch

        from sepal.client_app.client_model import write_model
        from sepal.client_app.onnx_file import write_onnx
        from sepal.study.runs import find_run, model_of

    path = find_run(run)
    found = model_of(path, client, view)
    file = out or path / f"{found.origin.client}.safetensors"
    kept = write_model(found, file)
    typer.echo(f"written to {file}{tested(path, found.origin.client, found.view)}")
    if found.labels == 1:
        tell(f"sepal: {found.origin.client} has training examples of one class alone: its own model knows no other")
    if onnx:
        write_onnx(kept.module, torch.from_numpy(found.inputs), file.with_suffix(".onnx"), found.origin)
        typer.echo(f"written to {file.with_suffix('.onnx')}")


def tested(path: Path, client: str, view: str) -> str:
    """Return which model was exported, and what it had in the closing evaluation; of an unfinished run the former."""
    from sepal.server_app.stored_run import read_run

    stored = read_run(path)
    last = [each for line in stored.lines if line["phase"] == "closing" for each in line["clients"]]
    found = next((each[view] for each in last if each["name"] == client and each[view] is not None), None)
    had = "" if found is None else f", {stored.measure.name} on the client's test data {stored.measure.text(found)}"
    return f": the {view} model{had}"


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A file that `sepal export` wrote.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="An .npz with x, a .csv, an image, a .npy of one or many examples, or a directory of such."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="CSV file; by default standard output.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Code (package.module:function) that the file may name as its model.")
    ] = None,
) -> None:
    """Run an exported model; print a line for each example: its label, the label's name and probability.

    Of other tasks: a label's probabilities, the numbers, or the tokens. Masks are written with --out FILE.npz.
    """
    with starting():
        import numpy as np

        from sepal.client_app.portable import load
        from sepal.data.sources.images import Look
        from sepal.data.sources.inputs import read_inputs
        from sepal.protocol.tasks.learning import CLASSIFICATION
        from sepal.storage.files import write_atomically

    if model.suffix == ".onnx":
        raise ConfigError("model", "the .safetensors file of `sepal export`; ONNX's are for onnxruntime", model.name)
    found = load(model, allow or ())
    origin = found.origin
    size = (origin.shape[-2], origin.shape[-1]) if origin.resize and len(origin.shape) == 3 else None
    channels: Any = origin.shape[0] if origin.channels and origin.shape[0] in (1, 3) else "auto"
    look = Look(size, channels)
    numbers = origin.task != CLASSIFICATION
    names, x, truth, notes = read_inputs(
        data, origin.class_names, origin.shape, look, origin.columns, numbers, origin.fill
    )
    for note in notes:
        tell(f"sepal: {one_line(note)}")
    if x.dtype.kind == "f" and not (np.isfinite(x) | (origin.fill & np.isnan(x))).all():
        raise DataError("data", "finite numbers", "NaN or infinity")
    logits = found(np.asarray(found.prepare(x), np.float32 if not origin.vocabulary else np.int64))
    if numbers:
        written = write_predictions(found, names, logits, out)
        typer.echo(f"written to {out}" if out else written, nl=bool(out))
        if truth is not None:
            typer.echo(metrics_line(found, logits, truth), err=True)
        return
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    chances = shifted / shifted.sum(1, keepdims=True)
    classes = origin.class_names or tuple(map(str, range(logits.shape[1])))
    rows = [
        (name, int(label), classes[label], f"{chances[place, label]:.4f}")
        for place, (name, label) in enumerate(zip(names, logits.argmax(1), strict=True))
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("example", "label", "name", "probability"))
    writer.writerows(rows)
    if out:
        write_atomically(out, text.getvalue().encode())
        typer.echo(f"written to {out}")
    else:
        typer.echo(text.getvalue(), nl=False)
    if truth is not None:
        right = int((logits.argmax(1) == truth).sum())
        typer.echo(f"accuracy {100 * right / len(truth):.1f} %: {right} of {len(truth)}", err=True)


def write_predictions(found: Loaded, names: Sequence[str], outputs: npt.NDArray[np.float32], out: Path | None) -> str:
    """Write the predictions of another task than classification to ``out``, or return them as CSV without it.

    Raises:
        ConfigError: They are more than rows of numbers, and ``out`` is no .npz.
    """
    import numpy as np
    import torch

    from sepal.storage.files import write_atomically

    origin, learning = found.origin, found.learning
    predicted = learning.predict(torch.from_numpy(outputs)).numpy()
    if out is not None and out.suffix == ".npz":
        file = io.BytesIO()
        np.savez_compressed(file, prediction=predicted)
        write_atomically(out, file.getvalue())
        return ""
    if predicted.ndim > 2:
        raise ConfigError("--out", "an .npz file for predictions of this shape", f"{predicted.shape[1:]}")
    rows = predicted.reshape(len(predicted), -1)
    heads = list(origin.class_names) or [str(number) for number in range(rows.shape[1])]
    if learning.name == "multilabel":
        rows = 1 / (1 + np.exp(-outputs))
    if learning.name == "regression" and rows.shape[1] == 1:
        heads = ["prediction"]
    if learning.name == "tokens":
        heads, rows = ["tokens"], np.array([[" ".join(map(str, row))] for row in rows])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("example", *(f"{head} probability" if learning.name == "multilabel" else head for head in heads)))
    form = ".4f" if learning.name == "multilabel" else ".6g"
    writer.writerows(
        (name, *(str(cell) if isinstance(cell, str) else f"{cell:{form}}" for cell in row.tolist()))
        for name, row in zip(names, rows, strict=True)
    )
    if out is not None:
        write_atomically(out, text.getvalue().encode())
    return text.getvalue()


def metrics_line(found: Loaded, outputs: npt.NDArray[np.float32], truth: npt.NDArray[Any]) -> str:
    """Return one line with the metrics of a task over all examples, shares as fractions."""
    import torch

    learning = found.learning
    targets = torch.from_numpy(learning.targets.checked("data y", truth, len(outputs)))
    values = learning.scoring.values(learning.sums(torch.from_numpy(outputs), targets))
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
