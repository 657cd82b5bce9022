"""Draw the figures of load runs: ``python -m tools.load.picture load.ndjson load.svg`` in referee/results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt


def main() -> None:
    """Draw two panels: the idle SuperLink by registered clients, and seconds per round by clients in the round."""
    source, target = map(Path, sys.argv[1:3])
    rows: list[dict[str, Any]] = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    figure, (seconds_axes, bytes_axes) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for look, colour in ((3.0, "C0"), (30.0, "C1")):  # Flower's clients poll every 3 s
        look_rows = [row for row in rows if row.get("look_s", 3.0) == look]
        idle = [(row["clients"], row["idle_superlink_cpu"]) for row in look_rows if row.get("idle_superlink_cpu")]
        rounds = [(row["sampled"], row["round_s"]) for row in look_rows if row.get("round_s")]
        # the points come from several calls: no lines between them
        seconds_axes.plot(*zip(*idle, strict=True), "o", color=colour, label=f"polls every {look:g} s")
        bytes_axes.plot(*zip(*rounds, strict=True), "o", color=colour)
    seconds_axes.set(title="SuperLink, clients that wait", xlabel="registered clients", ylabel="CPU cores")
    bytes_axes.set(title="A round, 1 MB each way", xlabel="clients in the round", ylabel="seconds")
    seconds_axes.legend(fontsize="small")
    for axes in (seconds_axes, bytes_axes):
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
