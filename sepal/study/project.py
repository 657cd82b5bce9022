"""A new project: what ``sepal init`` writes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from sepal.errors import ConfigError, StateError

FILES = {  # name in the project → in the template; Flower leaves files called test_… out of an app
    **{name: name for name in ("run.toml", "my_data.py", "my_model.py", "my_method.py")},
    "test_project.py": "project_checks.py",
}


def write_project(directory: Path) -> tuple[str, ...]:
    """Write data, model, method, keys and a test to a new directory, and return the files' names.

    Raises:
        ConfigError: The directory is not empty; existing files are never overwritten.
        StateError: It cannot be written.
    """
    template = files("sepal.study") / "template"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ConfigError("DIRECTORY", "one that does not exist, or is empty", str(directory))
        for name, source in FILES.items():
            (directory / name).write_text((template / source).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as reason:
        raise StateError(str(directory), "a directory that can be written", reason.strerror or str(reason)) from None
    return tuple(FILES)
