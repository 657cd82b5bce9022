"""``make -C referee stability``: what counts as a collapse, and as a difference between kinds of arithmetic."""

from __future__ import annotations

import pytest

from referee.stability import pages
from referee.stability.runs import KINDS, Row, kinds_here, run
from referee.stability.verdicts import cells, established


def rows(method="fedpse", dataset="digits", **by_kind):
    return [
        Row(dataset, method, kind, seed, 0.1, {}, value, 0, 0, 1.0, "abc", "a processor")
        for kind, values in by_kind.items()
        for seed, value in enumerate(values)
    ]


def test_less_than_two_thirds_of_the_best_run_is_a_collapse():
    (cell,) = cells(rows(avx2=[0.9, 0.61, 0.59], default=[0.9, None, 0.9]))
    assert [(row.kind, row.seed) for row in cell.collapsed()] == [("avx2", 2), ("default", 1)]


def test_the_two_spreads_by_hand():
    """Over seeds: SD of (.8, .9) = .0707 in both kinds. Over kinds: SD of (.8, .82) = .0141 and of (.9, .92)."""
    (cell,) = cells(rows(avx2=[0.8, 0.9], default=[0.82, 0.92]))
    assert cell.over_seeds() == pytest.approx(0.0707, abs=1e-4)
    assert cell.over_kinds() == pytest.approx(0.0141, abs=1e-4)
    (difference,) = cell.differences()
    assert difference.mean == pytest.approx(-0.02)
    assert difference.largest == pytest.approx(0.02)
    (single,) = cells(rows(avx2=[0.8]))
    assert (single.over_seeds(), single.over_kinds(), single.differences()) == (None, None, [])


def test_a_difference_must_be_above_a_point_and_established_over_all_cells():
    """Gaps of .02 ± .001 are established; of .005 they are, too, but below a point; one seed in five moves nothing."""
    even = [0.9, 0.901, 0.899, 0.9, 0.9]
    far = rows("fedpse", avx2=even, default=[value - 0.02 + 0.001 * (n % 2) for n, value in enumerate(even)])
    near = rows("fedavg", avx2=even, default=[value - 0.005 + 0.0001 * (n % 2) for n, value in enumerate(even)])
    one = rows("dmpfl", avx2=even, default=[0.5, *even[1:]])
    assert list(established(cells([*far, *near, *one]))) == [("digits", "fedpse")]


def test_kinds_are_those_that_the_processor_has(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("flags : fpu sse avx2\n")
    assert kinds_here(file) == ["default", "avx2"]
    file.write_text("flags : fpu sse avx2 avx512f\n")
    assert kinds_here(file) == list(KINDS)


def test_a_run_under_another_arithmetic_is_refused(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    with pytest.raises(RuntimeError, match="avx2: expected the variables"):
        run("digits", "fedavg", "avx2", 0, {}, "abc")


def test_the_page_follows_from_the_rows():
    stored = pages.read_rows()
    assert not stored or pages.PAGE.read_text() == pages.markdown(stored), "run `make -C referee stability`"
