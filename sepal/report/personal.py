"""A report's figures of what methods learn about clients: masks, sparsity, pruning, clusters."""

from __future__ import annotations

import json
import math
from typing import Any

import altair as alt

from sepal.report.data import with_cell
from sepal.report.figure import FROM_DATA, PERCENT, Drawn, drawn_text, figure, label_of, named, shown
from sepal.report.learned_rows import Rows, readers
from sepal.report.marks import colour_of, name_axis
from sepal.study.comparison import Comparison

NAMES = ("masks", "similar", "overlap", "layers", "pruning", "tree")  # of the figures, in order
TICKS = 4  # at most, on a tree's axis, besides 0
PIXELS = 22  # per client, in figures with a line for each
LAYER = 30  # pixels per layer, which has a point for each kind of mask
CHOSEN = "Of the run chosen under “Clients of”, or of the first that has them."


def _first(rows: Rows) -> Rows:
    return [row for row in rows if (row["cell"], row["label"]) == (rows[0]["cell"], rows[0]["label"])]


def _named(rows: Rows) -> str:
    return with_cell(rows[0]["label"], rows[0]["cell"])


def _cited(comparison: Comparison, kind: str) -> str:
    """Return which paper's figure it is, in brackets, as the methods' records say."""
    method_readers = (readers(variant.method).get(kind) for variant in comparison.all_variants())
    words = dict.fromkeys(reader.figure for reader in method_readers if reader)
    return f" ({'; '.join(words)})" if words else ""


@figure("masks", "Masks and labels", "cell", rows="datum.one < datum.other", varying="similarity")
def _masks(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    pairs = [row for row in rows if row["one"] != row["other"]]
    chart = drawn.mark_circle(size=44, opacity=0.7).encode(
        alt.X("labels:Q", title="likeness of the two clients' labels, %"),
        alt.Y("similarity:Q", title="shared part of their masks, %", scale=alt.Scale(zero=False)),
        colour_of(comparison),
        tooltip=["one:N", "other:N", alt.Tooltip("labels:Q"), alt.Tooltip("similarity:Q")],
    )
    mean = sum(row["similarity"] for row in pairs) / max(1, len(pairs))
    spoken = f"Similarity of clients' masks: {len(pairs) // 2} pairs of clients, {mean:.1f} % shared on average."
    reading = (
        "A dot for every two clients: the share of one's personal mask that the other's has too, in %, against the "
        f"cosine of their label counts, in %{_cited(comparison, 'masks')}."
    )
    return Drawn(chart, reading, spoken, shows=shown(comparison))


@figure("layers", "Sparsity by layer", "cell", "hidden")
def _layers(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    order = list(dict.fromkeys(row["layer"] for row in rows))
    chart = drawn.mark_point(size=80, filled=True, opacity=0.9).encode(
        alt.X("kept:Q", title="entries kept, %", scale=PERCENT),
        alt.Y("layer:N", title=None, sort=order, axis=name_axis()),
        alt.YOffset("mask:N"),  # points of equal shares would hide one another
        alt.Shape("mask:N", legend=alt.Legend(orient="top", title=None)),
        colour_of(comparison),
        tooltip=["label:N", "layer:N", "mask:N", alt.Tooltip("kept:Q", title="kept, %")],
    )
    first = _first(rows)
    words = "; ".join(f"{row['layer']} {row['kept']:.0f} % ({row['mask']})" for row in first)
    reading = (
        "Share of each tensor's entries that masks keep, in %: of clients' own masks the mean, and of the global one."
    )
    spoken = f"Entries kept by layer, {_named(first)}: {words}."
    return Drawn(chart, reading, spoken, LAYER * len(order) + 30, shown(comparison))


@figure("similar", "Similarity of the clients' masks", "cell", "label", data="masks", varying="similarity")
def _similar(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    scale = alt.Scale(range=[0.06, 1], zero=False)  # opacity: colours that are CSS variables cannot be mixed
    side = alt.Axis(labels=False, ticks=False)
    chart = drawn.mark_rect(color="var(--bar)").encode(
        alt.X("one:N", title="clients", axis=side),
        alt.Y("other:N", title="clients", axis=side),
        alt.Opacity("similarity:Q", scale=scale, legend=alt.Legend(orient="top", title="shared part of the mask, %")),
        tooltip=["one:N", "other:N", alt.Tooltip("similarity:Q", title="shared, %"), alt.Tooltip("labels:Q")],
    )
    values = [row["similarity"] for row in _first(rows) if row["one"] != row["other"]]
    reading = (
        "The share of one client's mask (column) that the other's (row) has too, in %"
        f"{_cited(comparison, 'masks')}. {CHOSEN}"
    )
    spoken = f"Similarity of every two clients' masks, {_named(rows)}: from {min(values, default=100.0):.1f} to "
    spoken += f"{max(values, default=100.0):.1f} %."
    return Drawn(chart, reading, spoken, 300, shown(comparison, label_of(rows)))


@figure("overlap", "Weights shared with the global model", "cell", "hidden", varying="overlap")
def _overlap(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    chart = drawn.mark_circle(size=60, opacity=0.8).encode(
        alt.X("labels:Q", title="likeness of the client's labels to all clients', %", scale=alt.Scale(zero=False)),
        alt.Y("overlap:Q", title="part of its mask in the global one, %", scale=alt.Scale(zero=False)),
        colour_of(comparison),
        tooltip=[alt.Tooltip("label:N", title="run"), "client:N", alt.Tooltip("overlap:Q"), alt.Tooltip("labels:Q")],
    )
    values = [row["overlap"] for row in rows]
    reading = (
        "A dot for each client: the share of its personal mask that the global mask has too, in %, against the cosine "
        f"of its label counts with those of all clients, in %{_cited(comparison, 'masks')}."
    )
    mean = sum(values) / len(values)
    spoken = f"Overlap of {len(values)} clients' masks with the global one: {mean:.1f} % on average."
    return Drawn(chart, reading, spoken, shows=shown(comparison))


@figure("pruning", "Pruning of single clients", "cell", "label", "zero")
def _pruning(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    measure = comparison.measure
    trained = f"{measure.name} of the trained model{f', {measure.unit}' if measure.unit else ''}"
    chart = drawn.mark_line(point=True, strokeWidth=1.5, color="var(--bar)", opacity=0.75).encode(
        alt.X("pruned:Q", title="pruned, % of all parameters", scale=alt.Scale(zero=True)),
        alt.Y("accuracy:Q", title=trained, scale=FROM_DATA),
        alt.Detail("client:N"),
        alt.Order("round:Q"),
        tooltip=["client:N", "round:Q", alt.Tooltip("pruned:Q", title="pruned, %"), alt.Tooltip("accuracy:Q")],
    )
    ends = {row["client"]: row for row in _first(rows)}
    words = "; ".join(
        f"{name} {row['pruned']:.0f} % pruned, {drawn_text(comparison, row['accuracy'])}" for name, row in ends.items()
    )
    reading = (
        "A line for each of a few clients, through the rounds in which it was evaluated: "
        f"{measure.name}{measure.in_unit} by how much of its model it has pruned, "
        f"in %{_cited(comparison, 'pruning')}. {CHOSEN}"
    )
    spoken = f"{named('Accuracy', comparison)} by pruning, {_named(rows)}, at the end: {words}."
    return Drawn(chart, reading, spoken, shows=shown(comparison, label_of(rows)))


@figure("tree", "Clients found alike", "cell", "label")
def _tree(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    """Draw a dendrogram of the clients that a method has found to be alike."""
    leaves = max(row["place"] for row in rows)
    most: dict[str, float] = {}  # of each run's tree: distances of different methods have different sizes
    for row in rows:
        run = f"{row['cell']}/{row['label']}"
        most[run] = max(most.get(run, 0.0), row["distance"])
    most = {run: distance or 1.0 for run, distance in most.items()}
    shows = f"[cell + '/' + {label_of(rows)}]"
    ticks = json.dumps({run: _ticks(distance) for run, distance in most.items()})
    domain = [alt.expr(f"{factor} * {json.dumps(most)}{shows}") for factor in (-0.45, 1.02)]
    x: Any = alt.X(
        "distance:Q",
        title="distance (Ward)",
        axis=alt.Axis(values=alt.expr(ticks + shows), format="~f"),
        scale=alt.Scale(domain=domain),
    )
    y: Any = alt.Y("place:Q", axis=None, scale=alt.Scale(domain=[-0.6, leaves + 0.6], reverse=True))
    links = drawn.transform_filter("datum.kind == 'link'").mark_line(strokeWidth=1.5, color="var(--bar)")
    names = drawn.transform_filter("datum.kind == 'leaf'")
    names = names.mark_text(align="right", dx=-5, fontSize=11, fill="var(--ink)")
    brackets = links.encode(x, y, alt.Detail("link:N"), alt.Order("step:Q"), tooltip=[alt.Tooltip("distance:Q")])
    first = [row for row in _first(rows) if row["kind"] == "leaf"]
    order = "; ".join(row["words"] for row in first)
    reading = (
        "Clients joined by Ward's method on the Euclidean distance, no unit, of what the method learns of each"
        f"{_cited(comparison, 'vectors')}. Named labels: a tenth of its examples. {CHOSEN}"
    )
    spoken = f"Clustering of {len(first)} clients, {_named(rows)}, in the order of the tree: {order}."
    chart = alt.layer(brackets, names.encode(x, y, alt.Text("words:N")))
    return Drawn(chart, reading, spoken, int(PIXELS * (leaves + 1)) + 30, shown(comparison, label_of(rows)))


def _ticks(most: float) -> list[float]:
    """Return a few evenly spaced places on an axis from 0, at steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most / TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * TICKS >= most)
    return [float(f"{step * number:.12g}") for number in range(int(most / step * 1.000001) + 1)]
