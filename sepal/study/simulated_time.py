"""A run's seconds as they would be on the devices of a profile, from its lines and its ledger.

Nothing of the run is repeated. A round that trains takes as long as its slowest client whose upload counts: download,
training, upload, one after the other. In a secure sum each step is waited for, and a round is the sum of its steps. A
model that is evaluated has also to reach its clients: the download of that evaluation, and for a model that clients
make from it their training, of the slowest of them. ``docs/simulated-time.md`` says what is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sepal.simulated_time import ClientWork, DeviceProfile, rates, seconds, training_work, without_room
from sepal.simulated_time.work import FIGURES, Matrix

HOUR = 3600.0
DRAWS = 5  # of a profile's devices, for runs that did not depend on one
ONE_DRAW = 1  # for runs beside one that did: all are judged by the same devices
STEPS = {"": 0, "keys": 0, "share": 1, "mask": 2, "unmask": 3}  # of a secure sum, in order; 0: training
DERIVED = ("trained", "pooled")  # views of models that a client makes from the download
PARTS = ("fast", "middle", "slow")  # thirds of the clients
LINKS = [0, 1]  # columns of :class:`~sepal.simulated_time.ClientWork` that a faster link shortens


@dataclass(frozen=True)
class SimulatedClock:
    """When things happened on one draw of a profile.

    Attributes:
        ends: Rounds completed → seconds until then; 0 → 0.
        received: Rounds completed before an evaluation of all clients → seconds of the slowest download.
        derived: The same → seconds of the slowest download with training.
    """

    ends: Mapping[int, float]
    received: Mapping[int, float]
    derived: Mapping[int, float]

    def at(self, view: str, completed: int) -> float:
        """Return the seconds until clients have the models that an evaluation of all clients scored.

        Args:
            view: The view; a model that clients keep is there already.
            completed: Rounds completed before the evaluation.
        """
        base = view.partition("-")[0]
        delivered = self.received if base == "received" else self.derived if base in DERIVED else {}
        return self.ends[completed] + delivered.get(completed, 0.0)


@dataclass(frozen=True)
class _Jobs:
    """Work of many clients, in groups of which the slowest counts.

    Attributes:
        clients: Number of each job's client, int (n,).
        work: float64 (n, 5).
        starts: First job of each group, int (g,).
        completed: What each group belongs to, a round or rounds completed, (g,).
    """

    clients: Any
    work: Matrix
    starts: Any
    completed: Sequence[int]

    @classmethod
    def of(cls, groups: Iterable[tuple[int, Mapping[str, ClientWork]]], numbers: Mapping[str, int]) -> _Jobs:
        clients, work, starts, completed = list[int](), list[ClientWork](), list[int](), list[int]()
        for number, jobs in groups:
            if jobs:
                starts.append(len(work))
                completed.append(number)
                clients += [numbers[name] for name in jobs]
                work += jobs.values()
        return cls(np.array(clients, int), np.array(work, np.float64).reshape(-1, 5), np.array(starts, int), completed)

    def slowest(self, device_rates: Matrix) -> dict[int, float]:
        """Return the sum of its groups' slowest jobs for each round."""
        spent: dict[int, float] = defaultdict(float)
        if len(self.starts):
            most = np.maximum.reduceat(seconds(self.work, device_rates[self.clients]), self.starts)
            for number, value in zip(self.completed, most, strict=True):
                spent[number] += float(value)
        return dict(spent)


class RunTimes:
    """The work of a stored run, of which any profile makes seconds.

    Args:
        lines: Lines of metrics.jsonl.
        ledger: Rows of ledger.jsonl.
        seed: The run's seed.
        devices: The profile with which the run began; None for a run without.

    Raises:
        ValueError: A figure of which seconds are made is negative or not finite.
    """

    def __init__(
        self,
        lines: Sequence[Mapping[str, Any]],
        ledger: Sequence[Mapping[str, Any]],
        seed: int,
        devices: DeviceProfile | None = None,
    ) -> None:
        self._lines, self._seed, self.devices = lines, seed, devices
        self._rows: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for row in ledger:
            self._rows[row["round"]].append(row)
        self._rates: dict[tuple[str, int], tuple[DeviceProfile, Matrix]] = {}
        for figure, value in self._figures():
            if not 0 <= value < math.inf:
                raise ValueError(f"{figure} {value}")

    def _figures(self) -> Iterator[tuple[str, float]]:
        """Yield each figure of which seconds, shares or room are made."""
        for rows in self._rows.values():
            for row in rows:
                yield from (("payload", row["payload"]), ("dense", row["dense"]))
        for line in self._lines:
            yield "seconds", line.get("simulated", {}).get("seconds", 0.0)
            for client in line["clients"]:
                yield "examples", client["examples"]
                yield from ((figure, client["metrics"].get(figure, 0.0)) for figure in FIGURES)

    @cached_property
    def acted(self) -> bool:
        """Whether the profile decided which uploads count (``oversample``, ``deadline``)."""
        return any("simulated" in line for line in self._lines)

    def why_not(self, profile: DeviceProfile) -> str:
        """Return why a profile says nothing of this run; empty if it does."""
        if self.acted and profile != self.devices:
            name = self.devices.name if self.devices else "which is lost"
            return f"its own profile, {name}, decided which uploads count"
        for figure, clients in self._unreported.items():
            uses = self._rates_of(profile)[:, FIGURES[figure]] > 0
            if count := sum(bool(uses[self._numbers[name]]) for name in clients):
                return (
                    f"{count} of its {len(self._names)} clients report no {figure}, of which its devices make seconds"
                )
        return ""

    @cached_property
    def _unreported(self) -> dict[str, set[str]]:
        """Figure → clients that have trained, for a round or an evaluation, and have not reported it."""
        lacking: dict[str, set[str]] = {figure: set() for figure in FIGURES}
        for line in self._lines:
            trained = {row["client"] for row in self._rows[line["round"]] if row["purpose"] == "training"}
            for client in line["clients"]:
                if client["name"] in trained or any(client.get(view) is not None for view in DERIVED):
                    for figure in FIGURES.keys() - client["metrics"].keys():
                        lacking[figure].add(client["name"])
        return lacking

    def clock(self, profile: DeviceProfile, links: float = 1.0) -> SimulatedClock:
        """Return when things happened on one draw.

        Args:
            profile: The profile, with the seed of the draw.
            links: Factor on the bits a second of all links.
        """
        device_rates = self._rates_of(profile)
        if links != 1:
            device_rates = device_rates.copy()
            device_rates[:, LINKS] /= links
        training = self._training.slowest(device_rates)
        ends, now = {0: 0.0}, 0.0
        for line in self._lines:
            if line["phase"] != "closing":
                spent = training.get(line["round"], 0.0)
                if self.acted:  # a round without the figure took none
                    spent = line.get("simulated", {}).get("seconds", 0.0)
                now += spent
                ends[line["round"]] = now
        return SimulatedClock(ends, self._received.slowest(device_rates), self._derived.slowest(device_rates))

    def _rates_of(self, profile: DeviceProfile) -> Matrix:
        """Return the rates of all clients' devices; they are drawn once, for a search asks again and again."""
        key = profile.name, profile.seed
        if key not in self._rates or self._rates[key][0] != profile:
            self._rates[key] = profile, rates(profile, self._names, self._seed)
        return self._rates[key][1]

    @cached_property
    def _names(self) -> list[str]:
        return sorted({client["name"] for line in self._lines for client in line["clients"]})

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._names)}

    def _counted(self, line: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
        """Return what the clients report whose uploads count."""
        late = line.get("simulated", {}).get("late", ())
        return {c["name"]: c["metrics"] for c in line["clients"] if c["name"] not in late}

    @cached_property
    def _training(self) -> _Jobs:
        groups = []
        for line in self._lines:
            by_step: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
            for row in self._rows[line["round"]]:
                by_step[STEPS.get(row.get("step", ""), 0)].append(row)
            figures = self._counted(line)
            for step in sorted(by_step):  # only the first trains
                reported = figures if step == 0 else {name: {} for name in figures}
                groups.append((line["round"], training_work(by_step[step], reported)))
        return _Jobs.of(groups, self._numbers)

    def _delivered(self, with_training: bool) -> _Jobs:
        groups = []
        for line in self._lines:
            if not (line["full"] or line["phase"] == "closing"):
                continue
            down: dict[str, int] = {}
            for row in self._rows[line["round"]]:
                if row["direction"] == "down" and row["status"] != "undone" and not row.get("step"):
                    down[row["client"]] = max(row["payload"], down.get(row["client"], 0))
            jobs = {}
            for client in line["clients"]:
                if not client.get("novel"):
                    figures = client["metrics"] if with_training else {}
                    spent = figures.get("multiply-adds", 0.0), figures.get("steps", 0.0)
                    jobs[client["name"]] = ClientWork(down.get(client["name"], 0), 0, 1, *spent)
            groups.append((line["model_round"], jobs))
        return _Jobs.of(groups, self._numbers)

    @cached_property
    def _received(self) -> _Jobs:
        return self._delivered(with_training=False)

    @cached_property
    def _derived(self) -> _Jobs:
        return self._delivered(with_training=True)

    @cached_property
    def undone(self) -> int:
        """Attempts at rounds that were undone; their seconds are not among those of the run."""
        return sum(any(row["status"] == "undone" for row in rows) for rows in self._rows.values())

    @cached_property
    def largest(self) -> int:
        """Bytes of the whole model as float32; 0 if no message carried one."""
        return max((row["dense"] for rows in self._rows.values() for row in rows), default=0)

    def without_room(self, profile: DeviceProfile) -> list[str]:
        """Return the clients whose memory is smaller than weights and gradients of the whole model."""
        return without_room(dict.fromkeys(self._names, 2 * self.largest), profile, self._seed)

    def parts(self, profile: DeviceProfile) -> dict[str, list[str]]:
        """Return the clients in thirds by how fast their devices do the run's mean work of training; empty for few."""
        if len(self._names) < len(PARTS) or not len(self._training.work):
            return {}
        mean = np.tile(self._training.work.mean(0), (len(self._names), 1))
        spent = seconds(mean, self._rates_of(profile))
        order = [name for _, name in sorted(zip(spent.tolist(), self._names, strict=True))]
        cuts = [round(len(order) * part / len(PARTS)) for part in range(len(PARTS) + 1)]
        return {part: order[cuts[n] : cuts[n + 1]] for n, part in enumerate(PARTS)}

    @cached_property
    def examples(self) -> dict[str, float]:
        """Client → the training examples with which it was in a mean, over all rounds but the void ones."""
        sums: dict[str, float] = defaultdict(float)
        for line in self._lines:
            if line.get("void"):
                continue
            trained = {row["client"] for row in self._rows[line["round"]] if row["purpose"] == "training"}
            in_the_mean = trained & self._counted(line).keys()
            for client in line["clients"]:
                if client["name"] in in_the_mean:
                    sums[client["name"]] += client["examples"]
        return dict(sums)
