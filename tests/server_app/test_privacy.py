"""ε of a run: the library's value, what it counts, and where there is none."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from markupsafe import escape
from rich.console import Console

from sepal.config import RunConfig
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.report.page import render
from sepal.report.tables import print_run
from sepal.report.text_tables import privacy_line
from sepal.runs import privacy as privacy_module
from sepal.runs.privacy import epsilon, privacy
from sepal.runs.run_directory import RunDirectory
from sepal.runs.stored_run import read_run
from sepal.strategies.assembly import assemble
from sepal.study.comparison import read_comparison

FLAT = {"dataset": "digits", "clients": 4, "clients-per-round": 2, "rounds": 3, "partition.subsample": 240}
PRIVATE = {"privacy.clip": 1.0, "privacy.noise": 2.0}


def config(clip=1.0, noise=2.0, delta=1e-5):
    return RunConfig.model_validate({"privacy": {"clip": clip, "noise": noise, "delta": delta}})


@pytest.mark.parametrize(("noise", "releases", "delta"), [(1.0, 15, 1e-5), (4.0, 100, 1e-6), (0.5, 20, 1e-5)])
def test_epsilon_is_the_librarys(noise, releases, delta):
    """With the library's own orders, too."""
    accountant = RdpAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), releases))
    assert epsilon(noise, releases, delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


def test_epsilon_of_a_known_setting():
    """15 releases with noise multiplier 1 at δ = 1e-5: dp-accounting 0.6.0 gives 24.8309."""
    assert epsilon(1.0, 15, 1e-5) == pytest.approx(24.8309, abs=1e-3)


@pytest.mark.parametrize(("noise", "releases"), [(0.01, 20), (0.1, 1), (1.0, 20), (50.0, 20), (2000.0, 1)])
def test_epsilon_is_that_of_the_formula_for_any_noise(noise, releases):
    """RDP of n Gaussian releases is α·n / (2σ²) (Mironov 2017, Corollary 3).

    ε = RDP(α) + ln((α - 1)/α) - (ln δ + ln α)/(α - 1) (Balle et al. 2020, Theorem 21), least over a fine grid of α.
    """
    alpha = 1 + np.logspace(-7, 5, 200_000)
    bound = alpha * releases / (2 * noise**2) + np.log1p(-1 / alpha) - (np.log(1e-5) + np.log(alpha)) / (alpha - 1)
    assert epsilon(noise, releases, 1e-5) == pytest.approx(max(0.0, bound.min()), rel=0.03, abs=1e-3)


def test_no_release_costs_nothing():
    assert epsilon(1.0, 0, 1e-5) == 0.0


def test_a_clients_epsilon_is_of_the_rounds_that_it_took_part_in():
    """Any other data is two clips away, no update one: half the noise multiplier, and the multiplier itself."""
    spent = privacy(config(), ("",), {"a": {"": 3}, "b": {"": 1}})
    assert spent["clients"]["a"] == {
        "uploads": 3,
        "epsilon": epsilon(1.0, 3, 1e-5),
        "epsilon_zero_out": epsilon(2.0, 3, 1e-5),
    }
    assert spent["clients"]["b"]["epsilon"] == epsilon(1.0, 1, 1e-5) < spent["epsilon"]
    assert (spent["epsilon"], spent["uploads"]) == (spent["clients"]["a"]["epsilon"], 3)


def test_there_is_no_epsilon_where_an_upload_has_no_noise():
    spent = privacy(config(), ("2a",), {"a": {"2a": 3, "1": 2}, "b": {"1": 1}})
    assert (spent["epsilon"], spent["epsilon_zero_out"], spent["not_noised"]) == (None, None, {"1": 3})
    assert spent["reason"] == "some uploads have no noise: 3 in phase 1"
    assert privacy_line({"privacy": spent}).endswith("no ε: some uploads have no noise: 3 in phase 1")


def test_clipping_alone_has_no_epsilon_and_no_clip_no_entry():
    assert privacy(config(noise=0.0), ("",), {"a": {"": 1}})["epsilon"] is None
    assert privacy(config(clip=0.0, noise=0.0), ("",), {"a": {"": 1}}) is None


def test_a_run_without_the_library_is_refused_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(privacy_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'dp-accounting<0.7'"):
        RunDirectory(tmp_path / "r", assemble({**FLAT, **PRIVATE, "method": "fedavg"}), "in-process")
    RunDirectory(tmp_path / "r", assemble({**FLAT, "method": "fedavg"}), "in-process").close()


def test_a_run_that_goes_back_to_a_round_is_refused(tmp_path):
    """The server has seen the uploads that it undoes."""
    with pytest.raises(ConfigError, match=r"--from-round: expected a run without privacy\.noise"):
        RunDirectory(tmp_path / "r", assemble({**FLAT, **PRIVATE, "method": "fedavg"}), "in-process", from_round=1)


@pytest.mark.parametrize(("method", "reason"), [("fedpse", ""), ("dmpfl", "some uploads have no noise: ")])
def test_the_summary_has_it(method, reason, tmp_path):
    """Two of four clients a round, three rounds: six uploads in all, none of the closing round."""
    gentle = {"privacy.clip": 0.05}  # ε does not depend on it; with more noise in all, training may end in NaN
    assembly = assemble({**FLAT, **PRIVATE, **gentle, "method": method})
    with RunDirectory(tmp_path / "run", assembly, "in-process") as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    spent = summary["privacy"]
    assert spent["reason"].startswith(reason)
    assert (spent["epsilon"] is None) is bool(reason)
    sent = sum(client["uploads"] for client in spent["clients"].values()) + sum(spent["not_noised"].values())
    assert sent == (6 if method == "fedpse" else sent)
    if not reason:
        assert spent["epsilon"] == epsilon(1.0, spent["uploads"], 1e-5)
        assert f"ε = {spent['epsilon']:.3g} for" in privacy_line(summary)
        assert privacy_line(summary).endswith("simulated: the noise came from the seed")
    shown = io.StringIO()
    print_run(Console(file=shown, width=200), read_run(tmp_path / "run"))
    assert privacy_line(summary) in shown.getvalue()
    assert str(escape(f"{method}: {privacy_line(summary)}")) in render(read_comparison([str(tmp_path / "run")]))


def test_the_table_of_the_docs_is_computed():
    """ε at δ = 1e-5 after n uploads, for a few noise multipliers; the last column is for a mean of 50 clients, 7·z."""
    text = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    rows = re.findall(r"^\| ([\d.]+) \| (\d+) \| (\S+) \| (\S+) \| (\S+) \|$", text, re.MULTILINE)
    assert len(rows) >= 6
    for z, n, *figures in rows:
        epsilons = [epsilon(factor * float(z), int(n), 1e-5) for factor in (0.5, 1, 7)]
        assert figures == [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in epsilons], z
