"""Files of elsewhere: run directories, comparisons, models, data and plans that somebody prepared to do harm."""

from __future__ import annotations

import http.client
import json
import math
import os
import struct
import subprocess
import sys
import textwrap
import tomllib
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from threading import Thread
from unittest.mock import MagicMock

import numpy as np
import pytest
import tomli_w
from PIL import Image
from safetensors.numpy import save_file
from typer.testing import CliRunner

from sepal import models, user_modules
from sepal.cli.main import app
from sepal.cli.trackers import mlflow as mlflow_tracker
from sepal.data.sources.folder import read
from sepal.errors import ConfigError, DataError, ModelError, StateError
from sepal.export import portable
from sepal.export.portable import FORMAT, Origin, load, save
from sepal.models.weights import read_weights
from sepal.report.data import datasets
from sepal.report.live import ReportServer
from sepal.report.page import live_parts, render, waiting
from sepal.runs.stored_run import read_run
from sepal.server.run_store import evict
from sepal.strategies.assembly import assemble
from sepal.study.comparison import read_comparison
from sepal.study.plans.execute import execute
from sepal.study.plans.plan import read_plan
from sepal.study.runs import places_in
from tests.sepal.cli.runs_for_tests import write_run

ESCAPE = "[/x]\x1b]0;taken\x07"
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "<img src=x onerror=alert(1)>"


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def changed(path, **keys):
    """Change keys of a run's config.toml; ``__`` stands for a hyphen."""
    file = path / "config.toml"
    keys = {key.replace("__", "-"): value for key, value in keys.items()}
    file.write_text(tomli_w.dumps({**tomllib.loads(file.read_text()), **keys}))
    return path


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """The name of a function in a module that leaves a trace when it is imported, and whether it did."""
    (tmp_path / "trap_of_tests.py").write_text("from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trap_of_tests", raising=False)
    return "trap_of_tests:build", (tmp_path / "trap_of_tests.ran").exists


@pytest.mark.parametrize("method", ["fedavg", "dmpfl"])
def test_a_report_of_a_run_imports_nothing_that_the_run_names(method, trap, tmp_path):
    name, ran = trap
    run = changed(write_run(tmp_path / "run", method=method), model=name)
    datasets(read_comparison([str(run)]))
    assert not ran()


def origin(**keys):
    complete = Origin("digits-cnn", (1, 8, 8), 10, 0, 1.0, (0.5,), (0.5,), "fedavg", "digits", "run", "client-00000")
    return replace(complete, **keys)


def model(path, **keys):
    save(path, origin(**keys), [read_weights(models.build("digits-cnn", (1, 8, 8), 10))])
    return path


def test_a_model_file_imports_nothing_that_is_not_allowed(trap, tmp_path):
    name, ran = trap
    file = model(tmp_path / "m.safetensors", model=name)
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 1, 8, 8), np.float32))
    result = sepal("predict", file, tmp_path / "x.npz")
    assert (result.exit_code, ran()) == (2, False)
    assert "model: expected code that you allow" in result.output
    with pytest.raises(ModelError, match="no attribute"):
        load(file, {name})
    assert ran()


def test_a_model_file_that_asks_for_more_than_the_memory_is_refused(tmp_path):
    with pytest.raises(ModelError, match="model: expected one of at most"):
        load(model(tmp_path / "m.safetensors", classes=4 * 10**10))


LONG = [
    {"model": "embedding-linear", "shape": (2**34,), "vocabulary": 9},
    {"model": "resnet18-gn", "shape": (3, 2**15, 2**15)},
]


@pytest.mark.parametrize("keys", LONG)
def test_a_model_file_whose_examples_are_larger_than_the_memory_is_refused(keys, tmp_path, monkeypatch):
    """Its weights are small, whatever the shape. Nothing of the example's size is made."""
    monkeypatch.setattr(portable, "Loaded", None)
    with pytest.raises(ModelError, match=r"model: expected one of at most .*, got an example of shape \("):
        load(model(tmp_path / "m.safetensors", **keys))


HUGE = [
    {"shape": (1, 2**31, 2**31)},
    {"shape": (2**31,) * 3},
    {"shape": (2**63, 8, 8)},
    {"classes": 2**62},
    {"classes": 10**30},
]
HUGE += [{"model": "embedding-linear", "shape": (8,), "vocabulary": 2**63}, {"width": math.nan}, {"width": -1.0}]


@pytest.mark.parametrize("keys", HUGE)
def test_a_model_file_with_sizes_that_no_tensor_has_is_refused_in_one_line(keys, tmp_path):
    file = model(tmp_path / "m.safetensors", **keys)
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 1, 8, 8), np.float32))
    result = sepal("predict", file, tmp_path / "x.npz")
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    assert "expected" in result.output


WEIGHTS = read_weights(models.build("digits-cnn", (1, 8, 8), 10))
UNFIT = [
    [{name: array.astype(np.int64) for name, array in WEIGHTS.items()}],
    [{name: array.astype(np.float64) for name, array in WEIGHTS.items()}],
    [{name: np.zeros(1, np.float32) for name in WEIGHTS}],
]


@pytest.mark.parametrize("networks", UNFIT)
def test_a_model_file_whose_tensors_do_not_fit_is_refused_in_one_line(networks, tmp_path):
    save(tmp_path / "m.safetensors", origin(), networks)
    with pytest.raises(ModelError, match=r"expected (tensors and numbers that fit digits-cnn|floating point)"):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("text", ["null", "[]", "3", "", "[" * 60_000, '{"a":' * 60_000])
def test_a_model_file_whose_origin_is_no_table_is_refused_in_one_line(text, tmp_path):
    save_file(WEIGHTS, tmp_path / "m.safetensors", {"format": FORMAT, "origin": text})
    with pytest.raises(StateError, match="expected a model that `sepal export` wrote"):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("keys", [{"mean": ()}, {"std": ()}, {"mean": (), "std": ()}, {"mean": (0.5, 0.5)}])
def test_a_model_file_without_mean_or_spread_is_refused_in_one_line(keys, tmp_path):
    save(tmp_path / "m.safetensors", origin(**keys), [WEIGHTS])
    with pytest.raises(StateError, match=r"origin\.mean and origin\.std"):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("columns", [("a", "a"), ("", ""), ("\x1b",) * 5])
def test_a_model_file_with_a_column_twice_is_refused_in_one_line(columns, tmp_path):
    save(tmp_path / "m.safetensors", origin(columns=columns), [WEIGHTS])
    with pytest.raises(StateError, match="expected a model that `sepal export` wrote") as refusal:
        load(tmp_path / "m.safetensors")
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "dmpfl", "rule": "x"}, "tensors and numbers that fit"),
        ({"method": "dmpfl", "rule": "x", "numbers": (1.0, 2.0, 3.0)}, "tensors and numbers that fit"),
        ({"classes": 9}, "a number for each of 9 classes"),
    ],
)
def test_a_model_file_with_other_numbers_or_classes_than_its_tensors_is_refused(keys, words, tmp_path):
    save(tmp_path / "m.safetensors", origin(**keys), [WEIGHTS] * (1 + ("rule" in keys)))
    with pytest.raises(ModelError, match=words):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", [b"\x1b]0;title\x07\n=1+1.png", b"\xff\xfe.png"])
def test_names_of_files_are_printed_without_escapes(name, tmp_path):
    """A downloaded directory has names of somebody else's choice; a named pipe in it is no file."""
    (tmp_path / "x").mkdir()
    with open(os.fsencode(tmp_path / "x") + b"/" + name, "wb") as file:
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(file, "png")
    os.mkfifo(tmp_path / "x" / "pipe.png")
    result = sepal("predict", model(tmp_path / "m.safetensors"), tmp_path / "x")
    assert result.exit_code == 0, result.output
    assert result.output.replace("\n", "").isprintable()
    assert result.output.count("\n") == 2


def test_a_named_pipe_does_not_keep_a_list_of_runs_waiting(tmp_path):
    write_run(tmp_path / "a")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.toml")
    assert [path.name for path, _ in places_in(tmp_path)] == ["a"]


def test_a_list_of_runs_has_no_escapes_of_their_names(tmp_path):
    write_run(tmp_path / "a\x1b[31m\u202e")
    result = CliRunner().invoke(app, ["ls", str(tmp_path)])
    assert "a?[31m?" in result.output
    assert "\x1b" not in result.output


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_no_link_of_a_run_takes_a_private_file_to_mlflow(link, tmp_path, monkeypatch):
    """The tracking server may be one that the author of the run can read."""
    (tmp_path / "private").write_text("secret")
    run = write_run(tmp_path / "a", closing=[0.5, 0.6])
    (run / "checkpoints").mkdir(exist_ok=True)
    link(tmp_path / "private", run / "checkpoints" / "round-999999.safetensors")
    monkeypatch.setitem(sys.modules, "mlflow.entities", MagicMock())
    monkeypatch.setattr(mlflow_tracker, "find_spec", lambda name: None)
    client = MagicMock()
    mlflow_tracker._log(client, "0", read_run(run), "http://127.0.0.1:5000", "--mlflow")
    sent = [Path(call.args[1]).name for call in client.log_artifact.call_args_list]
    assert "config.toml" in sent
    assert "round-999999.safetensors" not in sent


@pytest.mark.parametrize(
    "keys", [{"classes": "9"}, {"shape": ("a",)}, {"shape": 3}, {"mean": ("a",)}, {"model": 1}, {"rule": ()}]
)
def test_a_model_file_with_odd_types_is_refused_in_one_line(keys, tmp_path):
    with pytest.raises(StateError, match="a model that `sepal export` wrote"):
        load(model(tmp_path / "m.safetensors", **keys))


def index(directory, **keys):
    write_run(directory / "a")
    rows = {"title": "t", "view": "trained", "target": None, "runs": [{"name": "a", "label": "x", "cell": ""}]}
    (directory / "comparison.json").write_text(json.dumps({**rows, **keys}))
    return directory


@pytest.mark.parametrize("keys", [{"view": SCRIPT}, {"target": SCRIPT}, {"target": "9"}, {"view": ["trained"]}])
def test_a_comparison_with_another_view_or_target_is_refused(keys, tmp_path):
    result = sepal("report", index(tmp_path / "c", **keys))
    assert result.exit_code == 2
    assert "comparison.json: expected the list of a comparison's runs" in result.output


def test_a_report_holds_no_markup_of_a_runs_files(tmp_path):
    """Not in a page, in what a page that grows is sent, or in the page before the first round; nor in its JSON."""

    def pages(directory, text):
        rows = [{"name": "a", "label": text, "cell": text}, {"name": "a", "label": f"{text}2", "cell": f"{text}2"}]
        comparison = read_comparison([str(index(directory, title=text, runs=rows, notes=[text]))])
        (directory / "a" / "summary.json").unlink()
        going = read_comparison([str(directory)])
        parts = [part for part in live_parts(going).values() if isinstance(part, str)]
        return [render(comparison), render(going, live=True), waiting(going), *parts]

    plain, planted = pages(tmp_path / "plain", "word"), pages(tmp_path / "planted", f"<!--<script>'\"{SCRIPT}")
    for tag in ("<img", "<!--", "<script", "onerror=alert(1)>"):
        assert [page.count(tag) for page in planted] == [page.count(tag) for page in plain], tag
    assert "&lt;img src=x" in planted[0]


def summarised(path, change):
    summary = json.loads((path / "summary.json").read_text())
    change(summary)
    (path / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize(
    "change",
    [
        lambda summary: summary.update(privacy={"clip": 1.0, "noise": 1.0, "reason": ESCAPE}),
        lambda summary: summary["accuracy"].update({ESCAPE: summary["accuracy"]["trained"]}),
        lambda summary: summary.update(by_capacity={ESCAPE: {"trained": summary["accuracy"]["trained"]}}),
        lambda summary: summary,
    ],
)
def test_show_prints_neither_escapes_nor_markup_of_a_runs_files(change, tmp_path):
    run = changed(write_run(tmp_path / "run"), method=ESCAPE, dataset=ESCAPE)
    summarised(run, change)
    result = sepal("show", run)
    assert result.exit_code == 0, result.exception
    assert "[/x]" in result.output
    assert "\x1b" not in result.output
    assert "\x07" not in result.output


@pytest.mark.parametrize(
    ("name", "content"), [("metrics.jsonl", "[" * 200_000 + "\n"), ("config.toml", "a=" + "[" * 20_000)]
)
def test_deeply_nested_files_are_refused_in_one_line(name, content, tmp_path):
    run = write_run(tmp_path / "run")
    (run / name).write_text(content)
    result = sepal("show", run)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)


def test_the_page_of_a_run_is_for_who_has_its_address(tmp_path):
    """Other users of the machine, and pages of elsewhere in a browser, reach the port as well."""
    run = write_run(tmp_path / "run")
    with ReportServer([str(run)], 0) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            for path, status in (("/", 404), ("/data", 404), ("//data", 404), (f"/{server.secret}x/data", 404)):
                assert ask(server, path) == status, path
            assert ask(server, f"/{server.secret}/data") == 200
            for host in ("attacker.example", f"127.0.0.1.attacker.example:{server.server_port}", "10.0.0.1:80", ""):
                assert ask(server, f"/{server.secret}/data", host) == 403, host
        finally:
            server.shutdown()
            thread.join()


def ask(server, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    return connection.getresponse().status


def test_an_eviction_is_not_stopped_by_damaged_records(tmp_path):
    records = tmp_path / "records"
    (records / "7 (copy)").mkdir(parents=True)
    (records / "000003").write_text("x")
    (records / "000004").write_bytes(b"\xff")
    (records / "000005").write_text(f"x\n{'[' * 100_000}")
    (records / "000006").write_text('x\n{"record": {"joined": [{"name": 5}, {"name": null}, {"name": [1]}]}}')
    evict(tmp_path, "client-1")
    assert (tmp_path / "evicted" / "client-1").exists()


def test_copies_of_private_data_and_tables_of_runs_are_their_owners_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own").mkdir()
    np.savez(tmp_path / "own" / "a.npz", x=np.random.default_rng(0).random((60, 4)), y=np.arange(60) % 3)
    assembled = assemble({"dataset": "folder", "data-dir": str(tmp_path / "own"), "clients": 2, "model": "har-mlp"})
    assembled.data.client(0, 2, "x")
    copies = [path.parent for path in (tmp_path / "cache").rglob("x.npy")]
    assert [path.stat().st_mode & 0o777 for path in copies] == [0o700]
    execute([], tmp_path / "comparison", Quiet(), hours=1)
    assert (tmp_path / "comparison").stat().st_mode & 0o777 == 0o700


class Quiet:
    def __enter__(self):
        return self

    def __exit__(self, *reason):
        pass

    def __getattr__(self, name):
        return lambda *arguments, **keys: None


def huge_npz(path):
    """An array of 2.3 TiB by what its header says."""
    import io

    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (10**10, 64)})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", head.getvalue())


def huge_png(path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04junk", "huge", "a number", "NaN"])
def test_data_that_cannot_be_predicted_on_is_refused_in_one_line(content, tmp_path):
    file = tmp_path / "x.npz"
    if content == "huge":
        huge_npz(file)
    elif isinstance(content, str):
        np.savez(file, x=np.float32(3) if content == "a number" else np.full((1, 1, 8, 8), np.nan, np.float32))
    else:
        file.write_bytes(content)
    result = sepal("predict", model(tmp_path / "m.safetensors"), file)
    assert result.exit_code == 2, result.output
    assert result.output.startswith(("sepal: data: expected", f"sepal: {file}: expected"))
    assert result.output.count("\n") == 1


def test_images_and_arrays_that_are_too_large_are_refused_in_one_line(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        huge_png(tmp_path / "images" / name / "x.png")
    (tmp_path / "array").mkdir()
    huge_npz(tmp_path / "array" / "x.npz")
    for name, expected in (("images", "a PNG or JPEG image"), ("array", "an npz file")):
        with pytest.raises(DataError, match=expected):
            read(tmp_path / name)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_weights_to_start_from_are_finite(value, tmp_path):
    weights = read_weights(models.build("digits-cnn", (1, 8, 8), 10))
    save_file({name: np.full(array.shape, value) for name, array in weights.items()}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"initial-weights: conv1\.(weight|bias): expected finite numbers"):
        assemble({"dataset": "digits", "model": "digits-cnn", "initial-weights": str(tmp_path / "w.safetensors")})


@pytest.mark.parametrize("registered", [False, True])
def test_weights_of_a_type_that_numpy_lacks_are_refused_in_one_line(tmp_path, registered):
    import torch
    from safetensors.torch import save_file as save_torch

    if registered:  # for good: the case without comes first
        pytest.importorskip("ml_dtypes")
    save_torch({"w": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match="initial-weights: expected a safetensors file"):
        assemble({"dataset": "digits", "initial-weights": str(tmp_path / "w.safetensors")})


SWEPT = "".join(f'"{key}" = {list(range(1, 101))}\n' for key in ("rounds", "local-epochs", "batch-size", "seed"))


@pytest.mark.parametrize("table", ["settings", "settings.fedavg"])
def test_a_plan_of_ever_so_many_runs_is_refused_before_they_are_listed(table, tmp_path):
    (tmp_path / "p.toml").write_text(f'methods = ["fedavg"]\n[{table}]\n{SWEPT}')
    with pytest.raises(ConfigError, match="at most 100000"):
        read_plan(tmp_path / "p.toml")


def test_a_plan_that_is_nested_too_deeply_is_refused_in_one_line(tmp_path):
    (tmp_path / "p.toml").write_text("a = " + "[" * 50_000)
    with pytest.raises(ConfigError, match="plan: expected a TOML file"):
        read_plan(tmp_path / "p.toml")


def test_a_module_in_the_working_directory_does_not_stand_in_for_one_that_a_library_looks_for(tmp_path):
    """Libraries try ``orjson`` and the like, which are often not installed."""
    (tmp_path / "tried_by_tests.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    (tmp_path / "mine_of_tests.py").write_text("import tried_by_tests\n\ndef f():\n    pass\n")
    code = """
        import importlib.util, sys
        from pathlib import Path
        from sepal import user_modules
        from sepal.errors import DataError
        user_modules.enable(Path.cwd())
        assert importlib.util.find_spec("tried_by_tests") is None
        assert user_modules.load("data", "mine_of_tests:f", DataError)
        assert Path("ran").exists()
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), user_modules.VARIABLE: ""}
    subprocess.run([sys.executable, "-P", "-c", textwrap.dedent(code)], cwd=tmp_path, env=environment, check=True)
