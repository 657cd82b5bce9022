"""The list of mutants stays applicable; ``make -C tools mutants`` runs it."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_to_the_code_and_names_a_test(mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    file, _, test = mutant.tests.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


def test_names_of_mutants_are_unique():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
