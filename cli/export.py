"""``sepal export`` and ``sepal predict``: export a client's model from its run, and use it."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sepal.cli.app import app
from sepal.cli.notices import starting, tell
from sepal.errors import ConfigError, DataError, one_line

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sepal.client_app.client_model import ClientModel
    from sepal.client_app.portable import Loaded
    from sepal.data.sources.images import Look


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

        from sepal.client_app.client_model import write_model, write_onnx
        from sepal.study.runs import find_run

    path = find_run(run)
    found = model_of(path, client, view)
    file = out or path / f"{found.origin.client}.safetensors"
    kept = write_model(found, file)
    typer.echo(f"written to {file}{tested(path, found.origin.client, found.view)}")
    if found.labels == 1:
        tell(f"sepal: {found.origin.client} has training examples of one class alone: its own model knows no other")
    if onnx:
        write_onnx(kept.module, torch.from_numpy(found.inputs), file.with_suffix(".onnx"))
        typer.echo(f"written to {file.with_suffix('.onnx')}")


def tested(path: Path, client: str, view: str) -> str:
    """Return which model was exported, and what it had in the closing evaluation; of an unfinished run the former."""
    from sepal.server_app.stored_run import read_run

    stored = read_run(path)
    last = [each for line in stored.lines if line["phase"] == "closing" for each in line["clients"]]
    found = next((each[view] for each in last if each["name"] == client and each[view] is not None), None)
    had = "" if found is None else f", {stored.measure.name} on the client's test data {stored.measure.text(found)}"
    return f": the {view} model{had}"


def model_of(path: Path, client: str, view: str = "") -> ClientModel:
    """Return a model of a client of the run at ``path`` (:func:`sepal.client_app.client_model.client_model`).

    ``client``: its name or its number.

    Raises:
        ConfigError: The run has no such client, or its model cannot be exported.
    """
    from sepal.client_app.build import client_name
    from sepal.client_app.client_model import client_model
    from sepal.server_app.stored_run import read_run

    stored = read_run(path)
    names = {each["name"] for line in stored.lines for each in line["clients"]}
    if client not in names and client_name(int(client) if client.isdecimal() else -1) in names:
        client = client_name(int(client))
    if client not in names:
        few = f"{sorted(names)[0]} … {sorted(names)[-1]}" if names else "none yet"
        raise ConfigError("client", f"a client of {path.name}: {few}", client)
    return client_model(path, stored.config, client, view=view)


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
        from sepal.protocol.tasks.learning import CLASSIFICATION
        from sepal.storage.files import write_atomically

    found = load(model, allow or ())
    origin = found.origin
    size = (origin.shape[-2], origin.shape[-1]) if origin.resize and len(origin.shape) == 3 else None
    channels: Any = origin.shape[0] if origin.channels and origin.shape[0] in (1, 3) else "auto"
    look = Look(size, channels)
    numbers = origin.task != CLASSIFICATION
    names, x, truth = read_inputs(data, origin.class_names, origin.shape, look, origin.columns, numbers)
    if x.dtype.kind == "f" and not np.isfinite(x).all():
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


def read_inputs(
    path: Path,
    classes: Sequence[str] = (),
    shape: tuple[int, ...] = (),
    look: Look | None = None,
    columns: Sequence[str] = (),
    numbers: bool = False,
) -> tuple[list[str], npt.NDArray[np.generic], npt.NDArray[np.int64] | None]:
    """Return the names of the examples, the examples (n, …), and their labels if all have one.

    Args:
        path: An .npz with x [, y]; a .csv; a .npy file with many examples (n, …); an image or a .npy file with one
            example; or a directory of these, whose sub-directories may be named like classes.
        classes: Names of the classes.
        shape: The shape of one example as the model takes it; tells one example from many.
        look: What image files are brought to; None: as they are.
        columns: Names of a table's columns as the model takes them; empty: as in the file.
        numbers: Whether targets are those of another task than classification.

    Raises:
        DataError: There are no examples, or their shapes differ.
    """
    import numpy as np

    from sepal.data.sources.images import AS_IS, EXAMPLES, check_alike, read_example
    from sepal.data.sources.table import read_table

    for suffix in (".npz", ".csv"):  # a directory that a run reads
        if path.is_dir() and len(found := list(path.glob(f"*{suffix}"))) == 1:
            path = found[0]
    if path.suffix == ".npz":
        return _read_npz(path, numbers)
    if path.suffix == ".csv":
        table = read_table(path, classes, numbers)
        table = table.ordered(columns, path) if columns else table
        return [str(number) for number in range(len(table.x))], table.x, table.y
    files = [path] if path.is_file() and path.suffix.lower() in EXAMPLES else list(_files(path))
    if not files:
        raise DataError("data", "an .npz with x, a .csv, or .png, .jpg or .npy files", str(path))
    arrays = [read_example(file, look or AS_IS) for file in files]
    if files == [path] and _many(arrays[0], shape):
        return [str(number) for number in range(len(arrays[0]))], arrays[0], None
    check_alike(str(path), arrays)
    labels = [classes.index(file.parent.name) if file.parent.name in classes else -1 for file in files]
    truth = None if -1 in labels else np.array(labels, dtype=np.int64)
    named = [file.name if file == path else str(file.relative_to(path)) for file in files]
    named = [name if name.isprintable() else one_line(ascii(name)) for name in named]  # they are printed
    return named, np.stack(arrays), truth


def _read_npz(
    path: Path, numbers: bool = False
) -> tuple[list[str], npt.NDArray[np.generic], npt.NDArray[np.int64] | None]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays.get("y")
        if not x.ndim:
            raise ValueError("x is a single number")
    except (OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile) as reason:
        raise DataError("data", "an .npz with x", f"{path}: {reason}") from None
    return (
        [str(number) for number in range(len(x))],
        x,
        y if y is not None and (numbers or y.shape == (len(x),)) else None,
    )


def _many(array: npt.NDArray[np.generic], shape: tuple[int, ...]) -> bool:
    """Return whether an array is (n, …) examples of a model's shape, and not one."""
    ones = [shape]
    if array.dtype.name == "uint8" and len(shape) == 3:
        channels, *sides = shape
        ones = [(*sides, channels), *[tuple(sides)] * (channels == 1)]
    return array.shape[1:] in ones and array.shape not in ones


def _files(path: Path) -> Iterator[Path]:
    """Yield the examples below ``path``, except hidden ones: a run keeps a copy of the data in ``.sepal-cache``."""
    from sepal.data.sources.images import EXAMPLES

    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.suffix.lower() in EXAMPLES and not hidden and file.is_file():
            yield file
