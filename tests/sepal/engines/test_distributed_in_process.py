"""Noise by the clients together in process: workers change no bit, methods that take it, refusals, what is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sepal.client_app.secure_sums import SecureSums
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.masks.selection import count
from sepal.report.text_tables import privacy_line
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.secure.noise import Shares
from sepal.server.accounting import of_shares
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.method_checks.cases import RoundLog
from tests.sepal.engines.test_central_in_process import OF_ONE_MEAN, bits, model

pytest.importorskip("dp_accounting")
FLAT = {
    "dataset": "digits",
    "method": "fedavg",
    "clients": 4,
    "rounds": 2,
    "evaluate-every": 0,
    "evaluate-sampled": False,
    "partition.subsample": 120,
    "seed": 3,
    "secure": "sum",
    "privacy.mode": "distributed",
    "privacy.clip": 0.1,
    "privacy.noise": 0.3,
}
FAST = ("fedper", "ditto")


def run(workers=1, **keys):
    log = RoundLog()
    return run_in_process(assemble({**FLAT, **keys}), observers=[log], workers=workers), log


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_workers_and_repetitions_change_no_bit(workers):
    keys = {"clients-per-round": 3}
    (first, alone), (second, several) = run(**keys), run(workers=workers, **keys)
    assert bits(first) == bits(second)
    assert dict(first.progress.versions) == dict(second.progress.versions)
    assert [line.get("privacy") for line in alone.lines] == [line.get("privacy") for line in several.lines]
    assert bits(run(seed=4, **keys)[0]) != bits(first)


def test_the_mean_is_noised_by_the_shares_of_all_and_by_no_more():
    """From W_0, with a learning rate that moves nothing: 4 shares of D·z²/2 each, divided by 4.

    An entry then has the deviation γ·√(4·z²·D/2)/4, of d entries off by a share of 1/√(2d), which is below 2 %.
    """
    (noised, _), (plain, _) = (run(lr=1e-12, rounds=1, **{"privacy.noise": noise}) for noise in (0.3, 1e-3))
    difference = np.concatenate([(array - model(plain)[name]).ravel() for name, array in model(noised).items()])
    shares = Shares(0.1, 0.3, difference.size, 4, 1)
    assert difference.std() == pytest.approx(shares.step * float(4 * shares.variance) ** 0.5 / 4, rel=0.06)
    assert difference.std() == pytest.approx(0.3 * 0.1 / 8**0.5, rel=0.06)


@pytest.mark.parametrize(
    "method",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.long)
        for name in OF_ONE_MEAN
        if not name.startswith("local")
    ],
)
def test_each_method_of_one_mean_runs_with_shares(method):
    keys = {"pfedme": {"pfedme.steps": 1}, "fedbn": {"model": "digits-cnn-bn"}}.get(method, {})
    strategy, log = run(method=method, rounds=1, **keys)
    assert (log.records[0].releases, log.records[0].void) == (1, "")
    assert strategy.report.released.most == 1


def test_weights_do_not_count_because_one_client_may_have_any_number_of_examples(monkeypatch):
    """With commitments that leave the keys of the order out: of two configurations, the noise is another one."""
    monkeypatch.setattr(SecureSums, "digest", lambda self, upload, work: upload.digest())
    assert bits(run(**{"fedavg.weights": "equal"})[0]) == bits(run(**{"fedavg.weights": "examples"})[0])


def test_drawn_entries_have_the_noise_of_as_few():
    """A tenth of the entries: r is smaller, and the vectors are."""
    strategy, log = run(**{"compress.name": "randk", "compress.keep": 0.1, "rounds": 3})
    size = sum(array.size for array in model(strategy).values())
    sizes = {e.payload for e in log.records[0].ledger if (e.step, e.direction) == ("mask", "up")}
    assert sizes == {4 * count(0.1, size) + 4}
    assert [record.releases for record in log.records[:3]] == [1, 1, 1]


@pytest.mark.parametrize("method", [name for name in registry.METHODS if name not in OF_ONE_MEAN])
def test_another_method_is_refused_in_a_line_that_says_why(method):
    with pytest.raises(ConfigError) as refused:
        assemble({**FLAT, "method": method})
    words = str(refused.value)
    assert words.startswith(f"privacy.mode: expected local: {method} needs more than the mean of the uploads: ")
    assert "\n" not in words


@pytest.mark.parametrize("method", ["local", "local-width"])
def test_a_method_that_sends_nothing_is_refused(method):
    with pytest.raises(ConfigError, match=r"privacy\.mode: expected local: local.* sends nothing"):
        run(method=method)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"secure": "off"}, r"secure: expected sum with privacy\.mode = distributed"),
        ({"secure-range": 4.0}, r"secure-range: expected 8\.0 with privacy\.mode = distributed: the clip bounds"),
        ({"secure-colluders": 0}, r"secure-colluders: expected at least 1 with privacy\.mode = distributed: each"),
        ({"privacy.noise": 0.0}, r"privacy\.noise: expected above 0 with privacy\.mode = distributed"),
        ({"privacy.clip": 0.0}, r"privacy\.clip: expected above 0"),
        ({"privacy.noise": 1e5}, r"privacy\.noise: expected at most 10000 with privacy\.mode = distributed"),
        ({"privacy.quantile": 0.5}, r"privacy\.quantile: expected 0 with privacy\.mode = distributed"),
        ({"privacy.sampling": "poisson"}, r"privacy\.sampling: expected fixed with privacy\.mode = distributed"),
        ({"robust-mean": "median"}, "robust-mean: expected none with secure = sum"),
        ({"max-update-norm": 3.0}, "max-update-norm: expected 0 with secure = sum"),
        ({"compress.name": "topk"}, "compress.name: expected none or randk with secure = sum"),
        ({"novel-clients": 0.5}, "novel-clients: expected 0 with secure = sum"),
        ({"data-changes": "accept"}, "data-changes: expected refuse"),
        ({"privacy.mode": "local"}, r"privacy\.clip: expected 0 with secure = sum, or privacy\.mode = distributed"),
        ({"privacy.mode": "central"}, r"secure: expected off with privacy\.mode = central"),
    ],
)
def test_keys_whose_claim_would_not_hold_are_refused(keys, why):
    with pytest.raises(ConfigError, match=why):
        assemble({**FLAT, **keys})


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"model": "digits-cnn-bn"}, "model: expected a model without running statistics"),
        ({"secure-bits": 16, "privacy.noise": 5.0}, "secure-bits: expected 32: a sum with its noise could wrap"),
        ({"privacy.noise": 2000.0}, r"privacy\.noise: expected at most .* entries and 4 clients"),
        ({"privacy.noise": 1e-9}, r"privacy\.noise: expected a multiplier with which no sum of 32 bits can wrap"),
        ({"privacy.budget": 0.5}, r"privacy\.budget: expected at least .*, the ε of one round"),
    ],
)
def test_a_run_that_is_impossible_is_refused_before_it_has_a_directory(keys, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        RunDirectory(tmp_path / "r", assemble({**FLAT, **keys}), IN_PROCESS)
    assert not (tmp_path / "r").exists()


def test_a_run_in_a_directory_says_what_it_spent_and_does_not_go_back(tmp_path):
    flat = {**FLAT, "name": "r"}
    with RunDirectory(tmp_path / "r", assemble(flat), IN_PROCESS) as directory:
        run_in_process(directory._assembly, store=directory.store(), observers=[directory])
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    privacy = summary["privacy"]
    assert (privacy["mode"], privacy["releases"], privacy["uploads"], privacy["epsilon"]) == ("distributed", 2, 2, None)
    assert privacy["epsilon_no_amplification"] == of_shares(0.3, 2, 1e-5)
    line = privacy_line(summary)
    assert "noise by the clients together" in line
    assert "for a server that follows the protocol, with at most 1 clients on its side" in line
    assert "the noise came from the seed" in line
    with pytest.raises(ConfigError, match=r"--from-round: expected a run without privacy\.noise"):
        RunDirectory(tmp_path / "r", assemble(flat), IN_PROCESS, 1)
