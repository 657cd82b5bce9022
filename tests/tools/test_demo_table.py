"""``make demo``'s table has the figures that its conclusion goes by, first; tests/e2e/test_demo.py runs the demo."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console

from sepal.runs.stored_run import read_run
from sepal.strategies import registry
from tests.sepal.cli.runs_for_tests import write_run
from tools.demo import BESIDE, comparison, conclusion


def test_the_conclusions_figures_are_the_tables_first_column(tmp_path):
    runs = []
    for number, method in enumerate(("fedpse", *BESIDE)):
        path = write_run(tmp_path / method, method=method, kept=True)
        summary = json.loads((path / "summary.json").read_text())
        summary["accuracy"][registry.deployed(method)] |= {"mean": (number + 1) / 10, "bottom_decile": number / 10}
        (path / "summary.json").write_text(json.dumps(summary))
        runs.append(read_run(path))
    console = Console(width=80, file=StringIO())
    console.print(comparison(runs))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[1][:5] == ["method", "deployed", "worst", "10", "%"]
    rows = [line[:3] for line in lines if line and line[0] in ("fedpse", *BESIDE)]
    assert rows == [[m, f"{10 * n + 10:.1f}", f"{10 * n:.1f}"] for n, m in enumerate(("fedpse", *BESIDE))]
    sentence = next(conclusion(runs))
    assert sentence.endswith(": " + ", ".join(f"{method} {mean} %" for method, mean, _ in rows) + ".")
