"""The page of claims: each method names code by file and line, a test that exists, and a stored run."""

from __future__ import annotations

import re

from referee.checkout import ROOT
from referee.claims.__main__ import ROWS, claims, configs_of, lines, row_of
from sepal.strategies import registry
from sepal.study.record import read


def test_every_claim_has_its_sources_its_test_and_its_row():
    stored, by_method = [row.config for row in read(ROWS)], claims()
    for method, claim in by_method.items():
        assert (method in registry.METHODS) == bool(claim["ours"])
        assert re.fullmatch(r"[0-9a-f]{7}", claim["commit"])
        assert all(re.fullmatch(r"\S+\.py:\d+(-\d+)?", place) for place in claim["at"])
        if claim["ours"]:
            path, _, name = claim["test"].partition("::")
            assert f"def {name}(" in (ROOT / path).read_text()
            assert configs_of(method, claim)
            assert all(config in stored for config in configs_of(method, claim).values())
    assert [line["method"] for line in lines(read(ROWS))] == list(by_method)


def test_what_was_not_the_authors_release_is_named_as_such():
    for line, claim in zip(lines(read(ROWS)), claims().values(), strict=True):
        assert line["where"].startswith("not the authors' release") == (not claim["release"])
        assert (line["ours"] == "not in Sepal") == (not claim["ours"])


def test_each_method_has_a_run_whose_model_learns():
    """Bytes of a model that stays as it was say nothing of what a method sends."""
    rows, by_method = read(ROWS), claims()
    for method, claim in by_method.items():
        measured = [row_of(rows, config) for config in configs_of(method, claim).values()]
        assert not measured or max(row.validation[row.deployed] for row in measured) > 0.5
    assert len(rows) == sum(len(configs_of(*item)) for item in by_method.items())
