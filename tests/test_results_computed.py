"""Figures in the prose of results pages that no table has: each is computed here from the data that its page names.

``test_results_prose.COMPUTED`` lists them.
"""

from __future__ import annotations

import numpy as np

from experiments.paper.differences import by_seed
from experiments.paper.ranks import SETTINGS, collect
from sepal.cli.plans.plan import read_plan
from sepal.cli.results import paired, paired_by_seed
from tests.test_results_prose import COMPUTED, ROOT, interval, plain, rows, split


def test_a_difference_over_all_ranked_blocks():
    """Leaderboard, full shift: FedAvg's model for all against FedAvg + fine-tuning's; HAR's seeds averaged."""
    plan = read_plan(ROOT / "experiments" / "papers" / "leaderboard.toml")
    results = {row["name"]: row for row in rows("leaderboard")}
    found = collect(plan, plan.ranks, results, next(setting for setting in SETTINGS if setting.shift))
    sides = []
    for variant in ("fedavg", "fedavg-ft"):
        sides.append(by_line := {})
        for (block, seed, client), accuracy in found[variant].items():
            by_line.setdefault(seed, {})[f"{block} {client}"] = accuracy
    both = paired(*sides)
    assert interval(both.mean, both.spread, "7.6") in COMPUTED["leaderboard"]


def test_accuracy_of_pruning_clients_in_the_text():
    """Sub-FedAvg on CIFAR-10: each client's mean accuracy at 52 and at 69.7 % pruned, less that at 10 %."""
    _, run = rows("subfedavg-pruning")
    changes = []
    for share in (51.9, 69.7):
        sides: list[dict[str, float]] = [{}, {}]
        for name, client in run["clients"].items():
            pruned, accuracy = 100 * np.array(client["pruned"]), np.array(client["accuracy"])
            for side, at in zip(sides, (share, 10.0), strict=True):
                if (here := abs(pruned - at) < 0.5).any():  # clients of one target reach the same shares up to rounding
                    side[name] = float(accuracy[here].mean())
        changes.append(paired({0: sides[0]}, {0: sides[1]}))
    down, back = changes
    assert [interval(-down.mean, down.spread, "3.2"), interval(back.mean, back.spread, ".2")] == [
        "3.2 ± 2.6",
        ".2 ± 1.1",
    ]
    prose, _ = split("subfedavg")
    assert f"({down.count} clients, of which two improve)" in prose
    assert f"(.2 ± 1.1 points above, {back.count} clients" in prose


def test_what_masks_of_gates_share():
    """pFedGate: distinct masks, the least that two clients share, and the correlation with labels."""
    prose, _ = split("pfedgate")
    runs = {row["run"].removesuffix("-seed0"): row for row in rows("pfedgate-masks")}
    distinct, least, r = [], [], []
    for name in ("s5-small", "s3-small", "s5-small-multiply-adds", "s5-small-client"):
        run = runs[f"cost-small-{name}"]
        distinct.append(run["distinct"])
        least.append(f"{100 * np.min(run['similarity']):.1f}".removesuffix(".0"))
        found = run["correlation"]["similarity"]
        r.append("" if found is None else plain(f"{found:.2f}"))
    assert f"{distinct[0]} are distinct with s = .5 (both by sample and by client), {distinct[1]} with s = .3" in prose
    assert distinct[3] == distinct[0]
    assert f"and {distinct[2]} with a budget of multiply-adds" in prose
    assert (
        f"at least {least[0]} % of a mask with s = .5, {least[1]} % with s = .3, and {least[2]} % with a budget"
        in prose
    )
    assert f"is r = {r[0]} (s = .5 by sample), {r[3]} (s = .5 by client) and {r[2]} (multiply-adds)" in prose
    assert f"(r = {runs['ablations-s5-no-sigmoid']['correlation']['similarity']:.2f})".replace("0.", ".") in prose


def test_other_figures_in_the_text():
    """FedPSE with all images: Local's accuracy, FedPSE's upload in % of FedAvg's. Sub-FedAvg: Hy 90, pruned."""
    runs = {row["variant"]: row for row in rows("fedpse") if row["block"] == "all-images"}
    prose, _ = split("fedpse")
    local = f"{runs['local']['accuracy']['trained']['mean']:.3f}"
    assert f"Local, which sends nothing, reaches {plain(local)} with" in prose
    up = [runs[name]["megabytes"]["up"] for name in ("fedpse", "fedavg")]
    assert f"upload of {up[0]:.2f} MB is {100 * up[0] / up[1]:.2f} % of FedAvg's {up[1]:.2f} MB" in prose
    pruned = next(row["own"]["pruned"] for row in rows("subfedavg") if row["name"] == "mnist-targets-hy-90-seed0")
    assert f"ten participations leave {100 - 100 * np.mean(pruned):.1f} % of the parameters" in split("subfedavg")[0]


def test_limits_on_the_hypernetworks_step():
    """Pa3dFL, all runs and rounds: the least norm before clipping (the limit is 1), and the largest absorbed share."""
    found = [row["method"] for row in rows("pa3dfl") if "hypernetwork.absorbed" in row["method"]]
    least = min(min(run["hypernetwork.norm"]) for run in found)
    shares = [share for run in found for share in run["hypernetwork.absorbed"]]
    limited = [run["hypernetwork.absorbed"] for run in found if max(run["hypernetwork.absorbed"]) == 1]
    assert (len(limited), shares.count(1)) == (1, 1), "the first limit acted in one round of one run"
    most = plain(f"{max(share for share in shares if share not in limited[0]):.2f}")
    prose = split("pa3dfl")[0]
    assert f"(the norm was {least:.1f} or more), the first limit in one round of one run" in prose
    assert f"(elsewhere at most {most} was absorbed)" in prose


def test_a_difference_over_seeds_that_rounding_would_hide():
    """Sub-FedAvg with 100 clients: FedAvg's trained models less Un 50's, over three seeds."""
    sides = [
        [row for row in rows("subfedavg") if row["name"].startswith(f"mnist-50-{v}-s")] for v in ("fedavg", "un-50")
    ]
    found = paired_by_seed(*(by_seed(side, "trained") for side in sides))
    assert found.count == 3
    assert interval(found.mean, found.spread, ".163") in COMPUTED["subfedavg"]
