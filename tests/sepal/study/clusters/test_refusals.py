"""When what Slurm has refused is tried again; time is counted in looks."""

from __future__ import annotations

from sepal.study.clusters.refusals import LONGEST, Refusals


def looks_with_a_try(refusals: Refusals, words: str, looks: int) -> list[int]:
    tried = []
    for look in range(1, looks + 1):
        refusals.look()
        if refusals.is_due(words):
            tried.append(look)
            refusals.add(words)
    return tried


def test_pauses_double_up_to_the_longest():
    """1, 2, 4, … 64 looks, and 64 again: tries at looks 1, 3, 7, … 2ⁿ - 1, up to 127, then 191 and 255."""
    refusals = Refusals()
    assert [refusals.add("no room") for _ in range(3)] == [True, False, False]
    assert refusals.tries("no room") == 1, "three at once"
    assert looks_with_a_try(refusals, "no room", 255) == [1, 3, 7, 15, 31, 63, 127, 191, 255]
    assert LONGEST == 64


def test_other_words_have_pauses_of_their_own_and_other_numbers_are_the_same_words():
    refusals = Refusals()
    refusals.add("job 7: no room")
    assert not refusals.add("job 8: no room")
    assert refusals.is_due("no such partition")
    assert not refusals.is_due("job 9: no room")


def test_after_one_is_taken_or_a_job_has_ended_pauses_are_short_again_and_nothing_is_said_twice():
    refusals = Refusals()
    for begin_again in (lambda: refusals.end("no room"), refusals.hasten):
        refusals.add("no room")
        looks_with_a_try(refusals, "no room", 63)
        begin_again()
        assert not refusals.add("no room"), "it has been said"
        assert refusals.tries("no room") == 1
        assert looks_with_a_try(refusals, "no room", 7) == [1, 3, 7]
