"""A run that is no better than the most frequent label gets a warning."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sepal.data import ClientData, Examples
from sepal.study.majority import majority, warning


class Data:
    """Two clients: always answering 1 is right in half of the test data of the first, and in all of the second."""

    def client(self, number, clients, name):
        labels = [([1, 1, 0], [1, 2]), ([1, 0, 1], [1, 1, 1])][number]
        train, test = (Examples(np.zeros((len(y), 1), np.float32), np.array(y, np.int64)) for y in labels)
        return ClientData(train, train, test)


def test_the_mean_over_clients_of_the_most_frequent_labels_share():
    assert majority(Data(), 2) == 0.75


@pytest.mark.parametrize(("mean", "warned"), [(0.74, True), (0.75, True), (0.76, False)])
def test_a_run_that_is_no_better_is_warned_of(mean, warned):
    assembly = SimpleNamespace(
        data=Data(),
        method=SimpleNamespace(deployed="kept"),
        task=SimpleNamespace(config=SimpleNamespace(clients=2)),
    )
    words = warning(assembly, {"accuracy": {"kept": {"mean": mean}, "received": {"mean": 0.1}}})
    assert bool(words) == warned
    if warned:
        assert words.startswith(f"{100 * mean:.1f} % (kept) is not above 75.0 %")
    assert not warning(assembly, {"accuracy": {"kept": None}})
