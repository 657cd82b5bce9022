"""The tables and main figures of tools/results/bench.md, computed here from the files that the page names."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from sepal import models
from sepal.errors import ModelError
from sepal.models.decomposed import Decomposed
from sepal.strategies.pa3dfl.contract import Hyper
from sepal.strategies.pa3dfl.hypernetwork import Hypernetwork

RESULTS = Path(__file__).parents[1] / "tools" / "results"
PAGE = (RESULTS / "bench.md").read_text()
PROSE = " ".join(PAGE.split())
FULL, PA3DFL, FLANC, CUT = "plain, full", "Pa3dFL", "FLANC's factors", "plain, cut"
MODELS = {"Pa3dFL's model": PA3DFL, "Pa3dFL's model with FLANC's factors": FLANC, "the plain model cut": CUT}
# Pa3dFL, Table 2, FedAvg, Pa3dFL, FLANC and p-width: peak MB, multiply-adds and size at the widths PUBLISHED
PUBLISHED = ("1/16", "1/8", "1/2", "1")
TABLE_2 = {
    FULL: ("- - - 71.1", "- - - 188.0", "- - - 30.4"),
    PA3DFL: ("23.3 26.5 46.3 74.8", "3.6 8.3 59.9 191.9", ".8 1.3 8.5 28.7"),
    FLANC: ("30.1 34.1 58.4 90.9", "15.0 18.2 42.3 87.7", ".6 .9 7.76 29.3"),
    CUT: ("23.1 26.2 45.3 71.1", "3.5 8.2 59.1 188.0", ".1 .5 7.6 30.4"),
}
PARTS = {
    "bench-engine": "The in-process round",
    "bench-deployed": "A deployed round",
    "bench-cuts": "Half of the channels",
    "bench-widths": "A step by width",
    "bench-hypernetwork": "The hypernetwork",
    "bench-gate": "pFedGate's gate",
}
TABLE_9 = {3: ".01, .30", 2: ".01, .27", 1: ".01, .26"}  # CNN-CIFAR100
KINDS, SPREAD = ("warm", "cold"), ("", "fastest_", "slowest_")  # a deployed round's
GATED, KEEPS = ("lenet-cifar10", "cnn-emnist", "cnn-cifar100"), ("1", "0.5", "0.3")
GREEDY, COSTS = "the same, the authors' greedy choice", "inference, by client, budget of multiply-adds"
STEPS = {
    "step, by batch, over the plain model's": "step by batch over plain",
    "step, by sample, over the plain model's": "step by sample over plain",
    "step, by sample over by batch (goal: at most 1.4)": "step by sample over by batch",
    "the knapsack's share of a step (goal: at most .1)": "knapsack's share of a step by sample",
}
INFERENCE = {
    "inference, by client, budget of weights": "weights, by client, exact",
    GREEDY: "weights, by client, greedy-value",
    COSTS: "multiply-adds, by client, exact",
    "inference, by batch, budget of weights": "weights, by batch, exact",
    "inference, by sample, budget of weights": "weights, by sample, exact",
}


def measured(name: str) -> dict[str, dict[str, Any]]:
    """Read the rows of a file, by what was measured."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    results = {row["what"]: row for row in rows}
    assert len(results) == len(rows)
    return results


def commit(name: str) -> str:
    return json.loads((RESULTS / f"{name}.json").read_text())["machine"]["commit"].removesuffix("-dirty")


def short(value: float, places: int) -> str:
    """Return a number as the page writes it, without a leading zero."""
    return f"{value:.{places}f}".removeprefix("0")


def yes_or_no(result: dict[str, Any]) -> str:
    return "yes" if result["met"] else "no"


def row(title: str, values: list[str]) -> str:
    return f"| {title} | {' | '.join(values)} |"


def starting(prefix: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the one row of which the name begins with ``what``."""
    (result,) = (row_result for name, row_result in rows.items() if name.startswith(prefix))
    return result


def table(after: str) -> list[str]:
    """Return the rows of the first table below a heading, without its head."""
    lines = PAGE[PAGE.index(f"\n## {after}\n") + 1 :].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|"))
    end = next(number for number in range(begin, len(lines)) if not lines[number].startswith("|"))
    return lines[begin + 2 : end]


def test_a_step_by_width():
    results, rows = measured("bench-widths"), []
    for name, result in results.items():
        kind, width, r = re.fullmatch(r"step of (.*) at width (\S+) \(r = (\S+)\), over .*", name).groups()
        assert Fraction(r) == Fraction(width) ** 2
        peak = f"{result['mebibytes']:.0f} ({short(result['mebibytes_ratio'], 2)})"
        step_cells = [short(result["ratio"], 3), f"{1e3 * result['seconds']:.0f}", peak]
        rows.append(of_width(MODELS[kind], width, r, step_cells, result["parameters"], result["multiply_adds"]))
    step_cells = ["1", f"{1e3 * result['full_seconds']:.0f}", f"{result['full_mebibytes']:.0f} (1)"]
    full = [result[count] / result[f"{count}_ratio"] for count in ("parameters", "multiply_adds")]
    assert table("A step by width") == [of_width(FULL, "1", "1", step_cells, *full), *rows]
    goal = starting("step of Pa3dFL's model at width 1/4", results)
    assert f"at width 1/4 was at most .3; it is {short(goal['ratio'], 3)}" in PROSE


def of_width(model: str, width: str, r: str, step_cells: list[str], parameters: float, work: float) -> str:
    """Return a row of the table: sizes are float32 in 10⁻¹ MiB; multiply-adds are in 10⁷."""
    at = PUBLISHED.index(width) if width in PUBLISHED else None
    peak, adds, size = ("" if at is None else values.split()[at] for values in TABLE_2[model])
    counts = [peak, f"{work / 1e7:.1f}", adds, f"{parameters:,.0f}", f"{40 * parameters / 2**20:.1f}", size]
    return row(model, [f"{width} ({r})", *step_cells, *counts])


def test_a_model_of_86_m_parameters():
    results, rows = measured("bench-size").values(), []
    for result in results:
        traffic = [f"{result[f'{way}_bytes_a_client'] / 1e6:,.2f}" for way in ("down", "up")]
        memory = [f"{result['server_mib']:,}", f"{result['client_mib']:,}"]
        title = f"{result['method']}, {result['clients']} clients, {result['engine']}"
        rows.append(row(title, [*memory, *traffic, f"{result['round_seconds']:.0f}"]))
    assert table("A model of 86 M parameters") == rows
    for result in results:
        if result["goal"]:
            half = result["clients"] // 2
            assert f"{result['method']}, {result['clients']} clients over {half}: {result['ratio']:.2f}" in PROSE


def test_the_hypernetwork():
    results, rows = measured("bench-hypernetwork"), []
    for setting, clients, width, depth in (
        ("100 clients, full width", "100", "1", 3),
        ("100 clients, full width, encoder of 2 layers", "100", "1", 2),
        ("100 clients, full width, encoder of 1 layer", "100", "1", 1),
        ("100 clients, widths 1/16, 1/4, 1/2, 1 in turn", "100", "1/16, 1/4, 1/2, 1 in turn", 3),
        ("1000 clients, full width, 1,000 embeddings", "1,000", "1", 3),
        ("100 clients, full width, decoders of rank 8", "100, decoders of rank 8", "1", 3),
    ):
        spent = results.pop(f"hypernetwork for 20 of {setting}, over their training")
        peak = results.pop(f"hypernetwork for 20 of {setting}, peak memory over its bytes")
        assert spent["ratio"] == pytest.approx((spent["generate"] + spent["step"]) / spent["training"])
        values = [short(spent[part], 3) for part in ("generate", "step")]
        values.append(TABLE_9[depth] if setting.startswith("100 clients, full width") and "rank" not in setting else "")
        values += [short(spent["training"], 1), short(spent["ratio"], 3), f"{spent['bytes'] / 2**20:.0f}"]
        values.append(f"{peak['mebibytes']:.0f} ({peak['ratio']:.2f})")
        rows.append(row(clients, [width, str(depth), *values]))
    assert table("The hypernetwork") == rows
    ((setting, fashion),) = results.items()
    assert "Fashion-MNIST" in setting
    whole = fashion["mebibytes"] / fashion["ratio"]
    peak = f"{fashion['mebibytes']:.0f} MiB ({fashion['ratio']:.2f} times"
    assert f"hypernetwork has {whole:.0f} MiB, and the peak is {peak}" in PROSE
    ratios = [result["ratio"] for setting, result in measured("bench-hypernetwork").items() if "peak" in setting]
    assert f"the peak is {min(ratios):.2f} to {max(ratios):.2f} times" in PROSE


def test_resnet18_is_said_not_to_be_measured():
    """Table 9's other row; the refusal names the hypernetwork's size in MiB."""
    full = Decomposed(models.build("resnet18-gn", (3, 32, 32), 10), (3, 32, 32))
    with pytest.raises(ModelError, match=r"at most 1024 MiB.*pa3dfl\.most-mib.*at rank 64") as refused:
        Hypernetwork(full.personal, 0, Hyper())
    (size,) = re.findall(r"(\d+) at rank 64", str(refused.value))
    text = f"ResNet18 (.03 and .81 to .87 s there), is not measured: its decoders are {int(size) / 1024:.1f} GiB"
    assert text in PROSE


def test_the_gate():
    results, lines, steps = measured("bench-gate"), [], []
    for title, step_name in STEPS.items():
        steps.append([results.pop(f"{step_name}, {m}, s = {s}, batch of 128")["ratio"] for m in GATED for s in KEEPS])
        lines.append(row(title, [short(value, 2) for value in steps[-1]]))
    for title, how in INFERENCE.items():
        inference = [results.pop(f"inference over plain, {m}, s = {s} of {how}", None) for m in GATED for s in KEEPS]
        shown = [f"{short(e['ratio'], 2)} ({short(e['multiply_adds'], 2)})" if e else "" for e in inference]
        lines.append(row(title, shown))
    assert not results
    assert table("pFedGate's gate") == lines
    columns = [f"{m}, s = {s.removeprefix('0')}" for m in GATED for s in KEEPS]
    assert f"| | {' | '.join(columns)} |" in PAGE
    by_batch, by_sample, ratio = (span(values) for values in steps[:3])
    assert f"a step by sample takes {ratio[0]} to {ratio[1]} × a step by batch" in PROSE
    assert f"the knapsack takes at most {100 * max(steps[3]):.1f} % of a step" in PROSE
    assert f"takes {by_batch[0]} to {by_batch[1]} × the plain one by batch and {' to '.join(by_sample)} × by" in PROSE


def span(values: list[float]) -> tuple[str, str]:
    return short(min(values), 2), short(max(values), 2)


def test_inference_with_the_gate():
    results = measured("bench-gate")

    def ratio(model: str, keep: str, how: str) -> str:
        return short(results[f"inference over plain, {model}, s = {keep} of {how}"]["ratio"], 2)

    saved = [ratio("cnn-cifar100", "0.3", INFERENCE[title]) for title in (COSTS, GREEDY)]
    text = f"{' and '.join(saved)} × on cnn-cifar100 at s = .3, {ratio('lenet-cifar10', '0.3', INFERENCE[COSTS])} × on"
    assert text in PROSE
    exact = [result for name, result in results.items() if re.search(r"s = 0\.. of weights, by client, exact$", name)]
    work, ratios = (span([result[key] for result in exact]) for key in ("multiply_adds", "ratio"))
    assert f"keeps {work[0]} to {work[1]} of all multiply-adds: {ratios[0]} to {ratios[1]} × the plain model" in PROSE
    sample = span([result["ratio"] for name, result in results.items() if name.endswith("weights, by sample, exact")])
    assert f"By sample nothing is saved ({sample[0]} to {sample[1]} ×)" in PROSE
    assert f"s = 1 costs {ratio('lenet-cifar10', '1', 'weights, by client, exact')} × the plain inference" in PROSE


def test_half_of_the_channels():
    results, rows = measured("bench-cuts"), []
    for cut, title in (
        ("half of the convolutions", "half of the convolutions' channels (as Sub-FedAvg Hy cuts)"),
        ("half of the width", "half of all channels and hidden units"),
    ):
        step, peak = starting(f"seconds of a step, {cut}", results), starting(f"peak MiB, {cut}", results)
        cpu, cpu_full = step["cpu_seconds"], step["cpu_seconds_full"]
        work = f"{short(cpu / cpu_full, 3)} ({cpu:.2f} over {cpu_full:.2f})"
        memory = f"{short(peak['ratio'], 3)} ({peak['peak_half']:.0f} over {peak['peak_full']:,.0f} MB)"
        rows.append(row(title, [short(step["ratio"], 3), work, memory, short(step["multiply_adds_ratio"], 3)]))
        assert f"{peak['before_the_model']:.0f} MB are Python, torch and the batch" in PROSE
    assert table("Half of the channels") == rows


def test_a_deployed_round():
    (result,) = measured("bench-deployed").values()
    seconds, least, most = ([short(result[f"{k}_{quantity}round_seconds"], 2) for k in KINDS] for quantity in SPREAD)
    spread = [f"{s} ({low} to {high})" for s, low, high in zip(seconds, least, most, strict=True)]
    training, server = (
        [short(result[f"{k}_{quantity}"], 3) for k in KINDS]
        for quantity in ("training_seconds", "server_seconds_between_rounds")
    )
    rows = [row("seconds per round: median (least to most)", spread), row("of which training", training)]
    assert table("A deployed round") == [*rows, row("server between rounds", server)]
    assert f"Both are met: {short(result['ratio'], 3)} and {seconds[0]} s" in PROSE
    title = "deployed round with almost no training: warm client process over Flower's own "
    title += f"({' and '.join(seconds)} s; commit `{commit('bench-deployed')}`)"
    assert row(title, [short(result["ratio"], 3), "at most .45", yes_or_no(result)]) in PAGE


def test_the_in_process_round():
    rows = []
    for file, title in (
        ("bench-engine", "idle, commit `{}` ([bench-engine.json](bench-engine.json))"),
        ("bench", "within `make -C tools bench`, commit `{}`"),
    ):
        results, values = measured(file), []
        for batch in (10, 50):
            result = starting(f"in-process round over SGD floor, batch {batch}", results)
            seconds = f"{result['engine_seconds']:.2f} over {result['floor_seconds']:.2f}"
            values.append(f"{short(result['ratio'], 3)} ({seconds})")
        rows.append(row(title.format(commit(file)), values))
    assert [line.replace(" s over", " over") for line in table("The in-process round")] == rows
    for batch in (10, 50):
        result = starting(f"in-process round over SGD floor, batch {batch}", measured("bench-engine"))
        title = f"in-process round over the SGD floor, batch {batch} †"
        assert row(title, [short(result["ratio"], 3), "at most 1.05", yes_or_no(result)]) in PAGE


def test_the_codec():
    results = measured("bench")
    for operation, title in (
        ("encode", "encode at 10 % of 10 M entries: {} MB/s of dense fp32, over a memory copy"),
        ("decode", "decode at 10 %: {} MB/s, over a memory copy"),
    ):
        entry = results[f"{operation} at 0.1 of 10 M entries"]
        values = [short(entry["ratio"], 2), "at least 2,500 MB/s", yes_or_no(entry)]
        assert row(title.format(f"{entry['mb_per_second']:,.0f}"), values) in PAGE
        rest = [short(results[f"{operation} at {keep} of 10 M entries"]["ratio"], 2) for keep in (0.5, 0.3, 0.01)]
        assert f"| {operation} at .5, .3, .01 over a memory copy | {', '.join(rest)} | | |" in PAGE
    encoded = [results[f"encode at {keep} of 10 M entries"] for keep in (0.5, 0.3, 0.1, 0.01)]
    bound = [result["index_bytes_over_entropy_bound"] for result in encoded]
    assert f"at .5, .3, .1, .01: {', '.join(f'{ratio:.3f}' for ratio in bound)} (goal: at most 1.03)" in PROSE
    assert max(bound) <= 1.03


def test_aggregation():
    results = measured("bench-aggregation")
    few, most, many = (starting(f"aggregate {count} uploads", results) for count in (10, 100, 1000))
    title = "element-wise aggregation of 100 uploads, 11 M parameters at 10 %, over reading and decoding them once †"
    assert row(title, [f"{most['ratio']:.2f}", "at most 3", yes_or_no(most)]) in PAGE
    assert f"| the same, 10 and 1,000 uploads † | {few['ratio']:.2f}, {many['ratio']:.2f} | | |" in PAGE
    whole = starting("all of FedPSE's server step", results)["ratio"]
    title = "the whole server step of FedPSE for 10 uploads, over reading and decoding them †"
    assert row(title, [f"{whole:.2f}", "at most 10", "yes" if whole <= 10 else "no"]) in PAGE
    assert f"It costs {whole:.1f} times the reading for 10 uploads (EWA in that run: {few['ratio']:.1f})" in PROSE
    seconds = [short(result["seconds_per_upload"], 3) for result in (few, most, many)]
    assert f"falls from {seconds[0]} s (10 uploads," in PROSE
    assert f"to {seconds[1]} (100) and {seconds[2]} (1,000)" in PROSE
    assert {f"{result['peak_memory_mb']:.0f}" for result in (few, most, many)} == {"575"}
    assert "Peak memory is 575 MB in all three cases" in PROSE
    earlier = starting("aggregate 100 uploads", measured("bench"))
    assert f"3.45 before, {earlier['ratio']:.2f} after" in PROSE


def test_peak_memory():
    result = starting("peak memory, 500 virtual clients", measured("bench"))
    title = "peak memory, 500 virtual clients with state over 100, cache of 64 MB "
    title += f"({result['megabytes_many']:,.0f} and {result['megabytes_few']:.0f} MB)"
    assert row(title, [f"{result['ratio']:.2f}", "at most 1.25", yes_or_no(result)]) in PAGE
    (server,) = measured("bench-server-memory").values()
    few, some, many = (f"{server[f'megabytes_{count}']:.0f}" for count in (10, 100, 1000))
    title = f"server's peak memory, 1,000 clients over 10, 3 MB each way ({few}, {some} and {many} MB at 10, 100, "
    title += "1,000; [own run](bench-server-memory.json))"
    assert row(title, [f"{server['ratio']:.3f}", "at most 1.25", yes_or_no(server)]) in PAGE


@pytest.mark.parametrize(("name", "heading"), PARTS.items())
def test_a_part_names_its_commit(name, heading):
    text = " ".join(PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].split())
    assert f"ommit `{commit(name)}`" in text
