"""Figures on results pages that are not in generated tables, computed here from the files that the pages name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RESULTS = Path(__file__).parents[1] / "docs" / "results"
NEAR = 0.5  # points; clients of one target reach the same shares up to rounding


def lines(name: str) -> list[dict[str, Any]]:
    """Read a file with a line of JSON for each run."""
    return [json.loads(line) for line in (RESULTS / f"{name}.ndjson").read_text().splitlines()]


def row(title: str, values: list[str]) -> str:
    return f"| {title} | {' | '.join(values)} |"


@pytest.mark.parametrize(
    ("number", "shares"), [(0, [9.9, 26.9, 40.7, 51.8, 60.8, 69.5]), (1, [10.0, 27.0, 40.8, 51.9, 61.0, 69.7])]
)
def test_accuracy_while_clients_prune(number, shares):
    """A client's mean over the rounds with that share; then the mean and the least over the clients that have it."""
    page, run = (RESULTS / "subfedavg.md").read_text(), lines("subfedavg-pruning")[number]
    by_client = []
    for client in run["clients"].values():
        pairs = list(zip(client["pruned"], client["accuracy"], strict=True))
        at = [[100 * a for pruned, a in pairs if abs(100 * pruned - share) < NEAR] for share in shares]
        by_client.append([np.mean(found) if found else np.nan for found in at])
    assert row("pruned, % of all parameters", [f"{share:.1f}" for share in shares]) in page
    for client in (0, 5, 10, 15):
        assert row(f"client {client}", [f"{value:.1f}" for value in by_client[client]]) in page
    mean, least = np.nanmean(by_client, 0), np.nanmin(by_client, 0)
    assert row("mean of the 17 to 20 clients evaluated there", [f"{value:.1f}" for value in mean]) in page
    assert row("worst client", [f"{value:.1f}" for value in least]) in page
    assert {17, 20} == {min(n := (~np.isnan(by_client)).sum(0)), max(n)}


def test_the_gate_of_hybrid_clients():
    """ε = .05 of all channels, and rounds up to and after 15."""
    page = (RESULTS / "subfedavg.md").read_text()
    columns = []
    for run in lines("subfedavg-distances"):
        clients = list(run["distances"].values())
        rounds = np.concatenate([client["round"] for client in clients])
        far = np.concatenate([client["channel-distance"] for client in clients])
        never = sum(max(client["channel-distance"]) < 0.05 for client in clients)
        shares = [far == 0, far >= 0.05, (far >= 0.05)[rounds <= 15], (far >= 0.05)[rounds > 15]]
        columns.append([str(len(far)), *(f"{100 * np.mean(share):.0f} %" for share in shares), f"{never} of 20"])
    titles = ["participations", "both masks are the same", "the distance reaches ε"]
    titles += ["the distance reaches ε, rounds 1 to 15", "the distance reaches ε, rounds 16 to 60"]
    for title, values in zip([*titles, "clients that never cut a channel"], zip(*columns, strict=True), strict=True):
        assert row(title, list(values)) in page


def test_what_hybrid_saves_without_its_gate():
    """Means over the 20 clients of seed 0; MB are all payloads in both directions."""
    page, columns = (RESULTS / "subfedavg.md").read_text(), []
    runs = {(run["block"], run["variant"]): run for run in lines("subfedavg") if run["seed"] == 0}
    for block in ("mnist-20", "cifar10-20"):
        for variant in ("hy-50", "hy-50-open"):
            run = runs[block, variant]
            own, sizes = run["own"], run["megabytes"]
            columns.append(
                (
                    f"{100 * np.mean(own['channels-pruned']):.1f} %",
                    f"{np.mean(own['flop-reduction']):.2f}",
                    f"{run['multiply_adds'] / 20e9:.2f}",
                    f"{sizes['up'] + sizes['down']:.1f}",
                    *(f"{100 * run['accuracy'][view]['mean']:.1f}" for view in ("trained", "kept")),
                )
            )
    titles = ["channels cut", "multiply-adds of the whole model over the cut one's"]
    titles += ["multiply-adds of training, 10⁹ a client", "MB", "trained, %", "kept, %"]
    for title, values in zip(titles, zip(*columns, strict=True), strict=True):
        assert row(title, list(values)) in page


def test_what_masks_of_similar_clients_share():
    """DM-PFL, Figure 6: label counts of two classes each have a cosine of 0 without a common class, near 1 with two."""
    text = " ".join((RESULTS / "dmpfl.md").read_text().split())
    run, other = lines("dmpfl-masks")
    pairs = np.triu_indices(len(run["clients"]), 1)
    shared, labels = np.array(run["similarity"])[pairs], np.array(run["labels"])[pairs]
    two, none = labels > 0.8, labels == 0
    means = [f"{shared[kind].mean():.3f}".lstrip("0") for kind in (two, ~two & ~none, none)]
    counts = [int(kind.sum()) for kind in (two, ~two & ~none, none)]
    assert f"is {means[0]} for pairs of clients with the same two classes ({counts[0]} pairs)" in text
    assert f"{means[1]} with one class in common ({counts[1]}) and {means[2]} with none ({counts[2]})" in text
    r = [f"{each['correlation']['similarity']:.2f}".lstrip("0") for each in (run, other)]
    assert f"the cosine of label counts is {r[0]} ({r[1]} when masks are readjusted" in text
    assert f"(r = −{-run['correlation']['overlap']:.2f})".replace("0.", ".") in text
    least, most = (f"{value:.3f}".lstrip("0") for value in (min(run["overlap"]), max(run["overlap"])))
    assert f"overlaps lie between {least} and {most}" in text


def test_the_order_of_gates():
    page, (run,) = (RESULTS / "pfedgate.md").read_text(), lines("pfedgate-clusters")
    assert row("labels", [", ".join(map(str, labels)) for labels in run["labels"]]) in page
    assert f"r = -{-run['correlation']:.2f}".replace("0.", ".") in page
    pairs = np.triu_indices(len(run["clients"]), 1)
    far, alike = np.array(run["distances"])[pairs], np.array(run["alike"])[pairs]
    text = f"are {far[alike > 0].mean():.1f} apart on average, the other {sum(alike == 0)} {far[alike == 0].mean():.1f}"
    assert text in page
    assert f"distances run from {far.min():.1f} to {far.max():.1f}" in page


@pytest.mark.parametrize(
    ("page", "part", "block", "cells", "views"),
    [
        ("dmpfl", 1, "har", ("",), ("received", "trained", "received-shift-100", "trained-shift-100")),
        ("dmpfl", 2, "mnist", ("",), ("received", "trained", "received-shift-100", "trained-shift-100")),
        ("fedpse", 1, "n5", ("lambda=1.0", "lambda=0.5", "lambda=0.0"), ("received", "trained")),
    ],
)
def test_what_the_fixes_changed(page, part, block, cells, views):
    """Means over the runs, with the same seeds and rounds, that are in the data of before and of now."""
    text = (RESULTS / f"{page}.md").read_text().split("hat the fixes changed")[part]
    old = {run["name"]: run["accuracy"] for run in lines("before-fixes") if run["page"] == page}
    new = {run["name"]: run for run in lines(page) if run["name"] in old and run["block"] == block}
    for variant in dict.fromkeys(run["variant"] for run in new.values()):
        changes = []
        for cell in cells:
            names = [name for name, run in new.items() if (run["variant"], run["cell"]) == (variant, cell)]
            for view in views:
                pairs = [(old[n][view], new[n]["accuracy"][view]["mean"]) for n in names if old[n].get(view)]
                before, now = np.mean(pairs, 0) if pairs else (None, None)
                changes.append("–" if before is None else f"{100 * before:.1f} → {100 * now:.1f}")
        assert row(variant, changes) in text, row(variant, changes)
