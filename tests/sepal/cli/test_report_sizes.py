"""The report's picture of what labels do not show: how much data each client has, its domain and its noise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sepal.cli.running import run_flat
from sepal.study.comparison import read_comparison

pytest.importorskip("altair", reason="the extra report is not installed")

from sepal.report.data import datasets
from sepal.report.page import render

KEYS = {"method": "fedavg", "rounds": 1, "evaluate-every": 0, "lr": 0.1, "name": "run"}


def test_sizes_domains_and_noise_are_drawn(tmp_path):
    """Domains a, b, c have 60, 30 and 30 rows; client 3 shares domain a with client 0. Noise is .4 · i/4."""
    rng, site = np.random.default_rng(0), ["a", "a", "b", "c"] * 30
    rows = [f"{x:.3f},{n % 2},{site[n]}" for n, x in enumerate(rng.normal(size=120))]
    (tmp_path / "t.csv").write_text("\n".join(["x,label,person", *rows]))
    keys = {"dataset": "folder", "data-dir": str(tmp_path / "t.csv"), "clients": 4, "out": str(tmp_path)}
    keys |= {"partition.name": "domain", "partition.noise": 0.4, "split.validation": 0.0}
    run_flat({**KEYS, **keys}, tmp_path, workers=1)
    comparison = read_comparison([str(tmp_path / "run")])
    rows = [
        {"cell": "", "client": f"client-{k:05}", "examples": size, "noise": noise, "domain": f"domain {domain}"}
        for k, (size, noise, domain) in enumerate([(22, 0.1, 1), (22, 0.2, 2), (22, 0.3, 3), (22, 0.4, 1)])
    ]
    assert datasets(comparison)["sizes"] == rows
    words = "4 clients with 22 to 22 training examples each, of 3 domains, with noise of standard deviation 0.1 to 0.4"
    assert words in render(comparison)
    about = tmp_path / "run" / "about.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "domains": ["<b>", 1, 2, 0]}))
    assert {row["domain"] for row in datasets(read_comparison([str(tmp_path / "run")]))["sizes"]} == {"all"}


def test_clients_that_are_alike_have_no_picture_of_sizes(tmp_path):
    keys = {"dataset": "digits", "clients": 3, "partition.name": "iid", "partition.subsample": 90, "out": str(tmp_path)}
    run_flat({**KEYS, **keys}, tmp_path, workers=1)
    rows = datasets(read_comparison([str(tmp_path / "run")]))
    assert "labels" in rows
    assert "sizes" not in rows
