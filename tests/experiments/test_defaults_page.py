"""The page of all methods' defaults follows from its rows."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_table_of_har_follows_from_the_runs():
    found: dict[str, list[dict]] = {}
    for line in (RESULTS / "defaults.ndjson").read_text().splitlines():
        found.setdefault((row := json.loads(line))["method"], []).append(row)
    text = (RESULTS / "defaults.md").read_text()
    yardstick = statistics.mean(row["accuracy"] for row in found["fedavg-ft"])
    for method, rows in found.items():
        values = [100 * row["accuracy"] for row in rows if row["accuracy"] is not None]
        mean = f"{statistics.mean(values):.1f}"
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else " (one seed; the others ended)"
        gap = f"{statistics.mean(values) - 100 * yardstick:+.1f}"
        rows[0]["gap"] = gap
        assert f"| `{method}` | {rows[0]['lr']:g} | {rows[0]['view']} | {mean}{spread} | {gap} |" in text
    verdicts = text.partition("## HAR")[0]
    bad, gaps = (
        ("fedavgm", "flasc", "tailorfl", "pfedhn"),
        {method: -float(rows[0]["gap"]) for method, rows in found.items()},
    )
    own = {method: gap for method, gap in gaps.items() if found[method][0]["view"] != "received"}
    apfl = own.pop("apfl")
    others = [gap for method, gap in gaps.items() if method not in (*own, *bad, "apfl")]
    assert (
        f"{min(gap for gap in own.values() if gap > 0)} to {max(own.values())} points behind, APFL {apfl}" in verdicts
    )
    assert f"{min(others)} to {max(others)} points behind, and four far more" in verdicts
    assert min(gaps[method] for method in bad) > max(others)
