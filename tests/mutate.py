"""Mutate one module at every place where cosmic-ray's operators apply, and list what its fast tests do not notice.

``make -C tools mutate MODULE=sepal/method/means.py``, or a directory; ``SAMPLE=200`` draws so many of all mutants at
random. It needs cosmic-ray (``pip install -e ".[mutation]"``), of which only the operators are used: each mutant is
tested in a forked process, so that torch is imported once. Mutants that differ in annotations only are left
out, because they cannot change what runs. Not part of CI: a module takes minutes, all of ``strategies`` days.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from scipy.stats import binomtest

from tests.mutants import COPIED, ROOT, run

BELONGS = {  # module or directory: the fast tests that belong to it; the longest name wins
    "sepal/method/means.py": ["tests/sepal/protocol/test_means.py"],
    "sepal/masks": ["tests/sepal/masks"],
    "sepal/wire": ["tests/sepal/wire"],
    "sepal/server": [
        "tests/sepal/server",
        "tests/contract",
        "tests/test_methods_common.py",
        "-k",
        "not common or fedpse",
    ],
    "sepal/training": [
        "tests/sepal/training",
        "tests/client_app",
        "tests/test_methods_common.py",
        "-k",
        "not common or ditto",
    ],
    "strategies": ["tests/strategies", "tests/test_methods_common.py"],
}
Place: TypeAlias = tuple[str, str, int]  # module, operator, number of the operator's occurrence
SHORTEST = 30  # seconds; a mutant whose tests take four times as long as without it, and longer than this, loops


class Plain(ast.NodeTransformer):
    """Removes annotations and docstrings."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def plain(code: str) -> str:
    """Return ``code`` as a syntax tree without annotations."""
    return ast.dump(Plain().visit(ast.parse(code)))


def places(module: str) -> Iterator[Place]:
    """Yield every place of a module where an operator applies."""
    tree = get_ast((ROOT / module).read_text())
    for name in sorted(operator_names()):
        if not get_operator(name).arguments():  # others need names of variables
            operator = get_operator(name)()
            count = sum(1 for node in ast_nodes(tree) for _ in operator.mutation_positions(node))
            yield from ((module, name, occurrence) for occurrence in range(count))


def mutants(drawn: list[Place]) -> Iterator[tuple[str, str, str]]:
    """Yield (module, operator, mutated code) of the places whose mutants change what runs; none twice."""
    distinct = {(module, plain((ROOT / module).read_text())) for module, _, _ in drawn}
    for module, name, occurrence in drawn:
        mutated = mutate_code((ROOT / module).read_text(), get_operator(name)(), occurrence)
        try:
            tree = plain(mutated or "")
        except SyntaxError:
            continue
        if mutated and (module, tree) not in distinct:
            distinct.add((module, tree))
            yield module, name.removeprefix("core/"), mutated


def belonging(module: str) -> list[list[str]]:
    """Return pytest's arguments for the tests of a module: of a strategy its own tests first, then those beside them.

    Raises:
        SystemExit: None are listed.
    """
    owners = [name for name in BELONGS if module == name or module.startswith(f"{name}/")]
    if not owners:
        sys.exit(f"expected a module under {', '.join(BELONGS)}, got {module}")
    tests = BELONGS[max(owners, key=len)]
    parts = Path(module).parts
    if parts[0] != "strategies" or len(parts) < 3:
        return [tests]
    method = parts[1] if parts[1] != "baselines" else Path(module).stem
    files = [path for path in sorted((ROOT / "tests/strategies").glob("test_*.py")) if method in path.read_text()]
    test_files = [path.relative_to(ROOT).as_posix() for path in files]
    return [[*test_files, "tests/test_methods_common.py", "-k", method.replace("_", "-")], test_files or tests]


def survives(module: str, mutated: str, copy: Path, seconds: float) -> bool:
    """Return whether no test of the module notices the mutant."""
    (copy / module).write_text(mutated)
    passed, nothing_selected = 0, 5
    return all(run(tests, copy, int(seconds))[0] in (passed, nothing_selected) for tests in belonging(module))


def main() -> int:
    """Mutate the modules and print a line for each survivor, then the score; return 1 if there are survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="+", help="modules or directories")
    parser.add_argument("--sample", type=int, default=0, help="draw so many places of all; 0: all of them")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    files = [path for target in options.targets for path in sorted((ROOT / target).rglob("*.py"))]
    files += [ROOT / target for target in options.targets if target.endswith(".py")]
    modules = [path.relative_to(ROOT).as_posix() for path in files if path.name != "sparse_pb2.py"]
    chosen = [mutation for module in modules for mutation in places(module)]
    if options.sample and options.sample < len(chosen):
        drawn = np.random.default_rng(options.seed).choice(len(chosen), options.sample, replace=False)
        print(f"{options.sample} of {len(chosen)} places, seed {options.seed}", flush=True)
        chosen = [chosen[number] for number in sorted(drawn)]
    killed: dict[str, list[bool]] = {}
    limits: dict[str, float] = {}  # by the tests, which modules of one method share
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary)
        for part in COPIED:
            shutil.copytree(ROOT / part, copy / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for module, operator, mutated in mutants(chosen):
            code = (ROOT / module).read_text()
            tests = repr(belonging(module))
            if tests not in limits:
                begun = time.monotonic()
                if not survives(module, code, copy, 0):
                    sys.exit(f"{module}: its tests fail without a mutant")
                limits[tests] = max(SHORTEST, 4 * (time.monotonic() - begun))
            alive = survives(module, mutated, copy, limits[tests])
            (copy / module).write_text(code)
            killed.setdefault(module, []).append(not alive)
            if alive:
                change = difflib.unified_diff(code.splitlines(), mutated.splitlines(), lineterm="", n=0)
                print(f"{module}: {operator}\n  " + "\n  ".join(list(change)[2:]), flush=True)
    for module, results in killed.items():
        print(f"{module}: {sum(results)} of {len(results)} killed")
    outcomes = [result for results in killed.values() for result in results]
    if not outcomes:
        sys.exit("expected places where an operator applies, got none")
    share = binomtest(sum(outcomes), len(outcomes)).proportion_ci(method="wilson")
    words = f"{np.mean(outcomes):.0%}, 95 % interval {share.low:.0%} to {share.high:.0%}"
    print(f"{sum(outcomes)} of {len(outcomes)} killed ({words})")
    return 1 if not all(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
