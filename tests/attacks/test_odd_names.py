"""Names of users, directories and machines that there cannot be: each is one line, in every command that takes one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.data.locations import cache_directory, data_directory
from sepal.engines.flower.probe import examine, split
from sepal.engines.flower.processes import unusable
from sepal.errors import ConfigError, SepalError
from sepal.storage.home import home
from tests.test_imports import PACKAGES, ROOT

NOBODY = "~nobody-of-tests/x"
LONG = "a" * 5000
COMMANDS = {
    "ls": ["ls", NOBODY],
    "show": ["show", NOBODY],
    "watch": ["watch", NOBODY],
    "report": ["report", NOBODY],
    "evict": ["evict", NOBODY, "client-00000"],
    "export": ["export", NOBODY, "0"],
    "predict": ["predict", NOBODY, "x.csv"],
    "run --out": ["run", "--dataset", "digits", "--out", NOBODY],
    "run --config": ["run", "--config", NOBODY],
    "run state-dir": ["run", "--dataset", "digits", "--set", "clients=2", "--set", f"state-dir={NOBODY}"],
    "compare": ["compare", NOBODY],
    "tune": ["tune", NOBODY],
    "serve --out": ["serve", "--set", "dataset=digits", "--set", "clients=2", "--out", NOBODY],
    "join --state-dir": ["join", "127.0.0.1:1", "--state-dir", NOBODY],
    "join --data-dir": ["join", "127.0.0.1:1", "--data-dir", NOBODY],
    "join --audit": ["join", "127.0.0.1:1", "--audit", NOBODY],
    "join --certs": ["join", "127.0.0.1:1", "--certs", NOBODY],
    "clean --state-dir": ["clean", "--state-dir", NOBODY],
    "data inspect": ["data", "inspect", "digits", "--set", f"folder.schema={NOBODY}"],
    "data inspect --config": ["data", "inspect", "--config", NOBODY],
}


def command(*words):
    return CliRunner().invoke(app, list(words))


def is_one_line(done):
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    lines = [line for line in done.stderr.splitlines() if "warning" not in line and "preparing" not in line]
    assert len(lines) == 1, done.stderr
    assert "expected" in lines[0]


@pytest.fixture
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_directory_of_an_unknown_user_is_one_line(words, working_directory):
    before = sorted(working_directory.iterdir())
    if words[0] == "data" and "folder.schema" in words[-1]:
        (working_directory / "x.csv").write_text("x,label\n" + "".join(f"{n},{n % 2}\n" for n in range(20)))
        result = command("data", "inspect", "x.csv", *words[3:])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "nobody-of-tests" in result.output
        return
    is_one_line(command(*words))
    assert [path for path in sorted(working_directory.iterdir()) if path.name != "home"] == before


@pytest.mark.parametrize(
    ("variable", "directory"),
    [("SEPAL_HOME", home), ("SEPAL_DATA", lambda: data_directory("")), ("SEPAL_CACHE", lambda: cache_directory(ROOT))],
    ids=["SEPAL_HOME", "SEPAL_DATA", "SEPAL_CACHE"],
)
def test_a_variable_that_names_an_unknown_user_is_one_line(variable, directory, monkeypatch):
    monkeypatch.setenv(variable, NOBODY)
    with pytest.raises(SepalError, match="expected a directory, got ~nobody-of-tests/x"):
        directory()


def test_one_function_puts_the_directory_of_a_user_into_a_path():
    files = [
        path for package in PACKAGES if package not in ("referee", "tools") for path in (ROOT / package).rglob("*.py")
    ]
    raising = re.compile(r"(?<!os\.path)\.expanduser\(")  # pathlib's raises an error of Python's own
    users = {path.relative_to(ROOT).as_posix() for path in files if raising.search(path.read_text(encoding="utf-8"))}
    assert users == {"sepal/storage/regular.py"}


@pytest.mark.parametrize("words", [["ls"], ["doctor"], ["init", "x"], ["data", "inspect", "x.csv"], ["methods"]])
def test_a_working_directory_that_is_gone_is_one_line(words, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = "import os, sys; os.rmdir(os.getcwd()); sys.argv[0] = 'sepal'\nfrom sepal.cli.main import main\nmain()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SEPAL_HOME": str(tmp_path)}
    completed = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=gone, env=environment, capture_output=True, text=True, check=False
    )
    assert (completed.returncode, len(completed.stderr.splitlines())) == (2, 1), completed.stderr
    assert completed.stderr.startswith("sepal: working directory: expected")


@pytest.mark.parametrize("value", [NOBODY, LONG, f"/{LONG}", "loop/x"], ids=["nobody", "long", "from the root", "loop"])
@pytest.mark.parametrize("variable", ["SEPAL_HOME", "SEPAL_DATA", "SEPAL_CACHE"])
def test_doctor_goes_on_after_a_name_that_no_directory_can_have(variable, value, working_directory, monkeypatch):
    (working_directory / "loop").symlink_to("loop")
    monkeypatch.setenv(variable, value)
    result = command("doctor")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Flower: " in result.stdout, "the last of its lines"
    odd = [line for line in result.stdout.splitlines() if not line.startswith("ok  ")]
    assert any(value.strip("/")[:4] in line for line in odd)


HOSTS = ["a" * 70, "a..b", ".", f"{LONG}.org", "\ud800"]


@pytest.mark.parametrize("host", HOSTS, ids=[repr(host)[:12] for host in HOSTS])
def test_a_name_that_no_machine_can_have_is_one_line(host, working_directory):
    with pytest.raises(ConfigError, match="address: expected HOST:PORT"):
        list(examine(f"{host}:9092", None, 0.1))
    assert unusable(host, 9092)
    if host.isascii():
        is_one_line(command("deploy", "check", f"{host}:9092"))
        is_one_line(command("join", f"{host}:9092", "--insecure"))
        is_one_line(command("serve", "--host", host, "--insecure", "--set", "dataset=digits", "--set", "clients=2"))


@pytest.mark.parametrize("port", ["①", "²", "+1", "1_0", " 1", "0", "65536", "9" * 5000, ""])
def test_a_port_is_a_number_in_digits(port):
    with pytest.raises(ConfigError, match="address: expected HOST:PORT"):
        split(f"localhost:{port}")
