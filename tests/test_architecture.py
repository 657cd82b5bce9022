"""docs/architecture.md names every room and nothing that is not there; import-linter checks what a room may import."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
ROOMS = [name for cell in re.findall(r"^\| (`.*?`) \|", TEXT, re.MULTILINE) for name in re.findall(r"`([\w.]+)`", cell)]
OF_EVERY_METHOD = {"ClientState", "Hyper", "ServerState"}  # each method has its own under these names
FOLDERS = {"client_app", "models", "server_app", "strategies"}


def test_every_room_is_in_the_table():
    inside = [
        path for path in (ROOT / "sepal").iterdir() if not path.name.startswith(("_", ".")) and path.name != "py.typed"
    ]
    assert {path.name for path in inside if path.is_symlink()} == FOLDERS
    assert {path.name for path in inside} <= set(ROOMS)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == {"referee", "sepal", "tools", *FOLDERS}


def test_every_file_and_module_that_the_page_names_is_there():
    for name in re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_]+(?:\.[A-Za-z_]+)*)`", TEXT):
        if name.endswith((".py", ".md", ".toml", ".yml")):
            assert list(ROOT.rglob(name)), name
            continue
        parts = name.removeprefix("sepal.").split(".")
        if any(root.joinpath(*parts).is_dir() for root in (ROOT, ROOT / "sepal")):
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
            assert file is not None or parts[0] not in ROOMS, where
            for part in rest:
                assert re.search(rf"\b(def|class) {part}\b|^    {part}: ", file.read_text(), re.MULTILINE), where


def test_a_class_name_of_the_product_has_one_meaning():
    names = Counter[str]()
    for folder in ("sepal", *FOLDERS):
        for file in (ROOT / folder).rglob("*.py"):
            if not any(path.is_symlink() for path in (file, *file.parents)):
                names.update(
                    node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)
                )
    assert {name for name, count in names.items() if count > 1} <= OF_EVERY_METHOD
