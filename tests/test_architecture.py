"""The picture in docs/architecture.md is the code's: packages and arrows, rooms and what they may import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
TABLE = r"^\| (`[\w.]+`(?:, `[\w.]+`)*) \|"
ARROWS = re.findall(r"^ +(\w+) --> (\w+)$", TEXT, re.MULTILINE)


def imports(path):
    """Top-level module names that a file imports, with those that only type checking needs."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages():
    return {name for arrow in ARROWS for name in arrow}


def reachable(start):
    found, todo = set(), [start]
    while todo:
        here = todo.pop()
        for a, b in ARROWS:
            if a == here and b not in found:
                found.add(b)
                todo.append(b)
    return found


def folder(package):
    """Where a package of the picture stands: at the top of the repository or in ``sepal``."""
    return ROOT / package if (ROOT / package).is_dir() else ROOT / "sepal" / package


def files(package):
    """A package's files; those of ``sepal`` without the rooms that are packages of the picture."""
    top = folder(package)
    rooms = {folder(name) for name in packages() if top in folder(name).parents}
    return [path for path in top.rglob("*.py") if not rooms & set(path.parents)]


def test_every_package_is_in_the_picture():
    tops = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert tops <= packages()
    listed = set(re.findall(r"`(?:sepal\.)?(\w+)`", "\n".join(re.findall(TABLE, TEXT, re.MULTILINE))))
    assert packages() <= listed


def test_the_arrows_are_those_of_the_imports():
    used = set()
    for package in packages():
        for path in files(package):
            for name in imports(path):
                first, _, rest = name.partition(".")
                top = rest.partition(".")[0] if first == "sepal" and rest.partition(".")[0] in packages() else first
                if top in packages() and top != package:
                    assert top in reachable(package), f"{path.relative_to(ROOT)} imports {name}"
                    used.add((package, top))
    assert set(ARROWS) <= used, "an arrow that no import uses"


def test_the_rooms_of_sepal_are_those_of_the_table():
    inside = [path for path in (ROOT / "sepal").iterdir() if not path.name.startswith(("_", "."))]
    assert {path.name for path in inside if path.is_symlink()} == {"client_app", "models", "server_app", "strategies"}
    rooms = {path.name for path in inside if not path.is_symlink()} - packages()
    table = TEXT.split("## Inside `sepal`")[1].split("##")[0]
    listed = set(re.findall(r"`([\w.]+)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    assert rooms == listed
    assert len(rooms) <= 12


def test_every_file_and_module_that_the_page_names_is_there():
    for name in re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_]+(?:\.[A-Za-z_]+)*)`", TEXT):
        if name.endswith((".py", ".md", ".toml", ".yml")):
            assert list(ROOT.rglob(name)), name
            continue
        parts = name.removeprefix("sepal.").split(".")
        if any(place.joinpath(*parts).is_dir() for place in (ROOT, ROOT / "sepal")):
            continue
        module = next((m for m in ("", "sepal/") if (ROOT / (m + "/".join(parts[:2]) + ".py")).exists()), None)
        assert module is not None, name
        source = (ROOT / (module + "/".join(parts[:2]) + ".py")).read_text()
        for part in parts[2:]:
            assert re.search(rf"\b(def|class) {part}\b", source), name


def test_everything_that_a_methods_notes_name_is_there():
    """``module.name`` in NOTES.md is in the method's own folder, or has its full name."""
    for notes in (ROOT / "strategies").glob("*/NOTES.md"):
        for name in re.findall(r"`([a-z_0-9]+(?:\.(?!py`)[A-Za-z_]\w*)+)`", notes.read_text()):
            parts = name.split(".")
            places = [(notes.parent, 1), *((ROOT, end) for end in range(len(parts), 0, -1))]
            files = [(where.joinpath(*parts[:end]).with_suffix(".py"), parts[end:]) for where, end in places]
            file, rest = next(((path, rest) for path, rest in files if path.is_file()), (None, []))
            where = f"{notes.relative_to(ROOT)}: {name}"
            assert file is not None or parts[0] not in packages(), where
            for part in rest:
                assert re.search(rf"\b(def|class) {part}\b|^    {part}: ", file.read_text(), re.MULTILINE), where
