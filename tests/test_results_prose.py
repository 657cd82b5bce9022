"""Figures in the prose of results pages: each is in a table of the page, is computed, or is not a result of ours.

Tables are generated from the data files (``cli/test_papers.py``) or computed (``test_results_tables.py``).
Checked are figures with a decimal point and those with an interval. A wrong figure passes if it is in some
table: with an error of one in the last digit, a tenth of the figures with an interval do, and most of the
others. So ``test_results_claims.py`` binds the main ones to their runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.paper.differences import by_seed
from sepal.cli.results import paired

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = ("dmpfl", "fedpse", "leaderboard", "pa3dfl", "pfedgate", "privacy", "subfedavg")
NUMBER = r"\d*\.\d+|\d+"
WITH_INTERVAL = re.compile(rf"({NUMBER}) (?:points )?± ({NUMBER})")
DECIMAL = re.compile(r"(?<![\w.])\d*\.\d+(?![\w]|\.\d)")
Rows = list[dict[str, Any]]


def rows(page: str) -> Rows:
    return [json.loads(line) for line in (RESULTS / f"{page}.ndjson").read_text().splitlines()]


def plain(text: str) -> str:
    """Return a number without a leading zero."""
    return re.sub(r"^0(?=\.)", "", text)


def split(page: str) -> tuple[str, str]:
    """Return a page's prose, without code, links' targets and generated parts, and its tables."""
    text = (RESULTS / f"{page}.md").read_text()
    tables = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    text = re.sub(r"<!-- (tables|trials): \S+ -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    return " ".join(" ".join(line for line in text.splitlines() if not line.startswith("|")).split()), tables


def shown_in(tables: str) -> Callable[[str], bool]:
    """Return whether a number of the prose is one of the tables', also rounded or in per cent."""
    found = [float(number) for number in re.findall(NUMBER, tables)]

    def there(number: str) -> bool:
        places = len(number.partition(".")[2])
        return any(f"{value:.{places}f}" == f"{float(number):.{places}f}" for value in everything)

    everything = {*found, *(100 * value for value in found if value < 1)}
    return there


GIVEN = {
    "dmpfl": {
        ".05": "rates and FedProx's μ",
        "67.5": "% of the windows: .75 · .9",
        "12.2": "published, Table 1",
        ".913": "before the fixes",
        ".857": "before the fixes",
        ".828": "before the fixes",
        ".849": "before the fixes",
        ".879": "before the fixes",
        "3.11": "Python",
    },
    "fedpse": {
        ".05": "rate",
        ".01": "rates",
        ".001": "rates",
        ".9243": "published",
        ".8388": "published",
        ".8756": "published",
        ".9267": "published",
        "1.25": "5 / 20 epochs more",
        ".93": "before the fixes",
        ".97": "before the fixes",
        "69.3": "before the fixes",
        "31.1": "before the fixes: 95.9 − 64.8",
        "3.11": "Python",
    },
    "leaderboard": {".31": "the rate's decay", ".01": "λ of Pa3dFL"},
    "pa3dfl": {
        ".001": "λ",
        "10.6": "published, Table 3: 89.55 − 78.94",
        "76.58": "published",
        "89.55": "published",
        "7.2": "hours",
        ".215": "docs/results/bench.md",
        ".019": "docs/results/bench.md",
    },
    "pfedgate": {
        "1.086": "ratio of two counts",
        "1.139": "ratio of two counts",
        "1.266": "ratio of two counts",
        "1.141": "ratio of two counts",
        ".05": "rate",
        ".01": "rate",
        "1.13": "docs/results/bench.md",
        "1.51": "docs/results/bench.md",
        ".8": "published, Table 5",
        "89.2": "published, Figure 4",
    },
    "privacy": {".3": "α of the partition", ".05": "rate"},
    "subfedavg": {
        "4.3": "hours",
        ".01": "rate",
        "94.25": "published",
        "49.7": "share of all parameters that is pruned at a target of 50 %, as biases and norms are not",
        ".05": "ε",
        "2.4": "published",
        "99.28": "published",
        "99.57": "published",
        "97.46": "published",
        "84.44": "published",
        "58.99": "published",
    },
}

# page → as in the text → block, cell, ours, theirs, views of both; ours minus theirs is positive
DIFFERENCES: dict[str, dict[str, tuple[str, ...]]] = {
    "dmpfl": {
        ".75 ± .65": ("har-open", "", "dmpfl", "dmpfl-erk", "trained", "trained"),
        "3.0 ± 2.1": ("cifar10-180", "", "dmpfl-alpha-.01", "fedavg-ft", "trained-shift-100", "trained-shift-100"),
        "3.6 ± 2.3": ("cifar10-180", "", "dmpfl-alpha-.01", "fedavg-ft", "kept-shift-100", "trained-shift-100"),
        "8.1 ± 2.8": ("cifar10-180", "", "fedavg-ft", "dmpfl-alpha-.01", "trained", "trained"),
        "7.1 ± 1.8": ("cifar10-180", "", "dmpfl-alpha-.01", "dmpfl", "trained-shift-100", "trained-shift-100"),
        "5.8 ± 2.5": ("cifar10-180", "", "dmpfl", "dmpfl-alpha-.01", "trained", "trained"),
        "4.6 ± 1.8": ("cifar10-180", "", "fedavg-ft", "dmpfl-alpha-.01", "received-shift-100", "received-shift-100"),
    },
    "fedpse": {
        ".90 ± .86": ("n10", "lambda=0.0", "fedpse", "fedpse-no-ewa", "received", "received"),
        "2.8 ± 1.6": ("listing", "lambda=0.0", "fedpse-listing-adam", "fedpse-adam", "kept", "kept"),
        "2.0 ± 2.7": ("listing", "lambda=0.5", "fedpse-listing-adam", "fedpse-adam", "kept", "kept"),
    },
    "leaderboard": {
        ".0 ± 3.5": ("dir50", "", "pfedgate", "local", "kept", "kept"),
        "4.5 ± 5.7": ("mix", "", "fedavg", "fedavg-ft", "received-shift-100", "trained-shift-100"),
    },
    "pa3dfl": {"2.7 ± 5.9": ("fmnist-small", "", "local-narrow", "local-fine", "trained", "trained")},
    "pfedgate": {
        "3.4 ± 5.0": ("cifar10", "", "fedavg-ft-5", "local", "trained", "trained"),
        "3.8 ± 5.1": ("cifar10", "", "fedavg-ft-5", "lg-fedavg", "trained", "trained"),
        "9.5 ± 5.7": ("cifar10", "", "lg-fedavg", "s1", "received", "received"),
        "3.9 ± 6.2": ("cifar10", "", "s1", "fedavg-ft-5", "received", "received"),
        "4.9 ± 6.0": ("cifar10", "", "s1", "fedem", "received", "received"),
        "6.0 ± 8.3": ("partial", "", "s1", "fedavg", "received", "received"),
        "4.3 ± 4.5": ("ablations", "", "s5-slow-gate", "s5-no-sigmoid", "trained", "trained"),
    },
    "privacy": {
        "2.7 ± 1.4": ("fmnist50", "", "fedpse", "fedpse-clip", "kept", "kept"),
        "3.3 ± 2.9": ("fmnist50", "", "fedstc", "fedstc-clip", "kept", "kept"),
        "1.8 ± 1.2": ("fmnist50", "", "fedpse", "fedpse-clip", "trained", "trained"),
        "4.3 ± 2.7": ("fmnist50", "", "fedstc", "fedstc-clip", "trained", "trained"),
        ".9 ± 1.2": ("fmnist50", "", "fedpse", "fedpse-clip", "received", "received"),
        ".7 ± 3.3": ("fmnist50", "", "fedstc", "fedstc-clip", "received", "received"),
        "3.2 ± 2.8": ("fmnist50", "", "fedpse", "local", "trained", "trained"),
        "6.0 ± 3.0": ("fmnist50", "", "local", "fedstc-clip", "trained", "trained"),
    },
    "subfedavg": {
        ".26 ± .42": ("mnist-20", "", "un-50", "un-70", "kept", "kept"),
        "2.2 ± 1.5": ("cifar10-20", "", "hy-50", "hy-50-open", "trained", "trained"),
        ".13 ± .13": ("mnist-20", "", "hy-50", "hy-50-open", "kept", "kept"),
    },
}


def test_differences_in_the_text_are_those_of_the_data():
    """95 % intervals over clients, in points."""
    for page, claims in DIFFERENCES.items():
        groups: dict[tuple[str, str, str], Rows] = {}
        for row in rows(page):
            groups.setdefault((row["block"], row["cell"], row["variant"]), []).append(row)
        for text, (block, cell, ours, theirs, view, other) in claims.items():
            found = paired(by_seed(groups[block, cell, ours], view), by_seed(groups[block, cell, theirs], other))
            assert interval(found.mean, found.spread, text) == text, (page, text)


def interval(mean: float, half: float, like: str) -> str:
    """Return both in points, with as many places as ``like``."""
    places = len(like.partition(" ")[0].partition(".")[2])
    return " ± ".join(plain(f"{100 * value:.{places}f}") for value in (mean, half))


# computed in test_results_computed.py or test_results_tables.py
COMPUTED = {
    "dmpfl": {".858", ".73", ".65", ".22", ".773", ".792"},  # test_results_tables
    "fedpse": {".995", "11.45"},
    "leaderboard": {"7.6 ± 2.6"},
    "pa3dfl": {"1.5", ".89"},
    "pfedgate": {".11", "97.3", "88.9", "24.9"},
    "subfedavg": {"3.2 ± 2.6", ".2 ± 1.1", "47.6", ".163 ± .162"},
}


@pytest.mark.parametrize("page", PAGES)
def test_figures_in_the_text_are_in_a_table_or_accounted_for(page):
    prose, tables = split(page)
    pairs = {(float(mean), float(spread)) for mean, spread in WITH_INTERVAL.findall(tables)}
    known = {*DIFFERENCES.get(page, ()), *COMPUTED.get(page, ())}
    for match in WITH_INTERVAL.finditer(prose):
        text = f"{match[1]} ± {match[2]}"
        assert text in known or (float(match[1]), float(match[2])) in pairs, (page, near(prose, match))
    there, known = shown_in(tables), {*GIVEN[page], *COMPUTED.get(page, ())}
    rest = WITH_INTERVAL.sub(" ", prose)
    for match in DECIMAL.finditer(rest):
        assert match[0] in known or there(match[0]), (page, near(rest, match))


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_is_accounted_for_that_the_text_does_not_have(page):
    prose, _ = split(page)
    pairs = {f"{mean} ± {spread}" for mean, spread in WITH_INTERVAL.findall(prose)}
    there = pairs | set(DECIMAL.findall(WITH_INTERVAL.sub(" ", prose)))
    assert {*GIVEN[page], *DIFFERENCES.get(page, ()), *COMPUTED.get(page, ())} <= there


def near(text: str, match: re.Match[str]) -> str:
    return text[max(0, match.start() - 50) : match.end() + 20]
