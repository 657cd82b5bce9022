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
    found = {row["what"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def commit(name: str) -> str:
    return json.loads((RESULTS / f"{name}.json").read_text())["machine"]["commit"].removesuffix("-dirty")


def short(value: float, places: int) -> str:
    """Return a number as the page writes it, without a leading zero."""
    return f"{value:.{places}f}".removeprefix("0")


def met(found: dict[str, Any]) -> str:
    return "yes" if found["met"] else "no"


def row(title: str, values: list[str]) -> str:
    return f"| {title} | {' | '.join(values)} |"


def starting(what: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the one row of which the name begins with ``what``."""
    (found,) = (each for name, each in rows.items() if name.startswith(what))
    return found


def table(after: str) -> list[str]:
    """Return the rows of the first table below a heading, without its head."""
    lines = PAGE[PAGE.index(f"\n## {after}\n") + 1 :].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|"))
    end = next(number for number in range(begin, len(lines)) if not lines[number].startswith("|"))
    return lines[begin + 2 : end]


def test_a_step_by_width():
    found, rows = measured("bench-widths"), []
    for what, each in found.items():
        kind, width, r = re.fullmatch(r"step of (.*) at width (\S+) \(r = (\S+)\), over .*", what).groups()
        assert Fraction(r) == Fraction(width) ** 2
        peak = f"{each['mebibytes']:.0f} ({short(each['mebibytes_ratio'], 2)})"
        taken = [short(each["ratio"], 3), f"{1e3 * each['seconds']:.0f}", peak]
        rows.append(of_width(MODELS[kind], width, r, taken, each["parameters"], each["multiply_adds"]))
    taken = ["1", f"{1e3 * each['full_seconds']:.0f}", f"{each['full_mebibytes']:.0f} (1)"]
    full = [each[count] / each[f"{count}_ratio"] for count in ("parameters", "multiply_adds")]
    assert table("A step by width") == [of_width(FULL, "1", "1", taken, *full), *rows]
    goal = starting("step of Pa3dFL's model at width 1/4", found)
    assert f"at width 1/4 was at most .3; it is {short(goal['ratio'], 3)}" in PROSE


def of_width(model: str, width: str, r: str, taken: list[str], parameters: float, work: float) -> str:
    """Return a row of the table: sizes are float32 in 10⁻¹ MiB; multiply-adds are in 10⁷."""
    at = PUBLISHED.index(width) if width in PUBLISHED else None
    peak, adds, size = ("" if at is None else values.split()[at] for values in TABLE_2[model])
    counts = [peak, f"{work / 1e7:.1f}", adds, f"{parameters:,.0f}", f"{40 * parameters / 2**20:.1f}", size]
    return row(model, [f"{width} ({r})", *taken, *counts])


def test_a_model_of_86_m_parameters():
    found, rows = measured("bench-size").values(), []
    for each in found:
        traffic = [f"{each[f'{way}_bytes_a_client'] / 1e6:,.2f}" for way in ("down", "up")]
        memory = [f"{each['server_mib']:,}", f"{each['client_mib']:,}"]
        title = f"{each['method']}, {each['clients']} clients, {each['engine']}"
        rows.append(row(title, [*memory, *traffic, f"{each['round_seconds']:.0f}"]))
    assert table("A model of 86 M parameters") == rows
    for each in found:
        if each["goal"]:
            half = each["clients"] // 2
            assert f"{each['method']}, {each['clients']} clients over {half}: {each['ratio']:.2f}" in PROSE


def test_the_hypernetwork():
    found, rows = measured("bench-hypernetwork"), []
    for what, clients, width, depth in (
        ("100 clients, full width", "100", "1", 3),
        ("100 clients, full width, encoder of 2 layers", "100", "1", 2),
        ("100 clients, full width, encoder of 1 layer", "100", "1", 1),
        ("100 clients, widths 1/16, 1/4, 1/2, 1 in turn", "100", "1/16, 1/4, 1/2, 1 in turn", 3),
        ("1000 clients, full width, 1,000 embeddings", "1,000", "1", 3),
        ("100 clients, full width, decoders of rank 8", "100, decoders of rank 8", "1", 3),
    ):
        spent = found.pop(f"hypernetwork for 20 of {what}, over their training")
        peak = found.pop(f"hypernetwork for 20 of {what}, peak memory over its bytes")
        assert spent["ratio"] == pytest.approx((spent["generate"] + spent["step"]) / spent["training"])
        values = [short(spent[part], 3) for part in ("generate", "step")]
        values.append(TABLE_9[depth] if what.startswith("100 clients, full width") and "rank" not in what else "")
        values += [short(spent["training"], 1), short(spent["ratio"], 3), f"{spent['bytes'] / 2**20:.0f}"]
        values.append(f"{peak['mebibytes']:.0f} ({peak['ratio']:.2f})")
        rows.append(row(clients, [width, str(depth), *values]))
    assert table("The hypernetwork") == rows
    ((what, fashion),) = found.items()
    assert "Fashion-MNIST" in what
    whole = fashion["mebibytes"] / fashion["ratio"]
    peak = f"{fashion['mebibytes']:.0f} MiB ({fashion['ratio']:.2f} times"
    assert f"hypernetwork has {whole:.0f} MiB, and the peak is {peak}" in PROSE
    ratios = [each["ratio"] for what, each in measured("bench-hypernetwork").items() if "peak" in what]
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
    found, lines, steps = measured("bench-gate"), [], []
    for title, what in STEPS.items():
        steps.append([found.pop(f"{what}, {m}, s = {s}, batch of 128")["ratio"] for m in GATED for s in KEEPS])
        lines.append(row(title, [short(value, 2) for value in steps[-1]]))
    for title, how in INFERENCE.items():
        each = [found.pop(f"inference over plain, {m}, s = {s} of {how}", None) for m in GATED for s in KEEPS]
        shown = [f"{short(e['ratio'], 2)} ({short(e['multiply_adds'], 2)})" if e else "" for e in each]
        lines.append(row(title, shown))
    assert not found
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
    found = measured("bench-gate")

    def ratio(model: str, keep: str, how: str) -> str:
        return short(found[f"inference over plain, {model}, s = {keep} of {how}"]["ratio"], 2)

    saved = [ratio("cnn-cifar100", "0.3", INFERENCE[title]) for title in (COSTS, GREEDY)]
    text = f"{' and '.join(saved)} × on cnn-cifar100 at s = .3, {ratio('lenet-cifar10', '0.3', INFERENCE[COSTS])} × on"
    assert text in PROSE
    exact = [each for what, each in found.items() if re.search(r"s = 0\.. of weights, by client, exact$", what)]
    work, taken = (span([each[key] for each in exact]) for key in ("multiply_adds", "ratio"))
    assert f"keeps {work[0]} to {work[1]} of all multiply-adds: {taken[0]} to {taken[1]} × the plain model" in PROSE
    sample = span([each["ratio"] for what, each in found.items() if what.endswith("weights, by sample, exact")])
    assert f"By sample nothing is saved ({sample[0]} to {sample[1]} ×)" in PROSE
    assert f"s = 1 costs {ratio('lenet-cifar10', '1', 'weights, by client, exact')} × the plain inference" in PROSE


def test_half_of_the_channels():
    found, rows = measured("bench-cuts"), []
    for what, title in (
        ("half of the convolutions", "half of the convolutions' channels (as Sub-FedAvg Hy cuts)"),
        ("half of the width", "half of all channels and hidden units"),
    ):
        step, peak = starting(f"seconds of a step, {what}", found), starting(f"peak MiB, {what}", found)
        cpu, cpu_full = step["cpu_seconds"], step["cpu_seconds_full"]
        work = f"{short(cpu / cpu_full, 3)} ({cpu:.2f} over {cpu_full:.2f})"
        memory = f"{short(peak['ratio'], 3)} ({peak['peak_half']:.0f} over {peak['peak_full']:,.0f} MB)"
        rows.append(row(title, [short(step["ratio"], 3), work, memory, short(step["multiply_adds_ratio"], 3)]))
        assert f"{peak['before_the_model']:.0f} MB are Python, torch and the batch" in PROSE
    assert table("Half of the channels") == rows


def test_a_deployed_round():
    (found,) = measured("bench-deployed").values()
    seconds, least, most = ([short(found[f"{k}_{what}round_seconds"], 2) for k in KINDS] for what in SPREAD)
    spread = [f"{s} ({low} to {high})" for s, low, high in zip(seconds, least, most, strict=True)]
    training, server = (
        [short(found[f"{k}_{what}"], 3) for k in KINDS]
        for what in ("training_seconds", "server_seconds_between_rounds")
    )
    rows = [row("seconds per round: median (least to most)", spread), row("of which training", training)]
    assert table("A deployed round") == [*rows, row("server between rounds", server)]
    assert f"Both are met: {short(found['ratio'], 3)} and {seconds[0]} s" in PROSE
    title = "deployed round with almost no training: warm client process over Flower's own "
    title += f"({' and '.join(seconds)} s; commit `{commit('bench-deployed')}`)"
    assert row(title, [short(found["ratio"], 3), "at most .45", met(found)]) in PAGE


def test_the_in_process_round():
    rows = []
    for file, title in (
        ("bench-engine", "idle, commit `{}` ([bench-engine.json](bench-engine.json))"),
        ("bench", "within `make -C tools bench`, commit `{}`"),
    ):
        found, values = measured(file), []
        for batch in (10, 50):
            each = starting(f"in-process round over SGD floor, batch {batch}", found)
            seconds = f"{each['engine_seconds']:.2f} over {each['floor_seconds']:.2f}"
            values.append(f"{short(each['ratio'], 3)} ({seconds})")
        rows.append(row(title.format(commit(file)), values))
    assert [line.replace(" s over", " over") for line in table("The in-process round")] == rows
    for batch in (10, 50):
        each = starting(f"in-process round over SGD floor, batch {batch}", measured("bench-engine"))
        title = f"in-process round over the SGD floor, batch {batch} †"
        assert row(title, [short(each["ratio"], 3), "at most 1.05", met(each)]) in PAGE


def test_the_codec():
    found = measured("bench")
    for what, title in (
        ("encode", "encode at 10 % of 10 M entries: {} MB/s of dense fp32, over a memory copy"),
        ("decode", "decode at 10 %: {} MB/s, over a memory copy"),
    ):
        each = found[f"{what} at 0.1 of 10 M entries"]
        values = [short(each["ratio"], 2), "at least 2,500 MB/s", met(each)]
        assert row(title.format(f"{each['mb_per_second']:,.0f}"), values) in PAGE
        rest = [short(found[f"{what} at {keep} of 10 M entries"]["ratio"], 2) for keep in (0.5, 0.3, 0.01)]
        assert f"| {what} at .5, .3, .01 over a memory copy | {', '.join(rest)} | | |" in PAGE
    each = [found[f"encode at {keep} of 10 M entries"] for keep in (0.5, 0.3, 0.1, 0.01)]
    bound = [one["index_bytes_over_entropy_bound"] for one in each]
    assert f"at .5, .3, .1, .01: {', '.join(f'{each:.3f}' for each in bound)} (goal: at most 1.03)" in PROSE
    assert max(bound) <= 1.03


def test_aggregation():
    found = measured("bench-aggregation")
    few, most, many = (starting(f"aggregate {count} uploads", found) for count in (10, 100, 1000))
    title = "element-wise aggregation of 100 uploads, 11 M parameters at 10 %, over reading and decoding them once †"
    assert row(title, [f"{most['ratio']:.2f}", "at most 3", met(most)]) in PAGE
    assert f"| the same, 10 and 1,000 uploads † | {few['ratio']:.2f}, {many['ratio']:.2f} | | |" in PAGE
    whole = starting("all of FedPSE's server step", found)["ratio"]
    title = "the whole server step of FedPSE for 10 uploads, over reading and decoding them †"
    assert row(title, [f"{whole:.2f}", "at most 10", "yes" if whole <= 10 else "no"]) in PAGE
    assert f"It costs {whole:.1f} times the reading for 10 uploads (EWA in that run: {few['ratio']:.1f})" in PROSE
    each = [short(one["seconds_per_upload"], 3) for one in (few, most, many)]
    assert f"falls from {each[0]} s (10 uploads," in PROSE
    assert f"to {each[1]} (100) and {each[2]} (1,000)" in PROSE
    assert {f"{one['peak_memory_mb']:.0f}" for one in (few, most, many)} == {"575"}
    assert "Peak memory is 575 MB in all three cases" in PROSE
    earlier = starting("aggregate 100 uploads", measured("bench"))
    assert f"3.45 before, {earlier['ratio']:.2f} after" in PROSE


def test_peak_memory():
    each = starting("peak memory, 500 virtual clients", measured("bench"))
    title = "peak memory, 500 virtual clients with state over 100, cache of 64 MB "
    title += f"({each['megabytes_many']:,.0f} and {each['megabytes_few']:.0f} MB)"
    assert row(title, [f"{each['ratio']:.2f}", "at most 1.25", met(each)]) in PAGE
    (server,) = measured("bench-server-memory").values()
    few, some, many = (f"{server[f'megabytes_{count}']:.0f}" for count in (10, 100, 1000))
    title = f"server's peak memory, 1,000 clients over 10, 3 MB each way ({few}, {some} and {many} MB at 10, 100, "
    title += "1,000; [own run](bench-server-memory.json))"
    assert row(title, [f"{server['ratio']:.3f}", "at most 1.25", met(server)]) in PAGE


@pytest.mark.parametrize(("name", "heading"), PARTS.items())
def test_a_part_names_its_commit(name, heading):
    text = " ".join(PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].split())
    assert f"ommit `{commit(name)}`" in text
