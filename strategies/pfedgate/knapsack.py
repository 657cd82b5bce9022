"""Which blocks are on: a 0/1 knapsack over the gate's importance G (pFedGate, ICML 2023, section 5.2.3, equation 6).

max Σ I_j·G_j subject to Σ I_j·cost_j ≤ s·Σ cost_j; the first blocks are on in any case.

``exact`` is dynamic programming over the remaining room. Blocks of one tensor have the same cost, so only the number of
blocks of each cost matters, and few values of the room occur: about 100 for 50 blocks. If the table would have more
than ``ENTRIES`` entries (of the shipped models: ResNet18's 310 blocks), the choice is greedy, by G over cost.
``greedy-value`` is the published code's solver, for comparison: by G rounded to tenths, for linear and other layers
separately, each with (s − s_min) times the cost of its blocks as room, rounded down here and to the nearest there.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from sepal.errors import ConfigError
from sepal.strategies.pfedgate.blocks import Blocks, Index, Mask, exact

ENTRIES = 1 << 16

Values = npt.NDArray[np.floating]


class Knapsack:
    """The solver of one client: from values to the blocks that are on, for many samples at once.

    Args:
        blocks: What is chosen from.
        keep: s in (0, 1], as in ``split``.
        solver: ``exact`` or ``greedy-value``.
        costs: int64 (L,), not negative; None is the blocks' sizes. Multiply-adds are an alternative.

    Raises:
        ConfigError: The first blocks alone cost more than s.
    """

    def __init__(
        self,
        blocks: Blocks,
        keep: float,
        solver: Literal["exact", "greedy-value"] = "exact",
        costs: Index | None = None,
    ) -> None:
        self.first, self.costs = blocks.first, blocks.sizes if costs is None else costs
        total, spent = int(self.costs.sum()), int(self.costs[self.first].sum())
        room = int(exact(keep) * total) - spent
        if room < 0:
            raise ConfigError(
                "pfedgate.keep", f"at least the first blocks' share of all costs, {spent / total:.4g}", keep
            )
        self._groups = [(np.flatnonzero(~self.first), room)]
        self._published = solver == "greedy-value" and spent + room < total
        if self._published:
            kinds = [np.flatnonzero(~self.first & (blocks.linear == kind)) for kind in (True, False)]
            extra = exact(keep) - blocks.least
            self._groups = [(items, int(extra * int(self.costs[items].sum()))) for items in kinds]
        self._table = None if self._published else _table(self.costs[~self.first], room)

    def __call__(self, values: Values) -> Mask:
        """Return bool (N, L), the blocks that are on, for values (N, L).

        Where a value is negative, as without the sigmoid, ``exact`` leaves the block out, ``greedy-value`` may take it.
        """
        on = np.repeat(self.first[None], len(values), 0)
        for items, room in self._groups:
            value, cost = values[:, items], self.costs[items]
            if self._table is not None:
                on[:, items] = _dynamic(value, self._table)
            else:
                rank = np.around(10 * value) if self._published else value / np.maximum(cost, 1e-9)
                on[:, items] = _greedy(rank, cost, room)
        return on


def _table(costs: Index, room: int) -> list[tuple[Index, Index]] | None:
    """Return, by falling cost: the items (n,) and, for each room that can be left and count of them, the next room.

    Rooms are numbered from 0 within a level; -1: so many do not fit. None: the table would be too large.
    """
    table, rooms, rest, entries = [], np.array([room]), int(costs.sum()), 0
    for cost in np.unique(costs)[::-1]:
        items = np.flatnonzero(costs == cost)
        rest -= int(cost) * len(items)
        room_left = rooms[:, None] - cost * np.arange(len(items) + 1)
        after = np.full(room_left.shape, -1)
        rooms, after[room_left >= 0] = np.unique(np.minimum(room_left[room_left >= 0], rest), return_inverse=True)
        table.append((items, after))
        entries += room_left.size
        if entries > ENTRIES:
            return None
    return table


def _dynamic(values: Values, table: list[tuple[Index, Index]]) -> Mask:
    """Return bool (N, K): the best choice for each row of ``values`` (N, K)."""
    best, counts = np.zeros((len(values), 1)), []
    for items, after in reversed(table):
        most = np.cumsum(-np.sort(-values[:, items], 1), 1, dtype=np.float64)
        sums = np.where(after < 0, -1.0, best[:, after] + np.pad(most, ((0, 0), (1, 0)))[:, None])
        counts.append(sums.argmax(2))
        best = sums.max(2)
    chosen, at, rows = np.zeros(values.shape, bool), np.zeros(len(values), np.int64), np.arange(len(values))
    for (items, after), count in zip(table, reversed(counts), strict=True):
        rank = np.argsort(np.argsort(-values[:, items], 1, kind="stable"), 1)
        chosen[:, items] = rank < count[rows, at, None]
        at = after[at, count[rows, at]]
    return chosen


def _greedy(rank: Values, costs: Index, room: int) -> Mask:
    """Return bool (N, K): the blocks that fit, in falling order of ``rank`` (N, K), ties by the lowest index."""
    chosen, room_left, rows = np.zeros(rank.shape, bool), np.full(len(rank), room), np.arange(len(rank))
    for item in np.argsort(-rank, axis=1, kind="stable").T:
        chosen[rows, item] = costs[item] <= room_left
        room_left -= np.where(costs[item] <= room_left, costs[item], 0)
    return chosen
