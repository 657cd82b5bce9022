"""`make -C tools gpu` where there is no GPU, and what it does with parts that fail or take too long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools.bench.batch import KINDS
from tools.bench.data import load
from tools.gpu import __main__ as command
from tools.gpu import captured
from tools.gpu.measurements import PARTS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path, monkeypatch):
    page = tmp_path / "gpu.md"
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(page)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == "gpu: expected a machine with CUDA, got one without: nothing was run"  # status 1
    assert not page.exists()
    assert "@$(PYTHON) -m tools.gpu\n" in (ROOT / "tools" / "Makefile").read_text()


def test_the_page_says_never_run_until_it_has_run():
    page = (ROOT / "tools" / "results" / "gpu.md").read_text()
    assert page.startswith(command.HEAD)
    assert ("**Never run.**" in page) != ("## Machine" in page)


def test_what_fails_or_takes_too_long_is_an_entry(tmp_path, monkeypatch, capsys):
    """Each part is a process: one that raises, one that hangs with a child of its own, one that is fine."""
    programs = {
        "machine": "print('- all is well')",
        "methods": "import sys; print('- one line'); sys.exit('mine')",
        "engine": "import subprocess as s; print('- begun', flush=True); s.run(['sleep', '60'])",
    }
    start = subprocess.Popen

    def popen(argv, **keys):
        return start([sys.executable, "-c", programs[argv[argv.index("--part") + 1]]], **keys)

    monkeypatch.setattr(command.subprocess, "Popen", popen)
    monkeypatch.setattr(command, "PARTS", {name: (None, f"Part {name}", 1.0) for name in (*programs, "batch")})
    monkeypatch.setitem(programs, "batch", "print('- last')")
    command.run("cpu", tmp_path / "gpu.md", limit=60)
    sections = (tmp_path / "gpu.md").read_text().split("\n## Part ")
    assert sections[0] == command.HEAD
    assert sections[1] == "machine\n- all is well\n\n(0 s)\n"
    assert sections[2] == "methods\n- one line\n\n(failed after 0 s: mine)\n"
    assert sections[3] == "engine\n- begun\n\n(stopped after 1 s)\n"
    assert sections[4] == "batch\n- last\n\n(0 s)\n"
    assert "gpu: methods: failed after 0 s: mine" in capsys.readouterr().out


def test_all_parts_fit_into_nine_minutes():
    assert sum(seconds for _, _, seconds in PARTS.values()) <= command.LIMIT <= 540
    assert list(PARTS) == ["machine", "captured", "methods", "engine", "batch", "cold", "warm", "compose"]


def test_what_captured_steps_cost_is_measured_in_each_way(monkeypatch):
    """On a CPU, where the body of a step is replayed as it is; what the figures are is not tested."""
    monkeypatch.setattr(captured, "CLIENTS", 2)
    monkeypatch.setattr(captured, "ROUNDS", 1)
    monkeypatch.setattr(captured, "EPOCHS", (1, 2))
    monkeypatch.setattr(captured, "STREAMS", (1, 2))
    monkeypatch.setattr(captured, "load", lambda number: tuple(part[:24] for part in load(number)))
    monkeypatch.setattr(captured, "floor", lambda batch, device: lambda: None)
    small = {"partition.subsample": 40, "clients-per-round": 0}
    monkeypatch.setattr(captured, "FLAT", {**KINDS["digits"], **small})
    lines = list(captured.measure("cpu", (12,)))
    rows = [line.split(" | ") for line in lines if line.startswith("| 12")]
    whats = ["bare steps (floor)", "training, as usual", "training, captured, streams: 1"]
    whats += ["training, captured, streams: 2", "a run, as usual", "a run, captured"]
    assert [row[1] for row in rows] == whats
    assert not any("failed" in line for line in lines)


def test_a_line_through_two_points_gives_a_step_and_a_client():
    assert captured.line([(10, 0.030), (30, 0.070)]) == pytest.approx((2.0, 10.0))
