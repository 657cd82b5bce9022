"""Splits each client's rows into train, validation and test rows.

Row numbers refer to the whole source: training rows first, then the source's own validation rows and test rows. A
client may be without test or validation rows; :mod:`sepal.data.left_out` counts such clients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import Index, Labels, Source
from sepal.data.partition import (
    Rule,
    able,
    deal,
    deal_by_person,
    deal_like,
    domain_clients,
    people,
    within_domain,
)
from sepal.data.sampling import draw_by_class, round_quotas
from sepal.data.spec import DataSpec
from sepal.errors import DataError
from sepal.rng import derive

# For sources without a test part, if split.test-fraction is 0: DM-PFL A.1.3.
FALLBACK_TEST_FRACTION = 0.25


class ClientRows(NamedTuple):
    """One client's rows, each array sorted int64; the three are disjoint."""

    train: Index
    validation: Index
    test: Index


def split(spec: DataSpec, source: Source) -> list[ClientRows]:
    """Return every client's rows.

    Raises:
        DataError: A client would have no training data, no client a test part, or the keys do not fit the source.
    """
    if spec.partition.name == "auto":
        spec = replace(spec, partition=spec.partition.model_copy(update={"name": source.info.partition}))
    own_test = has_own_test(spec, source)
    if spec.split.by == "time" and own_test:
        raise DataError("split.by", "random where the source has a test part, or split.test-fraction above 0", "time")
    if spec.split.test_of_labels and not own_test:
        raise DataError("split.test-of-labels", "a source with a test part of its own", spec.dataset)
    if source.info.overlap and spec.partition.name != "natural":  # neighbours would be with several clients
        expected = f"natural for {spec.dataset}, whose rows overlap with the next {source.info.overlap} of their owner"
        raise DataError("partition.name", expected, spec.partition.name)
    rows, validation_rows, test_rows = _drawn(spec, source, own_test)
    natural = None if source.natural is None else source.natural[rows]
    dealt = whole = [rows[part] for part in deal(_rule(spec), source.labels[rows], natural)]
    if own_test:
        tests = _following(spec, source, rows, test_rows, dealt, "test")
    else:
        pairs = [_cut(spec, source, part, client) for client, part in enumerate(dealt)]
        dealt, tests = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if not any(map(len, tests)):
        raise DataError("partition", "test examples for a client, of two or more examples of its own", "none for any")
    if len(validation_rows):
        validation_parts = _following(spec, source, rows, validation_rows, whole, "validation")
        return [ClientRows(*parts) for parts in zip(dealt, validation_parts, tests, strict=True)]
    return [
        ClientRows(*_validation(spec, source, train, client), test)
        for client, (train, test) in enumerate(zip(dealt, tests, strict=True))
    ]


def has_own_test(spec: DataSpec, source: Source) -> bool:
    """Return whether clients' test parts are of the source's own one."""
    return spec.split.test_fraction == 0 and source.test_start < len(source.y)


def able_owners(spec: DataSpec, source: Source) -> tuple[NDArray[Any], int]:
    """Return the ids of the owners that can become clients, sorted, and the number of all owners."""
    return able(_rule(spec), _owners(spec, source))


def dealt_owners(spec: DataSpec, source: Source) -> NDArray[Any]:
    """Return the owners that the rule ``natural`` makes clients of, by the client's number.

    Raises:
        DataError: There are fewer than clients.
    """
    return people(_rule(spec), _owners(spec, source))


def client_domains(spec: DataSpec, source: Source) -> tuple[int, ...]:
    """Return the number of each client's domain, of the sorted ones from 0, by the rule ``domain``.

    Raises:
        DataError: The source names no domains, or there are more of them than clients.
    """
    owners = None if source.natural is None else _owners(spec, source)
    count = len(domain_clients(_rule(spec), owners))
    return tuple(client % count for client in range(spec.clients))


def _owners(spec: DataSpec, source: Source) -> NDArray[Any]:
    """Return the owner of each row that is dealt."""
    rows, *_ = _drawn(spec, source, has_own_test(spec, source))
    return np.asarray(source.natural)[rows]


def _rule(spec: DataSpec, part: str = "all") -> Rule:
    return Rule(spec.partition, spec.clients, spec.data_seed, part)


def _drawn(spec: DataSpec, source: Source, own_test: bool) -> tuple[Index, Index, Index]:
    """Return the rows to partition, and the own validation and test rows, sorted, after ``partition.subsample``.

    All are drawn by class, so that a rule that splits sorted labels into chunks (lambda-mix) splits them at the same
    labels. Otherwise clients would be tested on classes that they do not train on.
    """
    everything = np.arange(len(source.y))
    rows, validation, tests = np.split(everything, [source.train_count, source.test_start])
    if not own_test:
        rows, tests = np.concatenate([rows, tests]), tests[:0]
    if not spec.split.validation:
        validation = validation[:0]
    size = spec.partition.subsample
    if size == 0:
        return rows, validation, tests
    if size > len(rows):
        raise DataError("partition.subsample", f"at most {len(rows)} for {spec.dataset}", size)
    draw = derive(spec.data_seed, "subsample")
    kept = rows[draw_by_class(source.labels[rows], size, draw)]
    kept_tests = max(1, round(len(tests) * size / len(rows))) if own_test else 0
    tests = tests[draw_by_class(source.labels[tests], kept_tests, draw)]
    kept_validation = round(len(validation) * size / len(rows))
    return kept, validation[draw_by_class(source.labels[validation], kept_validation, draw)], tests


def _following(
    spec: DataSpec, source: Source, rows: Index, own_rows: Index, dealt: list[Index], part: str
) -> list[Index]:
    """Return test or validation parts (``part``) from the source's own rows for it that match the train parts.

    IID and λ-mix: the same rule (FedPSE C.1). Natural: the same people. Quantity skew: at random, in proportion to the
    clients' training rows. Domain: of each domain, by the rule within. Otherwise: each class is distributed in
    proportion to the clients' training rows, as are fewer validation rows than clients. With ``split.test-of-labels``:
    all test rows with the client's labels.
    """
    labels, rule = source.labels[own_rows], _rule(spec, part)
    if part == "test" and spec.split.test_of_labels:  # Sub-FedAvg 4.1
        return [own_rows[np.isin(labels, source.labels[client_rows])] for client_rows in dealt]
    if spec.partition.name == "natural" and source.natural is not None:
        ids = people(_rule(spec), source.natural[rows])
        places = deal_by_person(ids, source.natural[own_rows])
    elif spec.partition.name == "quantity-skew":
        places = deal_like(rule, list(map(len, dealt)), len(own_rows))
    elif spec.partition.name == "domain" and source.natural is not None:
        return _following_domains(spec, source, rows, own_rows, dealt, part)
    elif spec.partition.name in ("iid", "lambda-mix") and (part == "test" or len(own_rows) >= spec.clients):
        places = deal(rule, labels)
    else:
        return _in_proportion(spec, source, rows, own_rows, dealt, f"{part}-rows")
    return [own_rows[client_places] for client_places in places]


def _following_domains(
    spec: DataSpec, source: Source, rows: Index, own_rows: Index, dealt: list[Index], part: str
) -> list[Index]:
    """Return parts from the own rows of each client's domain; a domain without training rows is left out."""
    natural = np.asarray(source.natural)
    followers = [own_rows[:0]] * len(dealt)
    for number, (domain, clients) in enumerate(domain_clients(_rule(spec), natural[rows])):
        of_domain = own_rows[natural[own_rows] == domain]
        trained = [dealt[client] for client in clients]
        if spec.partition.within == "iid":
            rule = within_domain(_rule(spec, part), number, len(clients))
            following = [of_domain[places] for places in deal_like(rule, list(map(len, trained)), len(of_domain))]
        else:
            domain_rows = rows[natural[rows] == domain]
            following = _in_proportion(spec, source, domain_rows, of_domain, trained, f"{part}-rows, domain {number}")
        for client, client_rows in zip(clients, following, strict=True):
            followers[client] = client_rows
    return followers


def _in_proportion(
    spec: DataSpec, source: Source, rows: Index, held_out: Index, dealt: list[Index], purpose: str
) -> list[Index]:
    """Distribute held-out rows of each class by the clients' shares of that class; every client gets one row if it can.

    Shares are relative to all training rows of the class, so the rows that correspond to training rows that no client
    holds are left out.
    """
    classes = source.info.classes
    label_counts = np.stack([np.bincount(source.labels[part], minlength=classes) for part in dealt])
    total = np.maximum(np.bincount(source.labels[rows], minlength=classes), 1)
    per_class = [
        derive(spec.data_seed, purpose, c).permutation(held_out[source.labels[held_out] == c]) for c in range(classes)
    ]
    counts = np.stack([round_quotas(label_counts[:, c] / total[c] * len(per_class[c])) for c in range(classes)], axis=1)
    for client in np.flatnonzero(counts.sum(axis=1) == 0):
        _give_one(counts, label_counts, int(client), np.array([len(pool) for pool in per_class]))
    ends = np.cumsum(counts, axis=0)
    return [
        np.sort(np.concatenate([per_class[c][ends[i, c] - counts[i, c] : ends[i, c]] for c in range(classes)]))
        for i in range(len(dealt))
    ]


def _give_one(counts: Index, label_counts: Index, client: int, available: Index) -> None:
    """Give a client without test rows one row of its most frequent class that has one to spare, in place."""
    for c in np.argsort(-label_counts[client], kind="stable"):
        if label_counts[client, c] == 0:
            return
        richest = int(np.argmax(counts[:, c]))
        if counts[:, c].sum() < available[c]:
            counts[client, c] += 1
            return
        if counts[richest].sum() > 1 and counts[richest, c] > 0:
            counts[richest, c] -= 1
            counts[client, c] += 1
            return


def _cut(spec: DataSpec, source: Source, part: Index, client: int) -> tuple[Index, Index]:
    """Split off ``split.test-fraction`` of a client's rows: (training part, test part); a single row is trained on."""
    if len(part) < 2:
        return part, part[:0]
    fraction = spec.split.test_fraction or FALLBACK_TEST_FRACTION
    if source.info.overlap:
        return end_of_rows(part, fraction, source.info.overlap)
    if spec.split.by == "time":
        return last_of_each_label(part, source.labels, fraction)
    count = min(max(1, round(fraction * len(part))), len(part) - 1)
    order = derive(spec.data_seed, "split-test", client).permutation(part)
    return np.sort(order[count:]), np.sort(order[:count])


def _validation(spec: DataSpec, source: Source, part: Index, client: int) -> tuple[Index, Index]:
    """Split off ``split.validation`` of a client's training part: at least one row if above 0, and never all."""
    fraction = spec.split.validation
    if fraction > 0 and source.info.overlap:
        return end_of_rows(part, fraction, source.info.overlap)
    if fraction > 0 and spec.split.by == "time":
        return last_of_each_label(part, source.labels, fraction)
    count = min(max(1, round(fraction * len(part))), len(part) - 1) if fraction > 0 else 0
    order = derive(spec.data_seed, "split-validation", client).permutation(part)
    return np.sort(order[count:]), np.sort(order[:count])


def end_of_rows(part: Index, fraction: float, gap: int) -> tuple[Index, Index]:
    """Split off the last rows of one owner: (rest, split-off part), both sorted; ``gap`` rows between are in neither.

    Nothing is split off if nothing would be left over. As LEAF's Shakespeare (Caldas et al. 2018, ``split_data.py``),
    whose test part begins 79 windows after the training part.

    Args:
        part: The owner's rows, int64. Rows that ``partition.subsample`` has left out make the gap only wider.
        fraction: Of the rows, rounded; at least one row.
        gap: :attr:`sepal.data.examples.DatasetInfo.overlap`.
    """
    rows = np.sort(part)
    count = max(1, round(fraction * len(rows)))
    rest = rows[: max(0, len(rows) - count - gap)]
    return (rest, rows[len(rows) - count :]) if len(rest) else (rows, rows[:0])


def last_of_each_label(part: Index, labels: Labels, fraction: float) -> tuple[Index, Index]:
    """Split off the last rows of each label in the source's order: (rest, split-off part), both sorted.

    Nothing is split off if nothing would be left over.

    For sources whose rows are a person's recordings in order, where neighbours overlap: HAR's windows share 64 of
    their 128 readings with the next one. Remaining rows next to a row that is split off belong to neither part, so no
    reading is in both.

    Args:
        part: The client's rows, int64.
        labels: The source's labels, (rows of the source,).
        fraction: Of the rows of each label, rounded; at least one row in all.
    """
    rows = np.sort(part)
    groups = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    ends = [group[len(group) - round(fraction * len(group)) :] for group in groups]
    held_out = np.sort(np.concatenate(ends)) if any(map(len, ends)) else rows[-1:]
    rest = rows[~np.isin(rows, np.concatenate([held_out - 1, held_out, held_out + 1]))]
    return (rest, held_out) if len(rest) else (rows, rows[:0])
