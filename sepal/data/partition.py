"""Partitions the rows of a source over clients, before the split into train, validation and test.

Partitioners of flwr-datasets are used where they implement the rule. They get the labels in a seeded order, so the
result does not depend on the order of the published files. Results are checked and sorted by row.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.config import PartitionSettings
from sepal.data.examples import Index, Labels
from sepal.data.sampling import round_quotas
from sepal.errors import DataError
from sepal.rng import derive, derive_seed

_DIRICHLET_DRAWS = 200  # draws before giving up on min-examples
CLASSES_DRAWN = 1_000_000  # of all these draws together: each class takes some 20 µs, and a planted table has many
_TWO_CLASS_TOLERANCE = 0.05  # accepted deviation of the large clients' share from .5


class Rule(NamedTuple):
    """A partition rule for a number of clients.

    Attributes:
        settings: The keys ``partition.*``.
        clients: Number of clients.
        seed: Seed of the partition.
        part: The part of the source that is partitioned, for example ``test``; each part has independent draws.
    """

    settings: PartitionSettings
    clients: int
    seed: int
    part: str = "all"


def deal(rule: Rule, labels: Labels, natural: NDArray[Any] | None = None) -> list[Index]:
    """Return the sorted rows of each client; rows are disjoint, and no client is empty.

    Args:
        rule: The rule; the result depends on it and on the labels (or people) only.
        labels: int64 (n,).
        natural: The person of each row (n,), for the rule ``natural``; the domain, for the rule ``domain``.

    Raises:
        DataError: The rule leaves a client without data.
    """
    if rule.clients > len(labels):
        raise DataError("clients", f"at most as many as examples ({len(labels)})", rule.clients)
    if rule.settings.name == "natural":
        return deal_by_person(people(rule, natural), natural)
    if rule.settings.name == "domain":
        return _by_domain(rule, labels, natural)
    if rule.settings.name == "dirichlet":
        return _dirichlet(rule, labels)
    if rule.settings.name == "quantity-skew":
        return _checked(_cut_at(rule, quantity_sizes(rule, len(labels))), len(labels))
    parts = _dealt(rule, labels)
    if rule.settings.name == "two-class":
        _check_two_class(parts, labels)
    return _checked(parts, len(labels))


def people(rule: Rule, natural: NDArray[Any] | None) -> NDArray[Any]:
    """Return the sorted ids of the people that become clients; drawn at random if there are more people than clients.

    Raises:
        DataError: The source has no people, or too few of them have ``partition.min-examples`` examples.
    """
    if natural is None:
        raise DataError("partition.name", "a rule other than natural, for a data set that names no people", "natural")
    enough = able(rule, natural)[0]
    if len(enough) < rule.clients:
        available = f"{len(enough)} people with at least {rule.settings.min_examples} examples"
        raise DataError(
            "clients", f"{len(enough)} or less: there are {available} (partition.name = natural)", rule.clients
        )
    return np.sort(derive(rule.seed, "partition-people").permutation(enough)[: rule.clients])


def able(rule: Rule, natural: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Return the sorted ids of the people with ``partition.min-examples`` examples, and how many people there are."""
    ids, counts = np.unique(natural, return_counts=True)
    return ids[counts >= rule.settings.min_examples], len(ids)


def deal_by_person(ids: NDArray[Any], natural: NDArray[Any] | None) -> list[Index]:
    """Return the rows of each person in ``ids``, by flwr-datasets' NaturalIdPartitioner; may be empty."""
    from datasets import Dataset
    from flwr_datasets.partitioner import NaturalIdPartitioner

    natural = np.asarray(natural)
    rows = np.flatnonzero(np.isin(natural, ids))
    partitioner = NaturalIdPartitioner(partition_by="person")
    partitioner.dataset = Dataset.from_dict({"row": rows, "person": natural[rows].astype(str)})
    with contextlib.redirect_stderr(io.StringIO()):  # it draws a progress bar
        numbers = {person: i for i in range(partitioner.num_partitions) for person in [_person(partitioner, i)]}
        return [
            np.sort(_rows(partitioner, numbers[str(person)])) if str(person) in numbers else np.empty(0, dtype=np.int64)
            for person in ids
        ]


def _person(partitioner: Any, number: int) -> str:
    return str(partitioner.partition_id_to_natural_id[number])


def _rows(partitioner: Any, number: int) -> Index:
    return np.asarray(partitioner.load_partition(number).with_format("numpy")["row"][:], dtype=np.int64)


def domain_clients(rule: Rule, natural: NDArray[Any] | None) -> list[tuple[Any, range]]:
    """Return each domain, sorted, with the numbers of its clients: client k has domain k mod (number of domains).

    Raises:
        DataError: The source names no domains, or there are more of them than clients.
    """
    if natural is None:
        expected = "a rule other than domain, for a data set without a column of domains (folder.person, hf.person)"
        raise DataError("partition.name", expected, "domain")
    names = np.unique(natural)
    if len(names) > rule.clients:
        expected = f"at least {len(names)}, one for each domain (partition.name = domain)"
        raise DataError("clients", expected, rule.clients)
    return [(name, range(number, rule.clients, len(names))) for number, name in enumerate(names)]


def within_domain(rule: Rule, number: int, clients: int) -> Rule:
    """Return the rule by which the examples of domain ``number`` are dealt to its clients."""
    settings = rule.settings.model_copy(update={"name": rule.settings.within})
    return Rule(settings, clients, rule.seed, f"{rule.part}, domain {number}")


def _by_domain(rule: Rule, labels: Labels, natural: NDArray[Any] | None) -> list[Index]:
    """Deal the examples of each domain to its clients."""
    parts = [np.empty(0, np.int64)] * rule.clients
    for number, (domain, clients) in enumerate(domain_clients(rule, natural)):
        rows = np.flatnonzero(np.asarray(natural) == domain)
        if len(rows) < len(clients):
            expected = "fewer: each domain needs an example for each of its clients (partition.name = domain)"
            raise DataError("clients", expected, f"{rule.clients}, {len(clients)} of a domain with {len(rows)}")
        dealt = deal(within_domain(rule, number, len(clients)), labels[rows])
        for client, part in zip(clients, dealt, strict=True):
            parts[client] = rows[part]
    return _checked(parts, len(labels))


def quantity_sizes(rule: Rule, count: int) -> Index:
    """Return how many of ``count`` examples each client has: ``min-examples`` each, and the rest by q ~ Dir(β).

    Li et al., ICDE 2022 (arXiv 2102.02079), redraw q until each client has ten examples. For β = .5, ten clients and
    6,000 examples that discards two of three draws, so the shares are no longer those of Dir(β), and at β = .1 it does
    not end.

    Raises:
        DataError: There are not enough examples.
    """
    least = rule.settings.min_examples
    if least * rule.clients > count:
        expected = f"at most {count // rule.clients}: {count} examples for {rule.clients} clients"
        raise DataError("partition.min-examples", expected, least)
    return _sizes(quantity_shares(rule), count, least)


def quantity_shares(rule: Rule) -> NDArray[np.float64]:
    """Return q ~ Dir(β), float64 (clients,), which sums to 1."""
    shares: NDArray[np.float64] = derive(rule.seed, "partition-quantity").dirichlet(
        np.full(rule.clients, rule.settings.beta)
    )
    return shares


def deal_like(rule: Rule, sizes: Sequence[int], count: int) -> list[Index]:
    """Return rows of ``count`` at random for each client, in proportion to ``sizes``; one at least if that can be."""
    return _cut_at(rule, _sizes(np.array(sizes) / sum(sizes), count, int(count >= rule.clients)))


def _sizes(shares: NDArray[np.float64], count: int, least: int) -> Index:
    """Return ``least`` for each client and its share of the rest, which sum to ``count``."""
    return least + round_quotas(shares * (count - least * len(shares)))


def _cut_at(rule: Rule, sizes: Index) -> list[Index]:
    """Deal rows at random, so many to each client."""
    order = derive(rule.seed, "partition-order", rule.part, 0).permutation(int(sizes.sum()))
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def _dirichlet(rule: Rule, labels: Labels) -> list[Index]:
    """Draw until every client has ``min-examples``; flwr-datasets' own loop gives up after ten draws."""
    counts = np.unique(labels, return_counts=True)[1]
    most = max(1, min(_DIRICHLET_DRAWS, CLASSES_DRAWN // len(counts)))
    for draw in range(most):
        if dirichlet_sizes(rule, counts, draw).min() >= rule.settings.min_examples:
            return _checked(_dealt(rule, labels, draw), len(labels))  # half a second for 60,000 examples
    raise DataError(
        "partition.min-examples",
        f"{len(labels)} examples to be enough for {rule.clients} clients with {rule.settings.min_examples} each "
        "(lower clients or partition.min-examples, raise partition.alpha, or set partition.name = iid)",
        f"none in {most} draw{'s' * (most > 1)} of Dir({rule.settings.alpha:g}) with so many for each",
    )


def dirichlet_sizes(rule: Rule, counts: Index, draw: int) -> Index:
    """Return how many examples each client would have in a draw of Dirichlet, without dealing any.

    They follow from the proportions alone, which flwr-datasets' partitioner draws class by class in sorted order.

    Args:
        rule: Clients, α and seed.
        counts: int64: the number of examples of each class.
        draw: Which draw it is.
    """
    rng = np.random.default_rng(derive_seed(rule.seed, "partition", rule.part, draw))
    alphas = np.full(rule.clients, rule.settings.alpha)
    shares = np.array([rng.dirichlet(alphas) for _ in counts]).reshape(len(counts), rule.clients)
    ends = (np.cumsum(shares, axis=1) * counts[:, None]).astype(int)[:, :-1]
    edges = np.concatenate([np.zeros((len(counts), 1), int), ends, counts[:, None]], axis=1)
    sizes: Index = np.diff(edges, axis=1).sum(axis=0)
    return sizes


def _dealt(rule: Rule, labels: Labels, draw: int = 0) -> list[Index]:
    """Draw a partition once."""
    from datasets import Dataset

    order = derive(rule.seed, "partition-order", rule.part, draw).permutation(len(labels))
    if rule.settings.name == "shards":  # sorted by label here, stably, so that classes keep the seeded order
        order = order[np.argsort(labels[order], kind="stable")]
    partitioner = _partitioner(rule, derive_seed(rule.seed, "partition", rule.part, draw))
    partitioner.dataset = Dataset.from_dict({"row": order, "label": labels[order]})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unused classes; a client without data is an error below
            return [np.sort(_rows(partitioner, client)) for client in range(rule.clients)]
    except ValueError as error:
        expected = f"a rule that suits {rule.clients} clients of {len(labels)} examples"
        raise DataError("partition.name", expected, f"{rule.settings.name}: {error}") from error


def _partitioner(rule: Rule, seed: int) -> Any:
    from flwr_datasets import partitioner as flower

    from sepal.data.partitioners import ExtendedDirichletPartitioner, LambdaMixPartitioner, TwoClassPartitioner

    settings, clients = rule.settings, rule.clients
    match settings.name:
        case "iid":
            return flower.IidPartitioner(clients)
        case "dirichlet":  # min_partition_size 0: _dirichlet checks the size
            return flower.DirichletPartitioner(
                clients, "label", settings.alpha, min_partition_size=0, self_balancing=False, shuffle=False, seed=seed
            )
        case "extended-dirichlet":
            least = settings.min_examples
            return ExtendedDirichletPartitioner(clients, "label", settings.classes, settings.alpha, least, seed)
        case "pathological":  # first classes in turn, so that every class is used if there are enough clients
            return flower.PathologicalPartitioner(
                clients, "label", settings.classes, "first-deterministic", shuffle=False, seed=seed
            )
        case "shards":
            return flower.ShardPartitioner(
                clients, "label", settings.shards, settings.shard_size or None, shuffle=False, seed=seed
            )
        case "two-class":
            return TwoClassPartitioner(clients, "label", seed)
        case "lambda-mix":
            return LambdaMixPartitioner(clients, "label", settings.lambda_, seed)
        case _:
            raise DataError("partition.name", "a rule that partitions by label", settings.name)


def _checked(parts: list[Index], count: int) -> list[Index]:
    together = np.concatenate(parts)
    if len(np.unique(together)) != len(together) or together.min(initial=0) < 0 or together.max(initial=0) >= count:
        raise DataError("partition", "each example with at most one client", "an example that two clients have")
    empty = [client for client, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise DataError("partition", "data for every client (fewer clients, or another rule)", f"none for {empty}")
    return parts


def _check_two_class(parts: list[Index], labels: Labels) -> None:
    """Raise if there are too few clients for the paper's quantities: the largest tenth must hold about half."""
    sizes = np.sort([len(part) for part in parts])
    large = max(1, round(0.1 * len(parts)))
    share = sizes[-large:].sum() / len(labels)
    if abs(share - 0.5) > _TWO_CLASS_TOLERANCE:
        classes = len(np.unique(labels))
        expected = f"enough for two-class (about {5 * classes} for {classes} classes: a tenth of them holds half)"
        raise DataError("clients", expected, f"{len(parts)}, of whom the largest tenth would hold {share:.0%}")
