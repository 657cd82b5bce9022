"""Layer budgets: how many entries of each tensor a sparse model keeps.

Sources: Evci et al., "Rigging the Lottery", ICML 2020, section 3 (uniform and Erdős-Rényi-Kernel); Mocanu et al. 2018
(Erdős-Rényi). A layer's density is ε · (sum of its sides) / (product of its sides), at most 1, with one ε for all
layers, chosen to meet the total. Deviation: budgets are rounded to whole entries by largest remainder, so that the
total is met exactly.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from sepal.errors import SepalError
from sepal.masks.selection import count

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Shapes = Mapping[str, tuple[int, ...]]


def uniform(shapes: Shapes, keep: float, dense: Collection[str] = ()) -> dict[str, int]:
    """Return for each tensor the number of entries kept: ``count(keep, size)``, or all of those in ``dense``.

    Tensors in ``dense`` are added on top, so the total may exceed ``keep`` of all entries.

    Args:
        shapes: Shapes of the tensors, by name.
        keep: Fraction kept, 0 … 1.
        dense: Names of tensors that are kept whole.

    Raises:
        SepalError: ``keep`` is out of range, or ``dense`` names an unknown tensor.
    """
    _check_dense(shapes, dense)
    return {
        name: math.prod(shape) if name in dense else count(keep, math.prod(shape)) for name, shape in shapes.items()
    }


def erk(shapes: Shapes, keep: float, dense: Collection[str] = ()) -> dict[str, int]:
    """Return for each tensor the number of entries kept by Erdős-Rényi-Kernel; the total is ``count(keep, all)``.

    A tensor's share is proportional to the sum of its sides (1 for a scalar). A tensor whose share exceeds its size is
    kept whole, and the rest is shared among the others. Rounding is by largest remainder; ties go to the first tensor.
    With a very small total, a tensor may get no entry.

    Args:
        shapes: Shapes of the tensors, by name: (out, in, height, width) or (out, in).
        keep: Fraction of all entries to keep, 0 … 1, including those of ``dense``.
        dense: Names of tensors that are kept whole.

    Raises:
        SepalError: ``keep`` is out of range, ``dense`` names an unknown tensor or exceeds the total by itself.
    """
    _check_dense(shapes, dense)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = count(keep, sum(sizes.values()))
    whole = {name for name in sizes if name in dense}
    if sum(sizes[name] for name in whole) > total:
        raise SepalError("dense", f"at most {total} entries", sum(sizes[name] for name in whole))
    while True:
        rest = total - sum(sizes[name] for name in whole)
        sides = {name: sum(shape) or 1 for name, shape in shapes.items() if name not in whole}
        unit = Fraction(rest, sum(sides.values()) or 1)  # the paper's ε
        shares = {name: Fraction(sizes[name]) if name in whole else unit * sides[name] for name in shapes}
        full = {name for name in shares if shares[name] >= sizes[name]}
        if full <= whole:
            return _whole_numbers(shares, total)
        whole |= full


def _whole_numbers(shares: dict[str, Fraction], total: int) -> dict[str, int]:
    """Round to whole numbers that add up to ``total``, by largest remainder (the sort is stable)."""
    budget = {name: math.floor(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: budget[name] - shares[name])
    for name in by_remainder[: total - sum(budget.values())]:
        budget[name] += 1
    return budget


def _check_dense(shapes: Shapes, dense: Collection[str]) -> None:
    for name in dense:
        if name not in shapes:
            raise SepalError("dense", f"one of {', '.join(shapes)}", name)
