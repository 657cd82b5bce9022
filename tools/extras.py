"""``python -m tools.extras``: the table of extras in docs/install.md, from pyproject.toml and what is installed here.

An extra weighs what its packages, and those that they need, take on the disk beyond ``pip install sepal-fl``. What an
extra is for is written here; pip's own dependency markers say what it needs.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- extras: made by `python -m tools.extras`, its names checked by a test -->\n", "<!-- /extras -->\n"
PURPOSE = {
    "simulation": "Flower's simulation engine (Ray): `flwr run .`, `make demo`",
    "report": "pages with figures: `sepal report`, `sepal compare`'s `report.html`, `sepal watch --web`",
    "onnx": "`sepal export --onnx`",
    "card": "`sepal export --card`: a model card",
    "tensorboard": "`--tracker tensorboard`",
    "mlflow": "`--tracker mlflow`, `--mlflow URI`",
    "wandb": "`--tracker wandb`, offline",
    "operate": "`--metrics`: figures for Prometheus",
    "privacy": "ε of a run with `privacy.noise`, on the server",
    "docs": "`make docs`: the documentation site",
    "dev": "`make check` and the tests, with `card`, `docs`, `onnx`, `operate`, `privacy`, `report`, `tensorboard`",
    "mutation": "`make -C tools mutate`",
}


class MissingPackageError(Exception):
    """An extra whose packages are not all installed cannot be weighed."""


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of all packages that these requirements bring."""
    waiting = [(Requirement(text), "") for text in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for part in ("", *requirement.extras):
            if (name, part) not in seen:
                seen.add((name, part))
                waiting += [(Requirement(text), part) for text in needs(name)]
    return {name for name, _ in seen}


def needs(name: str) -> list[str]:
    """Return the requirements of an installed package; of Sepal itself, those of pyproject.toml."""
    if name == "sepal-fl":
        project = pyproject()
        extras = project["optional-dependencies"].items()
        return [*project["dependencies"], *(_marked(text, extra) for extra, texts in extras for text in texts)]
    try:
        return list(distribution(name).requires or ())
    except PackageNotFoundError as error:
        raise MissingPackageError(name) from error


def _marked(text: str, extra: str) -> str:
    requirement, _, marker = text.partition(";")
    return f"{requirement} ; {f'({marker}) and ' if marker else ''}extra == '{extra}'"


def pyproject() -> dict[str, Any]:
    """Return the project's table."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def size(names: Iterable[str]) -> int:
    """Return the bytes that packages' files take."""
    files = [file.locate() for name in names if name != "sepal-fl" for file in distribution(name).files or ()]
    return sum(Path(file).stat().st_size for file in files if Path(file).is_file())


def lines() -> Iterator[str]:
    """Yield the table."""
    base = closure(["sepal-fl"])
    yield "| extra | for | MB |\n|---|---|---|\n"
    for extra in pyproject()["optional-dependencies"]:
        more = closure([f"sepal-fl[{extra}]"]) - base
        yield f"| `{extra}` | {PURPOSE[extra]} | {size(more) / 1e6:,.1f} |\n"


def main() -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    try:
        table = "".join(lines())
    except MissingPackageError as error:
        sys.exit(f"extras: expected the packages of all extras here, got none of {error}")
    PAGE.write_text(f"{head}{BEGIN}{table}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
