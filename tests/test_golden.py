"""Every method's final weights, states and bytes, so that a change of structure is known to be one of structure only.

The figures hold on any processor; ``tests/golden/summaries.py`` says how near they must be. Where a change of a
method's results is meant, ``python -m tests.golden METHOD`` writes its file anew. Bits are compared within one machine:
between engines, after kills, with the same seed.
"""

from __future__ import annotations

import pytest

from sepal.config.base import AUTO, kebab
from sepal.strategies import registry
from tests.golden.cases import CASES, SEEDS
from tests.golden.summaries import METHODS, differences, read, summary, written


@pytest.mark.parametrize(("method", "case"), [(method, case) for method in CASES for case in CASES[method]])
def test_final_weights_states_and_bytes_are_those_written(method, case):
    if not written(method).exists():
        pytest.fail(f"{method} has no golden file; write it: python -m tests.golden {method}")
    stored = read(method).get(case, {})
    differences_found = []
    for seed in SEEDS:
        expected = stored.get(str(seed))
        if expected is None:
            pytest.fail(f"{written(method).name} lacks {case}.{seed}; write it anew: python -m tests.golden {method}")
        lines = differences(expected, summary(method, case, seed))
        if not lines:
            return
        differences_found += [f"seed {seed}: {line}" for line in lines]
    pytest.fail("\n".join([*differences_found, f"if this change is meant: python -m tests.golden {method}"]))


@pytest.mark.parametrize("method", CASES)
def test_no_case_has_a_rate_that_a_calibration_may_change(method):
    fields = registry.get(method).hyper.model_fields
    auto = {info.alias or kebab(name) for name, info in fields.items() if info.default == AUTO}
    for case in CASES[method].values():
        assert not {f"{method}.{key}" for key in auto} - set(case)


def test_every_golden_file_and_case_is_of_a_registered_method():
    for file in METHODS.glob("*.toml"):
        assert file.stem in CASES, f"{file.name}: no method of this name; delete the file"
        assert set(read(file.stem)) == set(CASES[file.stem]), f"write it anew: python -m tests.golden {file.stem}"
