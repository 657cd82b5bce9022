"""Exceptions in the user's own code: one line with his last frames, whatever lies between."""

from __future__ import annotations

import json
import operator
import os
import pickle
import re
import subprocess
import sys

import pytest
from flwr.app import Message, RecordDict
from typer.testing import CliRunner

from sepal import user_modules
from sepal.cli.main import app
from sepal.engines.in_process.grid import InProcessGrid, answer
from sepal.errors import ConfigError, ModelError
from sepal.flower.replies import enter_run


def helper(argument):
    raise KeyError(argument)


class Broken:
    def __reduce__(self):
        return helper, ("absent",)


def load(argument):
    json.loads("[1]", parse_int=helper)


def caught(function, *arguments):
    with pytest.raises(Exception) as raised:  # noqa: PT011 (any)
        function(*arguments)
    raised.value.__traceback__ = raised.value.__traceback__.tb_next  # without this file's own line
    return raised.value


def test_the_last_own_frames_are_named_and_no_others():
    lines = helper.__code__.co_firstlineno + 1, load.__code__.co_firstlineno + 1
    words = f"KeyError: '1' (test_own_code.py:{lines[0]} in helper, called at test_own_code.py:{lines[1]} in load)"
    assert user_modules.described(caught(load, 1)) == words


def test_an_exception_of_a_library_has_no_place():
    error = caught(json.loads, "[")
    assert user_modules.described(error) == f"JSONDecodeError: {error}"
    assert not user_modules.in_own_code(error)


@pytest.mark.parametrize("code", ["sys.exit(0)", "sys.exit()", "raise SystemExit(0)", "exit(0)"])
def test_a_module_that_ends_the_process_is_one_line_and_no_success(code, tmp_path, monkeypatch):
    """The end of a script without a guard of its main: the command ended with code 0 and said nothing."""
    (tmp_path / "ends_at_import.py").write_text(f"import sys\n\n{code}\n")
    monkeypatch.setenv(user_modules.VARIABLE, str(tmp_path))
    for key in ("model", "task", "method"):
        with pytest.raises(ModelError, match=r"SystemExit: .*ends_at_import.py:3"):
            user_modules.load(key, "ends_at_import:build", ModelError)


def test_a_signal_in_the_midst_of_own_code_ends_the_process(monkeypatch):
    def ends(*arguments):
        user_modules_frame = compile("raise SystemExit(143)", user_modules.__file__, "exec")
        exec(user_modules_frame, {})

    monkeypatch.setattr(user_modules, "imported", ends)
    with pytest.raises(SystemExit):
        user_modules.load("model", "module:name", ModelError)


def test_own_code_that_ends_the_process_later_is_no_success(tmp_path, monkeypatch):
    def command(*arguments, **options):
        sys.exit(0)

    monkeypatch.setattr("sepal.study.method_checks.CHECKS", [type("Check", (), {"words": "it", "check": command})])
    result = CliRunner().invoke(app, ["check-method", "fedavg"])
    assert result.exit_code == 2
    assert "SystemExit: 0 (test_own_code.py:" in result.stderr


def test_a_module_that_raises_when_it_is_imported_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "raises_at_import.py").write_text("import json\n\nx = 1 / 0\n")
    monkeypatch.setenv(user_modules.VARIABLE, str(tmp_path))
    with pytest.raises(ModelError, match=r"ZeroDivisionError: division by zero \(raises_at_import.py:3 in <module>\)"):
        user_modules.load("model", "raises_at_import:build", ModelError)


@pytest.mark.parametrize("key", ["method", "model", "own.data", "task"])
def test_a_file_in_the_place_of_a_module_is_answered_with_what_to_write(key):
    expected = f"{key}: expected mine:load, a module's name and not its file, got ./code/mine.py:load"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        user_modules.load(key, "./code/mine.py:load", ConfigError)


def test_a_client_whose_own_code_raises_is_no_traceback(caplog):
    enter_run()

    def handle(message):
        load(message)

    reply = answer(handle, Message(RecordDict(), dst_node_id=1, message_type="train"))
    assert not caplog.records
    assert "in helper, called at test_own_code.py" in reply.error.reason


def test_another_exception_has_its_traceback_once_in_a_run(caplog):
    InProcessGrid({})

    handle = operator.attrgetter("nothing")  # no own frame
    for node in (1, 2, 1):
        reply = answer(handle, Message(RecordDict(), dst_node_id=node, message_type="train"))
        assert reply.error.reason == "AttributeError: 'Message' object has no attribute 'nothing'"
    assert len(caplog.records) == 1


def test_a_function_of_a_notebook_that_does_not_load_in_a_worker_is_one_line(monkeypatch):
    """What its cell has imported is imported again as it is unpickled."""
    monkeypatch.setitem(user_modules._functions, "build_1", pickle.dumps(Broken()))
    words = r"model: expected build to load in a worker process, too, got KeyError: 'absent' \(test_own_code.py:"
    with pytest.raises(ModelError, match=words):
        user_modules.load("model", f"{user_modules.DEFINED}:build_1", ModelError)


def test_an_own_model_imports_a_torchvision_that_does_not_fit_torch(tmp_path):
    """A CPU build of torch beside the common wheel of torchvision, whose operators it cannot load."""
    (tmp_path / "net.py").write_text("from torchvision.models import resnet18\n")
    code = "from sepal import errors, user_modules as u; print(u.load('model', 'net:resnet18', errors.ModelError))"
    environment = {**os.environ, "SEPAL_USER_PATH": str(tmp_path)}
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert "function resnet18" in completed.stdout, completed.stderr[-500:]


def test_a_function_of_a_cell_imports_it_in_a_worker():
    text = "def build(shape, classes):\n    from torchvision.models import resnet18\n    return resnet18\n"
    code = (
        f"import cloudpickle; from sepal import errors, user_modules as u; exec({text!r});"
        "u.receive({'build_1': cloudpickle.dumps(build)});"
        "print(u.load('model', f'{u.DEFINED}:build_1', errors.ModelError)((3,), 2))"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "function resnet18" in completed.stdout, completed.stderr[-500:]
