"""Splits each client's rows into train, validation and test rows.

Row numbers refer to the whole source: training rows first, then the source's own test rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import Index, Labels, Source
from sepal.data.partition import Rule, able, deal, deal_by_person, people
from sepal.data.sampling import draw_by_class, round_quotas
from sepal.data.spec import DataSpec
from sepal.errors import DataError
from sepal.rng import derive

# For sources without a test part, if split.test-fraction is 0: DM-PFL A.1.3.
FALLBACK_TEST_FRACTION = 0.25


class Parts(NamedTuple):
    """One client's rows, each array sorted int64; the three are disjoint."""

    train: Index
    validation: Index
    test: Index


def split(spec: DataSpec, source: Source) -> list[Parts]:
    """Return every client's rows.

    Raises:
        DataError: A client would have no training or test data, or the keys do not fit the source.
    """
    if spec.partition.name == "auto":
        spec = replace(spec, partition=spec.partition.model_copy(update={"name": source.info.partition}))
    own_test = spec.split.test_fraction == 0 and source.train_count < len(source.y)
    if spec.split.by == "time" and own_test:
        raise DataError("split.by", "random where the source has a test part, or split.test-fraction above 0", "time")
    if spec.split.test_of_labels and not own_test:
        raise DataError("split.test-of-labels", "a source with a test part of its own", spec.dataset)
    rows, test_rows = _drawn(spec, source, own_test)
    natural = None if source.natural is None else source.natural[rows]
    dealt = [rows[part] for part in deal(_rule(spec), source.labels[rows], natural)]
    if own_test:
        tests = _following(spec, source, rows, test_rows, dealt)
    else:
        pairs = [_cut(spec, source.labels, part, client) for client, part in enumerate(dealt)]
        dealt, tests = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return [
        Parts(*_validation(spec, source.labels, train, client), test)
        for client, (train, test) in enumerate(zip(dealt, tests, strict=True))
    ]


def able_owners(spec: DataSpec, source: Source) -> tuple[NDArray[Any], int]:
    """Return the ids of the owners that can become clients, sorted, and the number of all owners."""
    return able(_rule(spec), _owners(spec, source))


def dealt_owners(spec: DataSpec, source: Source) -> NDArray[Any]:
    """Return the owners that the rule ``natural`` makes clients of, by the client's number.

    Raises:
        DataError: There are fewer than clients.
    """
    return people(_rule(spec), _owners(spec, source))


def _owners(spec: DataSpec, source: Source) -> NDArray[Any]:
    """Return the owner of each row that is dealt."""
    rows, _ = _drawn(spec, source, spec.split.test_fraction == 0 and source.train_count < len(source.y))
    return np.asarray(source.natural)[rows]


def _rule(spec: DataSpec, part: str = "all") -> Rule:
    return Rule(spec.partition, spec.clients, spec.data_seed, part)


def _drawn(spec: DataSpec, source: Source, own_test: bool) -> tuple[Index, Index]:
    """Return the rows to partition and the source's own test rows, sorted, after ``partition.subsample``.

    Both are drawn by class, so that a rule that splits sorted labels into chunks (lambda-mix) splits both at the same
    labels. Otherwise clients would be tested on classes that they do not train on.
    """
    rows = np.arange(source.train_count if own_test else len(source.y))
    tests = np.arange(source.train_count, len(source.y)) if own_test else np.empty(0, dtype=np.int64)
    wanted = spec.partition.subsample
    if wanted == 0:
        return rows, tests
    if wanted > len(rows):
        raise DataError("partition.subsample", f"at most {len(rows)} for {spec.dataset}", wanted)
    draw = derive(spec.data_seed, "subsample")
    kept = rows[draw_by_class(source.labels[rows], wanted, draw)]
    kept_tests = max(1, round(len(tests) * wanted / len(rows))) if own_test else 0
    return kept, tests[draw_by_class(source.labels[tests], kept_tests, draw)]


def _following(spec: DataSpec, source: Source, rows: Index, test_rows: Index, dealt: list[Index]) -> list[Index]:
    """Return test parts from the source's own test rows that match the train parts.

    IID and λ-mix: the same rule (FedPSE C.1). Natural: the same people. Otherwise: each class is distributed in
    proportion to the clients' training rows. With ``split.test-of-labels``: all test rows with the client's labels.
    """
    labels = source.labels[test_rows]
    if spec.split.test_of_labels:  # Sub-FedAvg 4.1
        tests = [test_rows[np.isin(labels, source.labels[part])] for part in dealt]
    elif spec.partition.name in ("iid", "lambda-mix"):
        tests = [test_rows[part] for part in deal(_rule(spec, "test"), labels)]
    elif spec.partition.name == "natural" and source.natural is not None:
        ids = people(_rule(spec), source.natural[rows])
        tests = [test_rows[part] for part in deal_by_person(ids, source.natural[test_rows])]
    else:
        tests = _in_proportion(spec, source, rows, test_rows, dealt)
    empty = [client for client, test in enumerate(tests) if len(test) == 0]
    if empty:
        raise DataError(
            "split.test-fraction", "above 0: the source's own test part has no rows for some clients", empty
        )
    return tests


def _in_proportion(spec: DataSpec, source: Source, rows: Index, test_rows: Index, dealt: list[Index]) -> list[Index]:
    """Distribute the test rows of each class by the clients' shares of that class; every client gets at least one row.

    Shares are relative to all training rows of the class, so the test rows of training rows that no client holds are
    left out.
    """
    classes = source.info.classes
    held = np.stack([np.bincount(source.labels[part], minlength=classes) for part in dealt])
    total = np.maximum(np.bincount(source.labels[rows], minlength=classes), 1)
    per_class = [
        derive(spec.data_seed, "test-rows", c).permutation(test_rows[source.labels[test_rows] == c])
        for c in range(classes)
    ]
    counts = np.stack([round_quotas(held[:, c] / total[c] * len(per_class[c])) for c in range(classes)], axis=1)
    for client in np.flatnonzero(counts.sum(axis=1) == 0):
        _give_one(counts, held, int(client), np.array([len(pool) for pool in per_class]))
    ends = np.cumsum(counts, axis=0)
    return [
        np.sort(np.concatenate([per_class[c][ends[i, c] - counts[i, c] : ends[i, c]] for c in range(classes)]))
        for i in range(len(dealt))
    ]


def _give_one(counts: Index, held: Index, client: int, available: Index) -> None:
    """Give a client without test rows one row of its most frequent class that has one to spare, in place."""
    for c in np.argsort(-held[client], kind="stable"):
        if held[client, c] == 0:
            return
        richest = int(np.argmax(counts[:, c]))
        if counts[:, c].sum() < available[c]:
            counts[client, c] += 1
            return
        if counts[richest].sum() > 1 and counts[richest, c] > 0:
            counts[richest, c] -= 1
            counts[client, c] += 1
            return


def _cut(spec: DataSpec, labels: Labels, part: Index, client: int) -> tuple[Index, Index]:
    """Split off ``split.test-fraction`` of a client's rows: (training part, test part), both non-empty."""
    if len(part) < 2:
        raise DataError("partition", "at least 2 examples per client, for train and test", f"client {client} with 1")
    fraction = spec.split.test_fraction or FALLBACK_TEST_FRACTION
    if spec.split.by == "time":
        return last_of_each_label(part, labels, fraction, f"client {client}")
    count = min(max(1, round(fraction * len(part))), len(part) - 1)
    order = derive(spec.data_seed, "split-test", client).permutation(part)
    return np.sort(order[count:]), np.sort(order[:count])


def _validation(spec: DataSpec, labels: Labels, part: Index, client: int) -> tuple[Index, Index]:
    """Split off ``split.validation`` of a client's training part: at least one row if above 0, and never all."""
    fraction = spec.split.validation
    if fraction > 0 and spec.split.by == "time":
        return last_of_each_label(part, labels, fraction, f"client {client}")
    count = min(max(1, round(fraction * len(part))), len(part) - 1) if fraction > 0 else 0
    order = derive(spec.data_seed, "split-validation", client).permutation(part)
    return np.sort(order[count:]), np.sort(order[:count])


def last_of_each_label(part: Index, labels: Labels, fraction: float, name: str) -> tuple[Index, Index]:
    """Split off the last rows of each label in the source's order: (rest, split-off part), both sorted.

    For sources whose rows are a person's recordings in order, where neighbours overlap: HAR's windows share 64 of
    their 128 readings with the next one. Remaining rows next to a row that is split off belong to neither part, so no
    reading is in both.

    Args:
        part: The client's rows, int64.
        labels: The source's labels, (rows of the source,).
        fraction: Of the rows of each label, rounded; at least one row in all.
        name: The client, for the error.

    Raises:
        DataError: Nothing is left over.
    """
    rows = np.sort(part)
    groups = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    ends = [group[len(group) - round(fraction * len(group)) :] for group in groups]
    held = np.sort(np.concatenate(ends)) if any(map(len, ends)) else rows[-1:]
    rest = rows[~np.isin(rows, np.concatenate([held - 1, held, held + 1]))]
    if not len(rest):
        raise DataError("split.by", "random for a client with so few examples", f"time; {name} has {len(rows)}")
    return rest, held
