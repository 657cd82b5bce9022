"""``make -C tools gpu``: try and measure Sepal on this machine's GPU, in nine minutes and without a network.

Each part has a process and a time of its own. What fails or takes too long is an entry of the page, not its end.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from sepal.errors import one_line
from tools.gpu.measurements import PARTS

LIMIT = 530.0  # seconds; a part that is stopped gets some more to end
PAGE = Path("tools/results/gpu.md")
HEAD = """# On a GPU

`make -C tools gpu` tries and measures Sepal on a machine with CUDA, in at most nine minutes and without a network, and
writes this page.
"""


def section(name: str, device: str, seconds: float) -> tuple[list[str], str]:
    """Return what a part printed and what became of it."""
    command = [sys.executable, "-m", "tools.gpu", "--part", name, "--device", device]
    begun = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, encoding="utf-8"
    )
    try:
        printed, errors = process.communicate(timeout=seconds)
        duration = f"{time.monotonic() - begun:.0f} s"
        last = one_line(errors.strip().splitlines()[-1], 300) if errors.strip() else "no word"
        end = duration if not process.returncode else f"failed after {duration}: {last}"
    except subprocess.TimeoutExpired:
        _stop(process)
        printed, _ = process.communicate()
        end = f"stopped after {seconds:.0f} s"
    finally:
        _stop(process)
    return printed.splitlines(), end


def _stop(process: subprocess.Popen[str]) -> None:
    """Interrupt a part, so that it stops what it has started, and kill what is left."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(device: str, page: Path, limit: float = LIMIT) -> None:
    """Run all parts and write the page, after each part again."""
    begun, text = time.monotonic(), HEAD
    for name, (_, title, seconds) in PARTS.items():
        seconds_left = limit - (time.monotonic() - begun)
        lines, end = (
            section(name, device, min(seconds, seconds_left)) if seconds_left > 1 else ([], "not run: no time left")
        )
        print(f"gpu: {name}: {end}", flush=True)
        text += "\n".join([f"\n## {title}", *lines, "", f"({end})", ""])
        page.write_text(text, encoding="utf-8")
    print(f"gpu: written to {page}")


def main() -> None:
    """Run all parts, or print the lines of one."""
    parser = argparse.ArgumentParser(
        description="Try and measure Sepal on this machine's GPU; see tools/results/gpu.md."
    )
    parser.add_argument("--part", choices=PARTS, help="print the lines of one part")
    parser.add_argument("--device", default="cuda", help="cpu tries the command itself on a machine without a GPU")
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    if arguments.part:
        for line in PARTS[arguments.part][0](arguments.device):
            print(line, flush=True)
        return
    import torch

    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("gpu: expected a machine with CUDA, got one without: nothing was run")
    run(arguments.device, arguments.out)


if __name__ == "__main__":
    main()
