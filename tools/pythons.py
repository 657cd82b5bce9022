"""``make -C tools matrix-python``: the fast tests on other Pythons, with the newest and with the lowest versions.

Each environment is made from the index in ``build/python-VERSION-WHICH`` and kept, so that a second run only tests. The
newest are those that an unconstrained ``pip install`` chooses, the lowest those that uv finds for the least ones of
pyproject.toml (the development tools are new). It needs gigabytes, since torch comes with CUDA for some Pythons:
.github/workflows/ci.yml runs each on a machine of its own, with torch for the CPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MATRIX = (("3.11", "lowest"), ("3.12", "newest"), ("3.13", "newest"))
TESTS = ("-m", "not e2e", "-n", "2", "--dist", "loadgroup", "-q", "-p", "no:cacheprovider")
EXTRAS = ("simulation", "operate", "report", "onnx", "tensorboard", "privacy")


def main(arguments: Sequence[str] | None = None) -> None:
    """Test each environment that is asked for, and print a line for each."""
    parser = argparse.ArgumentParser(prog="make -C tools matrix-python", description="the fast tests on other Pythons")
    parser.add_argument("--only", nargs="*", default=["-".join(pair) for pair in MATRIX], help="such as 3.13-newest")
    parser.add_argument("--tests", nargs="*", default=[], help="other arguments of pytest than those of make test")
    options = parser.parse_args(arguments)
    lines = []
    for python, which in (name.split("-") for name in options.only):
        binary = prepare(python, which)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{binary.parent}{os.pathsep}{os.environ['PATH']}"}
        command = [str(binary), "-m", "pytest", *(options.tests or TESTS)]
        tested = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=False
        )
        lines.append(
            (tested.returncode, f"Python {python}, {which} versions: {tested.stdout.strip().splitlines()[-1]}")
        )
        print(tested.stdout[-20_000:] if tested.returncode else "", lines[-1][1], flush=True)
    print("\n".join(line for _, line in lines))
    if any(code for code, _ in lines):
        sys.exit("matrix-python: expected the tests to pass everywhere, got failures")


def prepare(python: str, which: str) -> Path:
    """Return the interpreter of an environment, which is made if it is not there."""
    folder = ROOT / "build" / f"python-{python}-{which}"
    binary = folder / "bin" / "python"
    if (folder / ".ready").exists():
        return binary
    base = shutil.which(f"python{python}")
    if base is None:
        sys.exit(f"matrix-python: expected python{python} on PATH, got none")
    subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(binary), "-m", "pip", "install", "--quiet"]
    if which == "lowest":
        pip += ["-c", str(lowest(folder / "lowest.txt", python))]
    subprocess.run([*pip, "-e", f"{ROOT}[simulation,dev]"], check=True)
    (folder / ".ready").touch()
    return binary


def lowest(file: Path, python: str) -> Path:
    """Write the lowest versions of all direct dependencies but the development tools, which fit together, to a file."""
    extras = [part for name in EXTRAS for part in ("--extra", name)]
    command = ["uv", "pip", "compile", "--quiet", "--resolution", "lowest-direct", "--python-version", python]
    subprocess.run([*command, *extras, "--no-annotate", "-o", str(file), str(ROOT / "pyproject.toml")], check=True)
    return file


if __name__ == "__main__":
    main()
