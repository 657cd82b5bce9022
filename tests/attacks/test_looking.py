"""Looking at a run never executes, fetches, or reads beyond it: every command, every key that could lead elsewhere."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import signal
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from PIL import Image

import sepal
from sepal.cli.main import app
from sepal.client_app import guard
from sepal.config import RunConfig, key_fields
from sepal.config.elsewhere import CODE, PLACES
from sepal.errors import ConfigError, SepalError, StateError
from sepal.flower import simulation
from sepal.method.readers import EndedRun
from sepal.report import learned_rows
from sepal.report.data import datasets, views
from sepal.report.page import render
from sepal.runs import about as about_module
from sepal.runs import run_directory
from sepal.runs.about import ABOUT, labels_of, write_about
from sepal.runs.run_directory import RunDirectory
from sepal.runs.stored_run import Allowed, read_run
from sepal.server.run_store.disk import BEST, EVICTED, PARTS
from sepal.storage import regular
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study import comparison
from sepal.study.comparison import read_comparison
from sepal.study.results import read_result
from sepal.study.run_keys import gather
from sepal.study.runs import places_in
from tests.attacks.looking import LOOKS, READS, changed, command, compared
from tests.sepal.cli.runs_for_tests import write_run

ROOT = Path(__file__).parents[1]
TEXTS = sorted(key for key, info in key_fields(RunConfig) if info.annotation is str)
PATIENCE = 120  # seconds after which a command counts as one that waits for ever
TRAP = "trap_of_tests:Trap"
# Commands whose looking is tested elsewhere, and those that read keys or a plan, or nothing of anybody's.
ELSEWHERE = {
    "backup": "sepal/test_backup.py",
    "clean": "sepal/cli/test_clean.py",
    "predict": "attacks/test_planted.py",
}
OF_KEYS = {"check-method", "compare", "data", "init", "keys", "methods", "models", "run", "serve", "submit", "tune"}
OF_NOBODY = {"certs", "deploy", "doctor", "join", "revoke"}


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Whether a module of the working directory was imported, which leaves a trace."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "trap_of_tests.py").write_text("open(__file__ + '.ran', 'w')\n")
    monkeypatch.setenv("SEPAL_USER_PATH", str(tmp_path / "here"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "here")])
    monkeypatch.delitem(sys.modules, "trap_of_tests", raising=False)
    return (tmp_path / "here" / "trap_of_tests.py.ran").exists


def test_every_command_looks_here_or_its_test_is_named():
    commands = set(typer.main.get_command(app).commands)
    looking = {name.split()[0] for name in LOOKS} & commands
    beside = {*ELSEWHERE, *OF_KEYS, *OF_NOBODY}
    assert looking | beside == commands
    assert not looking & beside
    for name, file in ELSEWHERE.items():
        assert f'"{name}"' in (ROOT / file).read_text(), name


def planted(folder, about=True, **keys):
    """Two runs of a comparison, of which ``a`` was planted."""
    run = write_run(folder / "a", method="dmpfl", about=about)
    write_run(folder / "b")
    compared(folder)
    return changed(run, **keys)


@pytest.mark.parametrize("key", TEXTS)
def test_no_key_of_a_run_imports_anything_when_somebody_looks_at_it(key, ran, tmp_path):
    run = planted(tmp_path / "c", about=False, **{key: TRAP})
    for name, look in (LOOKS if key in CODE else READS).items():
        look(run)
        assert not ran(), name
    if key in CODE:
        assert f"{key}: expected code that you allow" in LOOKS["export"](run)
        assert f"{key}: expected code that you allow" in LOOKS["model"](run)


@pytest.mark.parametrize("key", CODE)
def test_what_is_allowed_is_imported(key, ran, tmp_path):
    """Otherwise the test above would show nothing."""
    run = planted(tmp_path / "c", **{key: TRAP, "dataset": "own", "own.shape": "1x8x8", "own.classes": 10})
    message = command("export", run, "0", "--allow", "trap_of_tests")
    if key in ("method", "model", "task"):
        assert ran(), message
    assert "expected code that you allow" not in message


def test_a_run_that_is_not_continued_imports_nothing(ran, tmp_path):
    run = planted(tmp_path / "c", method=TRAP)
    with pytest.raises(ConfigError, match=f"method: expected '{TRAP}', with which the run a was started"):
        gather(None, (), {"name": "a", "out": str(run.parent), "method": "fedavg"}, tmp_path)
    assert not ran()


@pytest.mark.parametrize("model", ["auto", "cnn2-small"])
def test_a_model_of_absurd_size_is_not_built_when_somebody_looks(model, tmp_path, monkeypatch):
    """``auto`` was built whatever its size: a config of 2 kB filled the memory of `sepal report`."""
    monkeypatch.setattr(guard, "available", lambda: 64 << 20)
    sizes = {"dataset": "own", "own.shape": "1x400x400", "own.classes": 10, "batch-size": 1}
    run = planted(tmp_path / "c", model=model, **sizes)
    monkeypatch.setattr(learned_rows, "checkpoints_of", lambda path: [path])
    monkeypatch.setattr(learned_rows, "assemble", lambda *arguments, **keys: pytest.fail("built"))
    with pytest.raises(SepalError, match=r"model: expected sizes that fit .* of this node's memory, got cnn2-small of"):
        learned_rows.read(run, "masks")
    for look in ("export", "model"):
        assert "model: expected sizes that fit" in LOOKS[look](run)


@pytest.mark.parametrize(
    ("module", "reader"),
    [("dmpfl.mask_reader", "masks"), ("subfedavg.pruning_reader", "masks"), ("pa3dfl.embedding_reader", "embeddings")],
)
def test_a_checkpoint_that_names_very_many_clients_makes_no_row_for_each_pair(module, reader):
    """``clients = 10`` or 0 in its config and 10,000 names in 600 kB of its checkpoint made 100 million rows."""
    read_names = getattr(importlib.import_module(f"sepal.strategies.{module}"), reader)
    names = dict.fromkeys(map(str, range(learned_rows.MOST + 1)))
    server = SimpleNamespace(held=names, kept=names, hypernetwork=SimpleNamespace(embeddings=names))
    run = EndedRun(None, server, None, None, learned_rows.MOST)
    with pytest.raises(ConfigError, match="run: expected one of at most 60 clients, got 61"):
        read_names(run)


def test_states_of_very_many_clients_are_not_compared(tmp_path, monkeypatch):
    run = changed(planted(tmp_path / "c"), method="pfedgate", model="digits-cnn")
    for number in range(learned_rows.MOST + 1):
        (run / "clients" / "store" / f"client-{number}").mkdir(parents=True)
    monkeypatch.setattr(learned_rows, "checkpoints_of", lambda path: [path])
    monkeypatch.setattr(learned_rows, "_newest", lambda path, assembly: SimpleNamespace(server=None))
    with pytest.raises(ConfigError, match="run: expected one of at most 60 clients, got 61"):
        learned_rows.read(run, "vectors", most=learned_rows.MOST)


def test_an_about_file_of_very_many_counts_makes_no_row_for_each(tmp_path):
    """16 MB of ``1,`` made 8 million rows, which took gigabytes; a run stores at most a million."""
    run = planted(tmp_path / "c")
    about = json.loads((run / ABOUT).read_text())
    for clients, known in ((16, True), (17, False)):
        row = [1] * (about_module.MOST_COUNTS // 16)
        labels = {f"client-{number:05d}": row for number in range(clients)}
        (run / ABOUT).write_text(json.dumps({**about, "labels": labels}, separators=(",", ":")))
        assert (labels_of(read_run(run)).counts is not None) == known


@contextmanager
def watched():
    """Collect what is opened, listed, asked about and connected to; some paths are mounted when asked for."""
    events, on = [], [True]

    def hook(event, arguments):
        if on and event in ("open", "os.listdir", "os.scandir", "socket.connect", "socket.getaddrinfo"):
            events.append((event, str(arguments[0])))

    def noted(function):
        def call(path, *arguments, **keys):
            events.append((function.__name__, str(path)))
            return function(path, *arguments, **keys)

        return call

    sys.addaudithook(hook)
    asking = {name: getattr(os, name) for name in ("stat", "lstat", "access")}
    for name, function in asking.items():
        setattr(os, name, noted(function))
    try:
        yield events
    finally:
        on.clear()
        for name, function in asking.items():
            setattr(os, name, function)


def private(directory):
    """A directory of images of the reader's, which are classes of a name each."""
    for name in ("hidden-one", "hidden-two"):
        (directory / name).mkdir(parents=True)
        for number in range(12):
            Image.fromarray(np.full((8, 8), number, np.uint8)).save(directory / name / f"{number}.png")
    return directory


@pytest.mark.parametrize("dataset", ["folder", "hf", "digits"])
def test_looking_at_a_run_opens_nothing_but_its_files(dataset, tmp_path):
    """All keys that lead outside are set, whatever they are called."""
    hidden = private(tmp_path / "private")
    keys = {**dict.fromkeys(PLACES, str(hidden)), "hf.name": "nobody/nothing" if dataset == "hf" else ""}
    if dataset == "hf":
        keys["data-dir"] = ""
    keys |= {"dataset": dataset, "model": "digits-cnn", "partition.name": "iid"}
    run = planted(tmp_path / "c", about=False, **keys)
    reading = ("export", "model")  # they compare with the client's data
    shown = ""
    for name in (name for name in LOOKS if name not in reading):
        with watched() as events:
            shown += LOOKS[name](run)
        beyond = [path for event, path in events if "socket" in event or str(hidden) in path]
        assert beyond == [], name
    written = "".join(path.read_text() for path in (tmp_path / "c").rglob("*.html"))
    assert not re.search("hidden-(one|two)", written + shown)
    assert str(hidden) not in written
    assert not list(hidden.glob(".sepal*")), "and it leaves no cache there"


def test_data_that_is_allowed_is_opened(tmp_path):
    """Otherwise the test above would show nothing."""
    hidden = private(tmp_path / "private")
    keys = {"dataset": "folder", "model": "digits-cnn", "partition.name": "iid"}
    run = planted(tmp_path / "c", **{"data-dir": str(hidden), **keys}, about=False)
    with watched() as events:
        command("report", run, "--data")
    assert [path for _, path in events if str(hidden) in path]
    assert "hidden-one" in (run / "report.html").read_text()


NAMED = ["/etc", "../private", "..", ".", "", "a/../../private", "a\\b", 7, None, ["a"], "a" * 256]


@pytest.mark.parametrize("name", NAMED, ids=lambda name: str(name)[:20])
def test_a_comparison_names_runs_and_no_paths(name, tmp_path):
    write_run(tmp_path / "private")
    write_run(tmp_path / "c" / "a")
    rows = [
        {"name": run_name, "label": "x", "cell": ""}
        for run_name in ("a", str(tmp_path / "private") if name == "/etc" else name)
    ]
    compared(tmp_path / "c", runs=rows)
    for words in (["report"], ["show"]):
        assert "expected the list of a comparison's runs" in command(*words, tmp_path / "c")


@pytest.mark.parametrize("indexed", [True, False])
def test_a_folder_of_runs_leads_to_no_other_by_a_link(indexed, tmp_path):
    write_run(tmp_path / "private")
    write_run(tmp_path / "c" / "a")
    (tmp_path / "c" / "b").symlink_to(tmp_path / "private")
    if indexed:
        compared(tmp_path / "c")
    with pytest.raises(StateError, match="a link that leads out of it"):
        read_comparison([str(tmp_path / "c")])


@pytest.mark.parametrize("indexed", [True, False])
def test_a_run_that_a_folder_names_often_is_read_once(indexed, tmp_path, monkeypatch):
    """Each reading of it would take its memory again: 1 MB of names and lines could take a terabyte."""
    write_run(tmp_path / "c" / "a")
    (tmp_path / "c" / "b").symlink_to("a")
    if indexed:
        compared(tmp_path / "c", [*"ab" * 100])
    read = []
    monkeypatch.setattr(comparison, "read_result", lambda *row, **keys: read.append(row) or read_result(*row, **keys))
    assert len(read_comparison([str(tmp_path / "c")]).results) == 1
    assert len(read) == 1


def test_a_run_that_many_links_lead_to_is_listed_once(tmp_path, monkeypatch):
    """A hundred links to a run of 33 MB took ten minutes."""
    write_run(tmp_path / "runs" / "z" / "run")
    for number in range(9):
        (tmp_path / "runs" / f"link{number}").symlink_to("z")
        (tmp_path / "runs" / "z" / f"link{number}").symlink_to("run")
    (tmp_path / "runs" / "itself").symlink_to("itself")
    ((folder, runs),) = places_in(tmp_path / "runs")
    assert (folder.name, [run.name for run in runs]) == ("z", ["run"])
    (tmp_path / "elsewhere").symlink_to("runs/z/run")
    assert [place.name for place, _ in places_in(tmp_path)] == ["elsewhere"], "a link alone is listed"


def test_what_a_run_stores_of_its_data_is_not_more_than_its_readers_take(tmp_path, monkeypatch):
    """A table of 40 kB with a label of 999,999 gave a file of 300 MB, which nobody read."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.csv").write_text("a,label\n" + "".join(f"{n},{n % 50:0200}x\n" for n in range(200)))
    keys = {"method": "fedavg", "dataset": "folder", "data-dir": str(folder), "partition.name": "iid", "clients": 4}
    for limits, stored in (((200, 1 << 20), (50, 4)), ((199, 1 << 20), (50, 0)), ((200, 9_999), (0, 4))):
        monkeypatch.setattr(about_module, "MOST_COUNTS", limits[0])
        monkeypatch.setattr(about_module, "MOST_NAMED", limits[1])
        write_about(tmp_path, assemble(keys), alone=True)
        written = json.loads((tmp_path / ABOUT).read_text())
        assert (len(written["data"]["class_names"]), len(written["labels"] or ())) == stored


def fifo(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def loop(path):
    path.symlink_to(path)


def outward(path):
    comparison_folder = next(parent for parent in path.parents if parent.name == "c")
    elsewhere = comparison_folder.with_name(f"elsewhere-{path.name}")
    elsewhere.write_bytes(b'{"title": "secret", "complete": true}\n')
    path.symlink_to(elsewhere)
    return [str(path), str(elsewhere)]


def directory(path):
    path.mkdir()


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(1 << 42)


KINDS = (fifo, device, loop, outward, directory, sparse)
FILES = ("config.toml", "summary.json", "metrics.jsonl", "ledger.jsonl", "about.json", "devices.toml")
FILES += ("../comparison.json",)
FILES += ("checkpoints/round-000002.safetensors", "checkpoints/records/000001", f"checkpoints/{BEST}")
FILES += (f"checkpoints/{EVICTED}/client-00001", f"checkpoints/uploads/000001/{PARTS}/sum")
FILES += ("clients/0123/client-00000/3-a194e6be798a172fc13c6ad1.safetensors",)


@contextmanager
def patience(name):
    def late(*_):
        raise AssertionError(f"{name} waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("file", FILES)
def test_no_file_of_a_run_keeps_a_reader_waiting_or_leads_elsewhere(file, kind, tmp_path):
    run = planted(tmp_path / "c")
    path = tmp_path / "c" / "a" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    closed = kind(path) or ()
    for name, look in READS.items():
        with patience(name), watched() as events:
            assert "secret" not in look(run), name
        assert [opened for event, opened in events if event == "open" and opened in closed] == [], name
    assert "fedavg" in command("ls", tmp_path / "c"), "the other run is listed"


def test_one_bad_run_does_not_keep_the_others_from_being_listed(tmp_path, monkeypatch):
    good, odd = write_run(tmp_path / "good"), write_run(tmp_path / "odd")
    (odd / "metrics.jsonl").write_text('{"round": 1, "phase": [], "full": 0, "bytes": 0, "seconds": 0, "clients": 0}\n')
    late = write_run(tmp_path / "late")
    real = Path.stat

    def stat(self, **keys):
        facts = real(self, **keys)  # some file systems keep such times, and others cut them
        return os.stat_result((*facts[:8], 10**15, facts[9])) if self == late / "config.toml" else facts

    monkeypatch.setattr(Path, "stat", stat)
    changed(write_run(tmp_path / "deep"), rounds={"a": {"b": "x"}})
    shown = command("ls", tmp_path)
    assert [name for name in ("good", "odd", "late", "deep") if name not in shown] == []
    assert "complete" in next(line for line in shown.splitlines() if good.name in line)


ODD = (None, -1, 1.5, "x", [], [None], {"a": {"b": 1}}, True, 10**400, "9" * 5000)
FIGURES = ("metrics.jsonl", "ledger.jsonl", "summary.json", "about.json", "../comparison.json")
TRIED = {
    "cell": "",
    "label": "a",
    "view": "trained",
    "seeds": [0],
    "values": [["lr=1", 0.5]],
    "chosen": "",
    "edge": True,
}

LOOKS_AT_FIGURES = ("show", "figures", "export", "model", "python", "frontier")
LOOKS_AT_LIST = ("show of the folder", "ls", "figures of the folder", "frontier")


def places(value, path=()):
    """Paths of all values in JSON; of lists, those of the first item."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def with_odd(value, path, odd):
    """Return a copy with another value at ``path``."""
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = with_odd(value[path[0]], path[1:], odd)
    return copy


@pytest.mark.parametrize(
    "file", [name if name == "ledger.jsonl" else pytest.param(name, marks=pytest.mark.long) for name in FIGURES]
)
def test_figures_of_odd_types_end_in_one_line(file, tmp_path):
    """In Python and, as drawing takes longest, every second time in ``watch --web``, too."""
    run = planted(tmp_path / "c")
    compared(tmp_path / "c", tuning=[TRIED])
    path, rng = run / file, random.Random(0)
    lines = path.read_text().splitlines()
    for attempt in range(25):
        number = rng.randrange(len(lines))
        row = json.loads(lines[number])
        changed_row = with_odd(row, rng.choice(list(places(row))), rng.choice(ODD))
        path.write_text("\n".join([*lines[:number], json.dumps(changed_row), *lines[number + 1 :]]) + "\n")
        drawn = ["watch --web"] * (attempt % 2)
        for name in LOOKS_AT_LIST if "comparison" in file else (*LOOKS_AT_FIGURES, *drawn):
            LOOKS[name](run)


@pytest.mark.parametrize(("file", "looks"), [("metrics.jsonl", ("show", "python")), ("ledger.jsonl", ("figures",))])
@pytest.mark.parametrize("row", ["{}\n", f'{{"a": [{"[]," * 1999}[]]}}\n'], ids=["rows", "lists"])
def test_a_small_file_of_very_many_rows_or_lists_fills_no_memory(row, file, looks, tmp_path, monkeypatch):
    run = planted(tmp_path / "c")
    monkeypatch.setattr(regular, "PARTS", 1000)
    words = "at most 1,000 objects and lists, got more"
    assert words not in "".join(LOOKS[look](run) for look in looks)
    (run / file).write_text(row * (1 if "[" in row else 2000))
    for look in looks:
        assert words in LOOKS[look](run)


@pytest.mark.parametrize("key", PLACES)
@pytest.mark.parametrize("value", ["9" * 5000, "a\0b", "~nobody-of-tests/x"], ids=["long", "nul", "nobody"])
def test_a_name_that_no_file_can_have_ends_in_one_line(key, value, tmp_path):
    run = planted(tmp_path / "c", about=False, **{"dataset": "folder", key: value})
    for look in READS.values():
        look(run)
    command("report", run, "--data")


OWN = textwrap.dedent(
    """
    from sepal.config import Settings
    from sepal.tasks.scoring import Metric, Scoring
    from sepal.tasks.learning import Targets, Task
    from sepal.strategies.baselines.fedavg_ft import FedAvgFt
    from sepal.strategies.registration import register
    from dataclasses import replace
    import torch.nn.functional as F

    def misses(shape, classes):
        missed = lambda o, y: [(o.argmax(1) != y).sum()]
        error = Metric("misses", 1, missed, lambda s: float(s[0]), "pcs", False, most=1e9)
        return Task("x", Targets(above=classes), (classes,), F.cross_entropy, Scoring((error,), "misses"),
                    lambda o: o.argmax(1))

    Mine = register("mine", "What mine is for", "nowhere", FedAvgFt.server, FedAvgFt.client, FedAvgFt.hyper)
    """
)


def test_a_run_of_an_own_method_and_task_has_stored_what_its_report_says(tmp_path, monkeypatch):
    (tmp_path / "own_of_looking.py").write_text(OWN)
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    keys = {"partition": {"subsample": 200, "name": "iid"}, "clients": 2, "rounds": 1, "workers": 1, "progress": False}
    run = sepal.run("own_of_looking:Mine", "digits", task="own_of_looking:misses", out=str(tmp_path), name="r", **keys)
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.delitem(sys.modules, "own_of_looking")
    comparison = read_comparison([str(run.path)])
    page = render(comparison)
    assert "own_of_looking" not in sys.modules
    assert "What mine is for" in page
    assert (comparison.measure.name, comparison.measure.unit, comparison.measure.higher) == ("misses", "pcs", False)
    assert views(comparison)[0] == "deployed"
    assert read_run(run.path).deployed == comparison.results[0].stored.deployed != ""
    (run.path / "metrics.jsonl").write_text("")
    (run.path / "summary.json").unlink()
    assert read_run(run.path).measure == comparison.measure, "also before the first round"

    (run.path / ABOUT).unlink()  # a run of an earlier version
    assert read_run(run.path).deployed == ""
    assert "own_of_looking" not in sys.modules
    assert read_run(run.path, Allowed(frozenset({"own_of_looking"}))).deployed != ""


def test_labels_are_stored_where_the_process_holds_the_data(tmp_path, monkeypatch):
    assembly = assemble({"dataset": "digits", "clients": 2, "rounds": 1, "method": "fedavg"})
    write_about(tmp_path, assembly, alone=False)
    assert json.loads((tmp_path / ABOUT).read_text()).keys() == {"format", "method"}
    for ray, stored in ((False, False), (True, True)):
        monkeypatch.setattr(run_directory, "on_one_machine", lambda ray=ray: ray)
        with RunDirectory(tmp_path / str(ray), assembly, "flower") as begun:
            begun.opened(type("State", (), {"round": 0}), 1)
        assert ("labels" in json.loads((tmp_path / str(ray) / ABOUT).read_text())) is stored
    other_assembly = assemble({"dataset": "digits", "clients": 3, "rounds": 1, "method": "fedpse"})
    # one that was not begun may be another run
    with RunDirectory(tmp_path / "False", other_assembly, "in-process") as begun:
        begun.opened(type("State", (), {"round": 0}), 1)
    about = json.loads((tmp_path / "False" / ABOUT).read_text())
    assert (about["method"]["name"], len(about["labels"])) == ("fedpse", 3)
    assert not simulation.on_one_machine()
    labels = labels_of(read_run(write_run(tmp_path / "in-process")))
    sizes = [int(sum(counts)) for counts in labels.counts.values()]
    data = assemble({"dataset": "digits", "clients": 3}).data
    assert sizes == [len(data.client(number, 3, "x").train) for number in range(3)]


@pytest.mark.parametrize(
    "about",
    [
        {"labels": {"client-00000": ["x"]}},
        {"labels": {"client-00000": [1, 2], "client-00001": [1]}},
        {"labels": {"client-00000": [-1]}},
        {"labels": {"<b>": [1]}},
        {"labels": 3, "method": 4, "data": 5, "metric": 6},
        {"data": {"input_shape": [10**9] * 3, "classes": 10**9, "vocabulary": 0, "kind": "image", "class_names": []}},
    ],
)
def test_what_a_run_claims_to_be_about_is_checked(about, tmp_path):
    run = planted(tmp_path / "c", dataset="folder", model="digits-cnn")
    (run / ABOUT).write_text(json.dumps(about))
    assert "written to" in LOOKS["report"](run)
    assert "labels" not in datasets(read_comparison([str(run)]))


def test_a_home_of_a_user_that_is_not_here_is_no_error(tmp_path):
    folder = tmp_path / "c"
    for name in ("a", "b"):
        changed(write_run(folder / name), dataset="folder", data__dir="~nobody-of-tests/x")
    assert "written to" in command("report", folder)


def test_a_model_that_is_built_for_a_figure_fits_in_memory(tmp_path, monkeypatch):
    run = planted(tmp_path / "c", dataset="folder", model="har-mlp")
    monkeypatch.setattr(learned_rows, "checkpoints_of", lambda path: [path])
    sizes = {"input_shape": [2**30], "classes": 2**20, "vocabulary": 0}
    (run / ABOUT).write_text(json.dumps({"data": {**sizes, "kind": "signal", "class_names": [], "table": False}}))
    with pytest.raises(SepalError, match="memory"):
        learned_rows.read(run, "masks")
