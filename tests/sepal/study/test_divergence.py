"""The line about diverged trainings counts them over the runs of a variant."""

from sepal.study.divergence import divergence


def test_diverged_trainings_and_repeated_rounds_are_summed_over_runs():
    runs = [{"diverged": 3, "undone": 1}, {"diverged": 0, "undone": 0}, {"diverged": 9, "undone": 2}, {}]
    words = divergence(runs)
    assert words.startswith("12 trainings of clients diverged in 2 of 4 runs, and 3 rounds were repeated")


def test_runs_without_any_say_nothing():
    assert divergence([{"diverged": 0, "undone": 0}, {}]) == ""
    assert divergence([]) == ""
