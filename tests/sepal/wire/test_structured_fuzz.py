"""Uploads changed field by field, always the same ones; ``python -m tests.fuzz.structured`` makes more."""

from __future__ import annotations

from sepal.wire import IndexCoding, ValueCoding
from tests.fuzz import structured


def test_whatever_is_changed_in_an_upload_it_is_refused_or_within_its_schema():
    verdicts, accepted = structured.run(seed=0, first=0, count=4_000)
    assert verdicts["accepted"] > 100, "changes reach what is valid"
    assert len([name for name in verdicts if name != "accepted"]) > 20, "and many reasons to refuse"
    assert len(accepted) == len(structured.CHANGES)


def test_the_valid_uploads_have_every_coding():
    expected = {f"index {coding.value}" for coding in IndexCoding} | {
        f"values {coding.value}" for coding in ValueCoding
    }
    assert structured.codings(0, 500) == expected
