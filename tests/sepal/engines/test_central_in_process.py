"""Central noise in process: what stays on clients is neither clipped nor noised, workers change no bit, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, StateError
from sepal.report.text_tables import privacy_line
from sepal.runs.backup import back_up
from sepal.runs.central_secret import SECRET, central_secret
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.server.central_noise import CentralNoise, of_seed
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.method_checks.cases import RoundLog

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
    "privacy.mode": "central",
    "privacy.clip": 0.1,
    "privacy.noise": 0.3,
}
OF_ONE_MEAN = [name for name in registry.METHODS if registry.get(name).summed_phases]
FAST = ("fedper", "ditto")


def run(workers=1, **keys):
    log = RoundLog()
    return run_in_process(assemble({**FLAT, **keys}), observers=[log], workers=workers), log


def model(strategy):
    return dict(strategy.algorithm.model(strategy.progress.server))


def bits(strategy):
    return {name: array.tobytes() for name, array in model(strategy).items()}


@pytest.mark.parametrize(
    "method",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.long)
        for name in OF_ONE_MEAN
        if not name.startswith("local")
    ],
)
def test_a_methods_shared_part_is_clipped_and_noised_and_moves_by_no_more(method, monkeypatch):
    """With hardly any noise, a round moves the shared tensors by at most C = 0.01, in norm over all of them."""
    keys = {"pfedme": {"pfedme.steps": 1}, "fedbn": {"model": "digits-cnn-bn"}}.get(method, {})
    means = []
    released = CentralNoise.released
    monkeypatch.setattr(CentralNoise, "released", lambda *a: means.append(released(*a)) or means[-1])
    strategy, _ = run(method=method, **{"privacy.clip": 0.01, "privacy.noise": 1e-6, "rounds": 1, **keys})
    (mean, _), shared = means[0], strategy.algorithm.shared()
    assert 0.001 < np.linalg.norm(mean) <= 0.01 * (1 + 1e-3)
    assert mean.size % sum(parameter.size for parameter in shared) == 0  # FedEM shares several models


@pytest.mark.parametrize("method", ["fedper", "fedrep", "ditto"])
def test_what_stays_on_a_client_is_as_without_noise(method, tmp_path):
    """In round 1 all train from W_0. What a client keeps afterwards is bit for bit what it keeps in a run without."""

    def kept(**keys):
        flat = {**FLAT, "method": method, "rounds": 1, **keys}
        run_in_process(assemble(flat), state_dir=(directory := tmp_path / str(len(keys))))
        return {path.relative_to(directory).parts[1]: path for path in directory.rglob("*.safetensors")}

    from sepal.storage.files import read_tensors

    def arrays(path):
        return {name: array.tobytes() for name, array in read_tensors(path)[0].items()}

    noised, plain = kept(), kept(**{"privacy.mode": "local", "privacy.noise": 0.0, "privacy.clip": 0.0})
    assert noised.keys() == plain.keys()
    assert all(arrays(noised[name]) == arrays(plain[name]) for name in plain)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_workers_and_repetitions_change_no_bit(workers):
    keys = {"clients-per-round": 3, "privacy.quantile": 0.5, "privacy.noise": 0.2}
    (first, alone), (second, several) = run(**keys), run(workers=workers, **keys)
    assert bits(first) == bits(second)
    assert [line.get("privacy") for line in alone.lines] == [line.get("privacy") for line in several.lines]
    assert bits(run(seed=4, **keys)[0]) != bits(first)


def test_weights_do_not_count_because_one_client_may_have_any_number_of_examples():
    assert bits(run(**{"fedavg.weights": "equal"})[0]) == bits(run(**{"fedavg.weights": "examples"})[0])


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
        ({"privacy.noise": 0.0}, "privacy.noise: expected above 0 with privacy.mode = central"),
        ({"privacy.clip": 0.0}, "privacy.clip: expected above 0"),
        ({"secure": "sum"}, "secure: expected off with privacy.mode = central"),
        ({"robust-mean": "median"}, "robust-mean: expected none with privacy.mode = central"),
        ({"max-update-norm": 3.0}, "max-update-norm: expected 0 with privacy.mode = central"),
        ({"compress.name": "topk"}, "compress.name: expected none with privacy.mode = central"),
        (
            {"privacy.quantile": 0.5, "privacy.noise": 0.4},
            "privacy.quantile: expected 0 with privacy.noise of at least",
        ),
        (
            # 0.4·(1 - 1e-10) leaves updates (z^-2 - .4^-2)^-½ = .4/√(2e-10) = 28,284
            {"privacy.quantile": 0.5, "privacy.noise": 0.4 * (1 - 1e-10)},
            r"privacy.noise: expected further below 0\.4, .* a multiplier of 2\.828e\+04, above 10000",
        ),
        ({"privacy.sampling": "poisson"}, "clients-per-round: expected from 1 to 3 with privacy.sampling = poisson"),
        ({"privacy.sampling": "poisson", "clients-per-round": 4}, "clients-per-round: expected from 1 to 3"),
        ({"privacy.sampling": "poisson", "clients-per-round": 2, "oversample": 1.5}, "oversample: expected 1"),
        ({"privacy.sampling": "poisson", "clients-per-round": 2, "min-replies": 2}, "min-replies: expected 1"),
        ({"privacy.sampling": "poisson", "clients-per-round": 2, "novel-clients": 0.5}, "novel-clients: expected 0"),
        ({"privacy.sampling": "poisson", "clients-per-round": 2, "roster": "open"}, "roster: expected closed"),
        ({"privacy.mode": "local", "privacy.quantile": 0.5}, "privacy.quantile: expected 0 with privacy.mode = local"),
        ({"privacy.mode": "local", "privacy.budget": 3.0}, "privacy.budget: expected 0 with privacy.mode = local"),
        ({"roster": "open"}, "roster: expected closed with privacy.mode = central and clients-per-round = 0"),
        ({"novel-clients": 0.5}, "novel-clients: expected 0 with privacy.mode = central and clients-per-round = 0"),
        ({"clients": 0}, "clients: expected a number with privacy.mode = central"),
    ],
)
def test_keys_whose_claim_would_not_hold_are_refused(keys, why):
    with pytest.raises(ConfigError, match=why):
        assemble({**FLAT, **keys})


def test_running_statistics_are_refused_where_they_are_sent():
    with pytest.raises(ConfigError, match="model: expected a model without running statistics"):
        run(model="digits-cnn-bn")


# The run directory


def test_a_run_in_a_directory_says_what_it_spent_and_goes_neither_back_nor_on_with_a_part_undone(tmp_path):
    flat = {**FLAT, "name": "r"}
    with RunDirectory(tmp_path / "r", assemble(flat), IN_PROCESS) as directory:
        assert directory.secret() == of_seed(FLAT["seed"])
        run_in_process(directory._assembly, store=directory.store(), observers=[directory])
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    privacy = summary["privacy"]
    assert (privacy["mode"], privacy["releases"], privacy["uploads"], privacy["epsilon"]) == ("central", 2, 2, None)
    assert privacy["epsilon_no_amplification"] > 10
    assert "the noise came from the seed" in privacy_line(summary)
    assert not (tmp_path / "r" / SECRET).exists()
    with pytest.raises(ConfigError, match=r"--from-round: expected a run without privacy\.noise"):
        RunDirectory(tmp_path / "r", assemble(flat), IN_PROCESS, 1)


def test_a_deployed_runs_secret_is_its_own_private_and_kept(tmp_path):
    first = central_secret(tmp_path, begun=False)
    assert len(first) == 32
    assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
    assert central_secret(tmp_path, begun=True) == first
    (tmp_path / "other").mkdir()
    assert central_secret(tmp_path / "other", begun=False) != first


def test_a_run_that_has_begun_gets_no_second_secret(tmp_path):
    with pytest.raises(StateError, match="would get a second noise"):
        central_secret(tmp_path, begun=True)
    assert not (tmp_path / SECRET).exists()


def test_a_secret_that_others_may_read_or_that_is_elsewhere_is_refused(tmp_path):
    central_secret(tmp_path, begun=False)
    (tmp_path / SECRET).chmod(0o640)
    with pytest.raises(StateError, match="a file that this user alone may read"):
        central_secret(tmp_path, begun=True)
    (tmp_path / SECRET).rename(tmp_path / "elsewhere")
    (tmp_path / SECRET).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="no link"):
        central_secret(tmp_path, begun=True)
    (tmp_path / SECRET).unlink()
    (tmp_path / SECRET).write_bytes(b"short")
    (tmp_path / SECRET).chmod(0o600)
    with pytest.raises(StateError, match="a file of 32 bytes"):
        central_secret(tmp_path, begun=True)


def test_a_backup_has_the_secret_and_the_count_of_releases_and_nothing_prints_it(tmp_path):
    flat = {**FLAT, "name": "r"}
    with RunDirectory(tmp_path / "r", assemble(flat), "flower") as directory:
        secret = directory.secret()
        run_in_process(directory._assembly, store=directory.store(), observers=[directory])
    copy, _ = back_up(tmp_path / "r", tmp_path / "backup")
    assert (copy / SECRET).read_bytes() == secret
    assert (copy / SECRET).stat().st_mode & 0o777 == 0o600
    assert (copy / "checkpoints" / "releases").read_text().count("\n") == 2
    shown = ""
    for command in ("show", "report"):
        result = CliRunner().invoke(app, [command, str(tmp_path / "r")])
        assert result.exit_code == 0
        shown += result.output
    assert "noise by the server" in shown
    for path in (path for path in (tmp_path / "r").rglob("*") if path.is_file() and path.name != SECRET):
        assert secret not in path.read_bytes()
        assert secret.hex().encode() not in path.read_bytes()
    assert secret.hex() not in shown
