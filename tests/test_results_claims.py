"""The main figures in the prose of results pages, each bound to the runs that it is about.

``test_results_prose.py`` looks at all figures, but only asks whether they are in some table. Here a sentence's figures
are computed from the data file and the sentence is expected word for word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.test_results_prose import plain, rows, split

Source = tuple[str, ...]  # block, cell, variant, figure: a view, MB, share, by round


def figure(runs: list[dict[str, Any]], what: str) -> str:
    """Return a figure as pages show it: an accuracy in %, MB in all, % of the dense bytes, or received at a round.

    ``kept``, ``received-shift-100`` … are views; ``MB``, ``dense`` and ``received@30`` the others. All but the last are
    means over seeds.
    """
    if what in ("MB", "dense"):
        sizes = [{key: run["megabytes"][key] for key in ("up", "down", "up_dense", "down_dense")} for run in runs]
        total, dense = (
            np.mean([size[k] + size[j] for size in sizes]) for k, j in (("up", "down"), ("up_dense", "down_dense"))
        )
        return f"{total:.1f}" if what == "MB" else f"{100 * total / dense:.1f}"
    if "@" in what:
        view, number = what.split("@")
        return f"{100 * next(p for p in runs[0]['curve'] if p['round'] == int(number))[view]:.1f}"
    return f"{100 * np.mean([run['accuracy'][what]['mean'] for run in runs]):.1f}"


def of(block: str, *pairs: str, cell: str = "") -> list[Source]:
    """Return sources of one block from ``variant figure`` pairs."""
    return [(block, cell, *pair.split()) for pair in pairs]


N5 = {"cell": "lambda=1.0"}
CLAIMS: dict[str, list[tuple[str, list[Source]]]] = {
    "dmpfl": [
        ("Deployed, DM-PFL has {}, FedAvg {} (", of("har", "dmpfl kept", "fedavg received")),
        ("FedAvg + fine-tuning {} (", of("har", "fedavg-ft trained")),
        ("and Local {} (", of("har", "local kept")),
        ("DM-PFL+ has {} there", of("har", "dmpfl-plus kept-shift-100")),
        ("DM-PFL needs {} % of the dense bytes", of("har", "dmpfl dense")),
        ("FedDST at the same sparsity sends {} %", of("har", "feddst dense")),
        ("sends {} % of the dense bytes. It is", of("har", "lg-fedavg dense")),
        ("reaches its published level (trained {};", of("har-300", "dmpfl trained")),
        ("bytes are {} % of the dense ones", of("har-300", "dmpfl dense")),
        ("({} at round 30, {} at round 60)", of("mnist", "dmpfl received@30", "dmpfl received@60")),
        ("behind without shift** ({} and {})", of("cifar10", "dmpfl trained", "fedavg-ft trained")),
        ("({} and {}; after 60 rounds", of("cifar10-180", "dmpfl trained", "fedavg-ft trained")),
        (
            "local training ({} and {}), 3.2",
            of("cifar10-180", "dmpfl trained-shift-100", "fedavg-ft trained-shift-100"),
        ),
        ("received model has {} % and FedAvg's {} %", of("cifar10", "dmpfl received@30", "fedavg received@30")),
    ],
    "fedpse": [
        ("Received, FedPSE has {} and FedAvg {} (", of("n5", "fedpse received", "fedavg received", **N5)),
        ("at {} % of the dense bytes;", of("n5", "fedpse dense", **N5)),
        ("each have {} with FedPSE, {} with Local", of("n5", "fedpse kept", "local kept", **N5)),
        ("and {} with FedAvg + fine-tuning, deployed;", of("n5", "fedavg-ft trained", **N5)),
        ("After local training, Local has {}, FedPSE {} for", of("dir50", "local trained", "fedpse trained")),
        ("MB, FedAvg {} for", of("dir50", "fedavg trained")),
        ("**FedSTC {} for", of("dir50", "fedstc trained")),
        (
            "FedPSE cannot be distinguished from Local ({} and {} deployed",
            of("all-images", "fedpse kept", "local kept"),
        ),
        (
            "without intervals (FedPSE {} instead of {},",
            [*of("n5-tuned", "fedpse kept"), *of("n5", "fedpse kept", cell="lambda=0.5")],
        ),
        (
            "FedAvg {} instead of {}, FedAvg",
            [*of("n5-tuned", "fedavg received"), *of("n5", "fedavg received", cell="lambda=0.5")],
        ),
        (
            "fine-tuning {} instead of {})",
            [*of("n5-tuned", "fedavg-ft trained"), *of("n5", "fedavg-ft trained", cell="lambda=0.5")],
        ),
    ],
    "leaderboard": [
        ("ranks at equal rounds** (HAR {} and {} %,", of("har", "fedavg-ft trained", "fedpse kept")),
        ("fifty clients {} and {} %, λ", of("dir50", "fedavg-ft trained", "fedpse kept")),
        ("λ = .5 {} and {} %;", of("mix", "fedavg-ft trained", "fedpse kept")),
        ("**: FedAvg has {},", of("har", "fedavg received-shift-100")),
        ("and FedSTC {},", of("har", "fedstc received-shift-100")),
        ("It has {} % on HAR", of("har", "pfedgate kept")),
    ],
    "pa3dfl": [
        ("FedAvg's narrow model takes {} MB", of("hetero", "fedavg-narrow MB")),
        ("**pFedHN diverged** ({} %;", of("hetero", "pfedhn-narrow received")),
        ("Local has {} %.", of("ideal", "local trained")),
        ("Trained, it has {} and the hypernetwork {}", of("fmnist-small", "pa3dfl-position trained", "pa3dfl trained")),
        ("received, Pa3dFL has {} % and", of("cifar10-small", "pa3dfl received")),
        ("its parameters {} (", of("cifar10-small", "pa3dfl-local received")),
        ("pFedHN has {} trained", of("fmnist-small", "pfedhn-narrow trained")),
    ],
    "pfedgate": [
        ("FedAvg-FT has {}, FedAvg {},", of("fmnist-small", "fedavg-ft-5 trained", "fedavg trained")),
        ("Ditto {}, Local {}, and", of("fmnist-small", "ditto trained", "local trained")),
        ("and FedAvg's have {} %; no", of("fmnist-small", "fedavg received")),
        ("It has {} %, and pFedGate with s = .5 has {} % (a", of("cifar10", "fedavg-ft-5 trained", "s5 trained")),
        ("With s = .5 it has {} %, FedAvg + fine-tuning {} %", of("cifar10", "s5 received", "fedavg-ft-5 received")),
        ("FedEM {} % (", of("cifar10", "fedem received")),
        ("and FedAvg {} %. With s = 1 it has {} %", of("cifar10", "fedavg received", "s1 received")),
        ("It has {} %, and pFedGate {} to", of("partial", "fedavg trained", "s1 trained")),
        ("s = .5 fails: {} % after", of("blocks", "s5 trained", cell="blocks=2")),
    ],
    "privacy": [
        ("At z = .1 it receives {} % ({} without)", of("fmnist50", "fedavg-z0.1 received", "fedavg received")),
        ("FedPSE falls from {} % received", of("fmnist50", "fedpse-clip received")),
        ("to {} (z = .03) and {} (z = .1)", of("fmnist50", "fedpse-z0.03 received", "fedpse-z0.1 received")),
        ("FedSTC falls from {} to", of("fmnist50", "fedstc-clip received")),
        ("to {} and {}. The probable", of("fmnist50", "fedstc-z0.03 received", "fedstc-z0.1 received")),
        ("**Local has {} %** trained", of("fmnist50", "local trained")),
    ],
    "subfedavg": [
        ("In the received view, Un 50 has {} % and FedAvg {} %", of("mnist-20", "un-50 received", "fedavg received")),
        ("over 60 rounds, {} and {} MB", of("mnist-20", "un-50 MB", "un-70 MB")),
        ("Un 50 takes {} MB and Hy 50 {} MB.", of("mnist-50", "un-50 MB", "hy-50 MB")),
        ("FedAvg takes {} MB", of("mnist-50", "fedavg MB")),
        ("{} % with Un 30, {} %", [*of("mnist-targets", "un-30 kept"), *of("mnist-50", "un-50 kept")]),
        ("After training they have {} and {} % (", of("cifar10-20", "un-50 trained", "local trained")),
        ("Un 50 has {} %, and FedAvg's model for all {} %", of("cifar10-20", "un-50 received", "fedavg received")),
    ],
}


@pytest.mark.parametrize("page", CLAIMS)
def test_the_main_figures_are_those_of_the_runs_that_they_are_about(page):
    prose, _ = split(page)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows(page):
        groups.setdefault((row["block"], row["cell"], row["variant"]), []).append(row)
    for words, sources in CLAIMS[page]:
        said = words.format(*(plain(figure(groups[source[:3]], source[3])) for source in sources))
        assert said in prose, said
