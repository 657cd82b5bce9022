"""A model card: ``README.md`` beside an exported model, as the Hugging Face Hub shows it, from its run's files alone.

No path of this machine is in it, and neither a client's name nor a label count unless they are asked for. Every text
that comes from the run is escaped: it is shown as it is, and makes no link, tag or heading.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sepal.config import RunConfig
from sepal.config.base import Mark, marked
from sepal.config.elsewhere import PLACES
from sepal.errors import ConfigError, SepalError, one_line
from sepal.protocol.views import CLOSING_VIEWS
from sepal.report.markdown import table
from sepal.report.sizes import size
from sepal.report.text_tables import NONE, privacy_line
from sepal.runs.about import info_of, labels_of
from sepal.runs.stored_run import StoredRun
from sepal.storage.files import write_atomically
from sepal.storage.regular import read_text
from sepal.study.results import MEGA
from sepal.study.statistics import interval
from sepal.tasks.learning import CLASSIFICATION
from sepal.tasks.scoring import headline

NAME = "README.md"
MARK = "<!-- written by sepal export --card for {} -->"
MARKUP = re.compile(r"[\\`*_\[\]<>&|~#$:@]|(?<=[wW])\.")  # of Markdown; the last are links without brackets
# Keys that the command leaves out: where things are, what differs from machine to machine, what it has as options.
UNSAID = {*PLACES, *marked(RunConfig, Mark.FREE, Mark.MACHINE), "name", "method", "dataset", "rounds"}
SOURCES = {*marked(RunConfig, Mark.FILES), *PLACES} - set(marked(RunConfig, Mark.FREE)) | {"data-dir"}
PACKAGES = ("sepal", "flwr", "torch", "python")  # whose versions are named
WHAT = {
    "received": "what the server sends",
    "trained": "the received model after local training",
    "kept": "what a client holds after its last training",
    "pooled": "the trained model on a sample of all clients' test data",
}


def check_card(file: Path) -> None:
    """Raise unless a card can be written beside a model. To be called before the model is written.

    Args:
        file: The model's file.

    Raises:
        ConfigError: huggingface_hub is not installed, or there is a README.md that is no card of this file.
    """
    if find_spec("huggingface_hub") is None:
        raise ConfigError("--card", "huggingface_hub: pip install 'sepal-fl[card]'", "no such package")
    path = file.parent / NAME
    if path.is_symlink() or (path.exists() and _marked(file) not in read_text(path)):
        expected = f"no {NAME} beside the model but its own card (--out DIRECTORY/FILE)"
        raise ConfigError("--card", expected, f"another one in {file.parent}")


def write_card(text: str, file: Path) -> Path:
    """Write a card's text beside a model's file, once huggingface_hub has read it, and return its path."""
    from huggingface_hub import ModelCard

    path = file.parent / NAME
    write_atomically(path, str(ModelCard(text)).encode())
    return path


def _marked(file: Path) -> str:
    return MARK.format(_literal(file.name))


def card(
    run: StoredRun, file: str, facts: Mapping[str, str], view: str, client: str, labels: bool = False, last: bool = True
) -> str:
    """Return the text of a model's card.

    Args:
        run: The run.
        file: Name of the model's file.
        facts: What the file's header says (:meth:`sepal.export.extraction.ClientModel.facts`).
        view: Which model of a client it is.
        client: The client; empty for the model that all have in common. It is named if ``facts`` do.
        labels: Whether the numbers of examples of each class, over all clients, are in it.
        last: Whether it is the model of the run's end, which the closing evaluation tested.

    Raises:
        ConfigError: Label counts are asked for, and the run has stored none.
    """
    from huggingface_hub import EvalResult, ModelCardData

    ended = last and run.summary is not None
    value = _value(run, view, client) if ended else None
    kind = _kind(run)
    dataset, name = _plain(run.config["dataset"]), _plain(facts["run"])
    metric = _plain(run.measure.name)
    measured = None if value is None else [EvalResult(kind or "other", dataset, dataset, metric, value)]
    data = ModelCardData(
        library_name="sepal",
        model_name=name,
        tags=["federated-learning", "flower", _plain(run.method), *([kind] if kind else [])],
        metrics=[metric],
        pipeline_tag=kind or None,
        eval_results=measured,
    )
    owner = f"of the client {_literal(facts['client'])}" if "client" in facts else "of one client" if client else ""
    lines = [f"# {_literal(name)}", "", MARK.format(_literal(file)), ""]
    lines += [f"The {view} model {owner or 'that all clients have in common'}, after round {facts.get('round', '?')}."]
    lines += ["", *_method(run), "", *_data(run, labels), "", *_accuracy(run, view, value, ended)]
    lines += ["", *_bytes(run), "", *_privacy(run), "", *_limits(run, view), "", *_use(file, facts, run)]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(lines) + "\n"


def _plain(text: object) -> str:
    return one_line(str(text), 100)


def _literal(text: object) -> str:
    """Return text of the run as Markdown that shows it as it is. It never begins a line."""
    return MARKUP.sub(r"\\\g<0>", one_line(str(text), 200))


def _kind(run: StoredRun) -> str:
    """Return the Hub's name of what the model does; empty if it has none for it."""
    task = run.config.get("task", CLASSIFICATION)
    try:
        info = info_of(run)
    except SepalError:
        return ""
    if info.table:
        return {CLASSIFICATION: "tabular-classification", "regression": "tabular-regression"}.get(str(task), "")
    images = {CLASSIFICATION: "image-classification", "multilabel": "image-classification"}
    return {**images, "segmentation": "image-segmentation"}.get(str(task), "") if info.kind == "image" else ""


def _value(run: StoredRun, view: str, client: str) -> float | None:
    """Return the headline that the closing evaluation measured: of the client, or else the mean over all."""
    closing = run.lines[-1]
    if client:
        measured = (figures.get(view) for figures in closing["clients"] if figures.get("name") == client)
        return next((float(value) for value in measured if value is not None), None)
    figures = headline(closing).get(view)
    return float(figures["mean"]) if figures else None


def _method(run: StoredRun) -> Iterator[str]:
    config = run.config
    yield "## Method"
    title = f": {_literal(run.title)}" if run.title else ""
    yield f"- {_literal(run.method)}{title}; a client deploys its {_literal(run.deployed or 'unknown')} model."
    rounds = run.summary["rounds"] if run.summary else len(run.lines)
    yield f"- Rounds: {int(rounds)} of {int(config['rounds'])}; seed {int(config['seed'])}; one run."
    yield f"- Network: {_literal(config['model'])}."


def _data(run: StoredRun, labels: bool) -> Iterator[str]:
    yield "## Data"
    shape = _shape(run)
    yield f"- {_literal(run.config['dataset'])}{shape}; each client has a part of its own."
    closing = run.lines[-1] if run.lines else None
    if closing:
        examples = sum(int(client.get("examples", 0)) for client in closing["clients"])
        yield f"- Clients: {len(closing['clients'])}, with {examples} training examples in all."
    keys = {key: value for key, value in run.config.items() if key.startswith(("partition.", "split."))}
    dealt = ", ".join(f"{_literal(key)} {_literal(value)}" for key, value in keys.items() if _changed(key, value))
    if dealt:
        yield f"- Dealt by {dealt}."
    if labels:
        stored = labels_of(run)
        if stored.counts is None:
            raise ConfigError("--with-labels", "a run that has stored its label counts", run.path.name)
        totals = np.sum([list(row) for row in stored.counts.values()], axis=0)
        names = stored.names or tuple(map(str, range(len(totals))))
        yield ""
        yield from table(("class", "training examples"), zip(map(_literal, names), map(str, totals), strict=True))


def _shape(run: StoredRun) -> str:
    try:
        info = info_of(run)
    except SepalError:
        return ""
    shape = " × ".join(str(side) for side in info.input_shape)
    return f" ({info.kind}, {shape}, {info.classes} outputs)"


def _accuracy(run: StoredRun, view: str, value: float | None, ended: bool) -> Iterator[str]:
    yield f"## {_literal(run.measure.name.capitalize())}"
    if not ended:
        yield "No closing evaluation has tested this model: its run goes on, or it is that of an earlier round."
        return
    if value is not None:
        yield f"This file's model, on test data: **{_number(run, value)}**."
    yield "Over clients, each on its own test data; the interval of 95 % is that of the mean over clients of this run:"
    yield ""
    rows = [row for shown in CLOSING_VIEWS if (row := _row(run, shown, view))]
    yield from table(("view", "mean", "interval", "worst 10 %", "clients", "which model"), rows)


def _row(run: StoredRun, shown: str, view: str) -> Sequence[str] | None:
    closing, measure = run.lines[-1], run.measure
    figures = headline(closing).get(shown)
    if not figures:
        return None
    values = [float(client[shown]) for client in closing["clients"] if client.get(shown) is not None]
    spread = interval(np.array([values], np.float64), "clients") if len(values) > 1 else None
    interval_text = f"{measure.number(spread.low)} to {measure.number(spread.high)}" if spread else NONE
    mark = " (this file)" if shown == view else ""
    tenth = figures.get("bottom_decile")  # unknown with secure sums
    worst = NONE if tenth is None else measure.number(float(tenth))
    clients, mean = str(int(figures["clients"])), _number(run, float(figures["mean"]))
    return (f"{shown}{mark}", mean, interval_text, worst, clients, WHAT[shown])


def _number(run: StoredRun, value: float) -> str:
    """Return a value of the headline metric with its unit."""
    return f"{run.measure.number(value)} {_literal(run.measure.unit)}".rstrip()


def _bytes(run: StoredRun) -> Iterator[str]:
    yield "## Bytes"
    if not run.bytes:
        yield "Nothing has been sent yet."
        return
    sent = run.bytes
    for way, words in (("up", "from clients to the server"), ("down", "from the server to clients")):
        dense = f" (as whole float32 models: {size(int(sent[f'{way}_dense']) / MEGA)} MB)"
        yield f"- Training, {words}: {size(int(sent[way]) / MEGA)} MB{dense}."


def _privacy(run: StoredRun) -> Iterator[str]:
    yield "## Privacy"
    if run.summary and run.summary.get("privacy"):
        yield f"{_literal(privacy_line({'engine': '', **run.summary}))}."
    else:
        yield "No noise was added, so there is no ε: a model can tell of the examples that it was trained on."


def _limits(run: StoredRun, view: str) -> Iterator[str]:
    yield "## Limits"
    yield "- What it does on other data than these clients' is not known; it was tested on theirs alone."
    if view != "received":
        yield "- It fits the client that trained it. For another client, or a new one, it was made to fit less."
    yield "- One run with one seed: another seed gives other figures, by how much is not in the intervals above."
    if run.summary and (run.summary.get("stopped") or {}).get("reason"):
        yield f"- The run ended early: {_literal(run.summary['stopped']['reason'])}."


def _use(file: str, facts: Mapping[str, str], run: StoredRun) -> Iterator[str]:
    yield "## Use"
    yield from _fenced(f"pip install sepal-fl\nsepal predict {shlex.quote(one_line(file))} DATA")
    yield ""
    yield f"Digest of its weights (SHA-256, in the file's header): `{facts['sha256']}`."
    versions = run.summary.get("versions", {}) if run.summary else {}
    packages = [f"{name} {_literal(versions[name])}" for name in PACKAGES if name in versions]
    if packages:
        yield f"Trained with {', '.join(packages)}."
    yield from ("", "The run again:", "")
    keys = {key: value for key, value in run.config.items() if key not in UNSAID and _changed(key, value)}
    options = ["--method", run.method, "--dataset", run.config["dataset"], "--rounds", run.config["rounds"]]
    options += [part for key, value in keys.items() for part in ("--set", f"{key}={_value_text(value)}")]
    yield from _fenced(" ".join(["sepal run", *(shlex.quote(one_line(str(option), 200)) for option in options)]))
    places = [key for key in PLACES if key in SOURCES and _changed(key, run.config.get(key))]
    if places:
        yield f"\nLeft out are keys that name places: {', '.join(map(_literal, places))}."


def _changed(key: str, value: Any) -> bool:
    """Return whether a key of the run has another value than by default; of a method's own keys, always."""
    plain = RunConfig().flat()
    return key not in plain or (value is not None and value != plain[key])


def _value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fenced(text: str) -> Iterator[str]:
    """Yield a block of code that no text in it can end."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (fence, text, fence)
