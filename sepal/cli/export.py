"""``sepal export`` and ``sepal predict``: export a model from its run, and use it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sepal.cli.app import app
from sepal.cli.notices import starting, tell
from sepal.cli.options import Run
from sepal.errors import ConfigError, one_line
from sepal.report.printing import say

if TYPE_CHECKING:
    from sepal.export.extraction import ClientModel
    from sepal.export.predicting import Predictions


@app.command()
def export(
    run: Run,
    client: Annotated[
        str | None,
        typer.Argument(
            help="The client's name, such as client-00003, or its number, 3. Without it: the model that all clients "
            "have in common, from the server's files."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file; by default in RUN, named by run, round and digest.")
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write CLIENT.onnx beside it (needs onnx and onnxscript).")
    ] = False,
    round: Annotated[
        int | None, typer.Option(min=1, help="Instead: its model after this round, whose checkpoint is kept.")
    ] = None,
    with_client: Annotated[
        bool, typer.Option("--with-client", help="The file, and by default its name, says whose model it is.")
    ] = False,
    card: Annotated[
        bool, typer.Option("--card", help="Write a model card beside it: README.md, as the Hugging Face Hub shows it.")
    ] = False,
    with_labels: Annotated[
        bool, typer.Option("--with-labels", help="The card has the number of training examples of each class.")
    ] = False,
    view: Annotated[str, typer.Option(help="Instead: its received, trained or kept model (docs/views.md).")] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Code that the run's keys may name: package.module:NAME, or all of a module."),
    ] = None,
) -> None:
    """Write a client's deployed model, whose accuracy the tables show, as safetensors and ONNX.

    The file names run, round, method, digest of the weights and version of Sepal, and not the client.
    """
    check_file(out)
    with starting():
        import torch

        from sepal.export.extraction import write_model
        from sepal.export.onnx_file import write_onnx
        from sepal.study.runs import find_run, model_of

    if with_client and client is None:
        raise ConfigError("--with-client", "a client's name as well", "none")
    if with_labels and not card:
        raise ConfigError("--with-labels", "--card as well", "none")
    path = find_run(run)
    client_model = model_of(path, client, view, allow or (), round=round)
    facts, name = client_model.facts(with_client), client_model.origin.client
    default = name if with_client else f"{path.name}-round-{facts['round']}-{facts['sha256'][:8]}"
    file = out or path / f"{default}.safetensors"
    check_file(file)
    card_text = card_of(path, file, client_model, facts, with_labels, round is None) if card else ""
    file_model = write_model(client_model, file, with_client)
    say(f"written to {file}: {f'the {client_model.view} model' if client else 'the model of all clients'}", nl=False)
    say(f" after round {round}" if round else tested(path, name, client_model.view))
    if client_model.labels == 1:
        tell(f"sepal: {name} has training examples of one class alone: its own model knows no other")
    if onnx:
        inputs = torch.from_numpy(client_model.inputs)
        write_onnx(file_model.module, inputs, file.with_suffix(".onnx"), file_model.origin, facts)
        say(f"written to {file.with_suffix('.onnx')}")
    if card:
        from sepal.report.card import write_card

        say(f"written to {write_card(card_text, file)}")


def card_of(path: Path, file: Path, model: ClientModel, facts: Mapping[str, str], with_labels: bool, last: bool) -> str:
    """Return the text of a model's card, or refuse it before anything is written."""
    from sepal.report.card import card, check_card
    from sepal.runs.stored_run import read_run
    from sepal.study.runs import naming

    check_card(file)
    with naming(path):
        return card(read_run(path), file.name, facts, model.view, model.origin.client, with_labels, last)


def check_file(out: Path | None) -> None:
    """Refuse a directory as the file to write."""
    if out is not None and out.is_dir():
        raise ConfigError("--out", "a file", f"the directory {out}")


def tested(path: Path, client: str, view: str) -> str:
    """Return what a client's model had in the closing evaluation; empty for an unfinished run or no client."""
    from sepal.runs.stored_run import read_run

    stored = read_run(path)
    closing = [figures for line in stored.lines if line["phase"] == "closing" for figures in line["clients"]]
    values = (figures[view] for figures in closing if figures["name"] == client and figures[view] is not None)
    value = next(values, None)
    return "" if value is None else f", {stored.measure.name} on the client's test data {stored.measure.text(value)}"


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
        from sepal.export.portable import load
        from sepal.export.predicting import predictions
        from sepal.tasks.learning import CLASSIFICATION

    if model.suffix == ".onnx":
        raise ConfigError("model", "the .safetensors file of `sepal export`; ONNX's are for onnxruntime", model.name)
    check_file(out)
    result = predictions(load(model, allow or ()), data)
    for note in result.notes:
        tell(f"sepal: {one_line(note)}")
    classes = result.model.origin.task == CLASSIFICATION
    written = write_predictions(result, out)
    say(f"written to {out}" if out else written, nl=bool(out))
    if result.truth is not None and classes:
        correct, count = result.right(), len(result.truth)
        if result.truth.max() < result.outputs.shape[1]:  # a class that the model does not know has no recall
            others = {name: value for name, value in result.metrics().items() if name not in ("loss", "accuracy")}
            say(listed(others), err=True)
        say(f"accuracy {100 * correct / count:.1f} %: {correct} of {count}", err=True)
    elif result.truth is not None:
        say(listed(result.metrics()), err=True)


def listed(metrics: Mapping[str, float]) -> str:
    """Return metrics by name as one line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def write_predictions(result: Predictions, out: Path | None) -> str:
    """Write predictions to ``out``, or return them as CSV without it.

    Raises:
        ConfigError: They are more than rows of numbers, and ``out`` is no .npz.
    """
    import numpy as np

    from sepal.report.files import csv_text
    from sepal.storage.files import write_atomically
    from sepal.tasks.learning import CLASSIFICATION

    if out is not None and out.suffix == ".npz":
        file = io.BytesIO()
        np.savez_compressed(file, prediction=result.predicted)
        write_atomically(out, file.getvalue())
        return ""
    table = result.table()
    if table is None:
        raise ConfigError("--out", "an .npz file for predictions of this shape", f"{result.predicted.shape[1:]}")
    heads, rows = table
    form = ".4f" if result.model.origin.task in (CLASSIFICATION, "multilabel") else ".6g"
    text = csv_text(heads, rows, form)
    if out is not None:
        write_atomically(out, text.encode())
    return text
