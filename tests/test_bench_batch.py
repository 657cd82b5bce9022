"""tools/results/bench.md on clients at once is what bench-batch.json has."""

from __future__ import annotations

import json

from tests.test_bench_page import PAGE, RESULTS, commit, measured, row, short, table
from tools.bench.batch import AT_ONCE, KINDS


def test_clients_at_once():
    results, rows = measured("bench-batch"), []
    for name in KINDS:
        ratios = [results[f"{name}, {count} of 20 clients at once over one by one, cpu"] for count in AT_ONCE]
        rows.append(
            row(name, [f"{ratios[0]['one_by_one_seconds']:.2f} s", *(short(result["ratio"], 2) for result in ratios)])
        )
    assert table("Clients at once") == rows
    text = " ".join(PAGE.partition("\n## Clients at once\n")[2].partition("\n## ")[0].split())
    load = json.loads((RESULTS / "bench-batch.json").read_text())["machine"]["load_before"]
    assert f"ommit `{commit('bench-batch')}`" in text
    assert f"load {load:.0f}" in text
