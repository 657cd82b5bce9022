"""A profile of devices: how fast clients compute, and how fast their links are, as numbers or as distributions.

The format is in ``docs/simulated-time.md``. What is drawn is drawn once for each client, from the profile's seed, the
run's seed and the client's name: all methods of a comparison meet the same devices, and clients of another seed of the
run, which are other clients, have other ones.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import accumulate
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sepal.config.base import kebab, validate
from sepal.errors import ConfigError, StateError, one_line, suggest
from sepal.rng import derive
from sepal.storage.regular import expanded, read_text
from sepal.storage.toml_text import parse_toml

FILE = "devices.toml"  # of a run: the profile that it began with
BUILT_IN = ("hospitals", "phones", "phones-classes", "phones-mobile")
LEAST = 1000.0  # of a speed, a link and a memory: smaller ones are in another unit
LONGEST_STEP = 86_400.0  # seconds
MOST_CLIENTS = 100_000
Rate = Annotated[float, Field(ge=LEAST)]
Step = Annotated[float, Field(gt=0, le=LONGEST_STEP)]


class _ProfilePart(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, alias_generator=kebab
    )


class Spread(_ProfilePart):
    """How a quantity is spread over clients: log-normal, or classes.

    Attributes:
        median: Of the log-normal distribution.
        sigma: Its σ, the standard deviation of the logarithm.
        values: The classes' values, in place of ``median``.
        shares: The classes' probabilities, which add up to 1.
    """

    median: float | None = Field(None, gt=0)
    sigma: float = Field(0.0, ge=0, le=3)
    values: list[Annotated[float, Field(gt=0)]] = Field([], max_length=1000)
    shares: list[Annotated[float, Field(ge=0, le=1)]] = Field([], max_length=1000)

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Spread:
        if (self.median is None) == (not self.values):
            raise ValueError("median (with sigma), or values with shares")
        if self.values and self.sigma:
            raise ValueError("no sigma beside values")
        if len(self.shares) != len(self.values) or (
            self.values and not math.isclose(sum(self.shares), 1, abs_tol=1e-6)
        ):
            raise ValueError("a share for each of values, with the sum 1")
        return self

    @property
    def least(self) -> float:
        """The median, or the smallest value of a class."""
        return min(self.values) if self.median is None else self.median

    @property
    def most(self) -> float:
        """The median, or the largest value of a class."""
        return max(self.values) if self.median is None else self.median

    @property
    def varies(self) -> bool:
        """Whether clients differ in it."""
        return self.sigma > 0 or len(self.values) > 1

    def at(self, z: float) -> float:
        """Return the value of a client with the standard normal number ``z``."""
        if self.median is not None:
            return self.median * math.exp(self.sigma * z)
        share = 0.5 * math.erfc(-z / math.sqrt(2))
        place = bisect_right(list(accumulate(self.shares)), share)
        return self.values[min(place, len(self.values) - 1)]

    def described(self, unit: str, factor: float) -> str:
        """Return it in words, in a unit that is ``factor`` of its own."""
        if self.median is None:
            values = " or ".join(f"{value / factor:g}" for value in self.values)
            shares = ", ".join(f"{100 * share:g}" for share in self.shares)
            return f"{values} {unit} ({shares} %)"
        return f"{self.median / factor:g} {unit}" + f" (log-normal, σ {self.sigma:g})" * (self.sigma > 0)


class ListedDevice(_ProfilePart):
    """What a profile says of one client by name; what it leaves out is drawn."""

    speed: Rate | None = None
    step_seconds: Step | None = None
    down: Rate | None = None
    up: Rate | None = None
    memory: Rate | None = None


QUANTITIES = tuple(ListedDevice.model_fields)
NOTHING_LISTED = ListedDevice()
UNITS = {  # as they are shown
    "speed": ("G multiply-adds/s", 1e9),
    "step_seconds": ("s", 1.0),
    "down": ("Mbit/s", 1e6),
    "up": ("Mbit/s", 1e6),
    "memory": ("GB", 1e9),
}
WORDS = {"speed": "speed", "step_seconds": "a step", "down": "down", "up": "up", "memory": "memory"}


@dataclass(frozen=True)
class SimulatedDevice:
    """One client's device.

    Attributes:
        speed: Multiply-adds a second in training; 0 where ``step_seconds`` is known.
        step_seconds: Seconds of a training step, as measured on such a device; 0 where ``speed`` is known.
        down: Bits a second to the client.
        up: Bits a second from it.
        round_trip: Seconds that each message takes besides.
        memory: Bytes; infinite if the profile does not say.
    """

    speed: float
    step_seconds: float
    down: float
    up: float
    round_trip: float
    memory: float = math.inf

    @cached_property
    def rates(self) -> npt.NDArray[np.float64]:
        """Seconds for each unit of :class:`sepal.simulated_time.work.ClientWork`, float64 (5,)."""
        of_speed = 1 / self.speed if self.speed else 0.0
        return np.array([8 / self.down, 8 / self.up, self.round_trip, of_speed, self.step_seconds], np.float64)


class DeviceProfile(_ProfilePart):
    """The devices of a federation.

    Attributes:
        name: What tables and charts call it.
        about: Where its figures are from.
        seed: Seed of what is drawn.
        speed: Multiply-adds a second in training.
        step_seconds: Seconds of a training step, in place of ``speed``; one of the two is needed.
        down: Bits a second to a client.
        up: Bits a second from it.
        correlation: Of the logarithms of ``down`` and ``up``, where both are log-normal.
        round_trip: Seconds of each message besides its bytes.
        memory: Bytes of a client; None for enough.
        clients: Clients by name, with numbers of their own.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")
    about: str = Field("", max_length=4000)
    seed: int = Field(0, ge=0, lt=2**62)
    speed: Spread | None = None
    step_seconds: Spread | None = None
    down: Spread
    up: Spread
    correlation: float = Field(0.0, ge=-1, le=1)
    round_trip: float = Field(0.0, ge=0, le=3600)
    memory: Spread | None = None
    clients: dict[str, ListedDevice] = Field({}, max_length=MOST_CLIENTS)

    @model_validator(mode="after")
    def _is_plausible(self) -> DeviceProfile:
        for name in ("speed", "down", "up", "memory"):
            spread: Spread | None = getattr(self, name)
            if spread is not None and spread.least < LEAST:
                raise ValueError(f"{name} of at least {LEAST:g}: multiply-adds a second, bits a second, bytes")
        if self.step_seconds is not None and self.step_seconds.most > LONGEST_STEP:
            raise ValueError(f"step-seconds of at most {LONGEST_STEP:g}")
        both = [(part.speed, part.step_seconds) for part in self.clients.values()]
        if (self.speed is None) == (self.step_seconds is None) or any(None not in pair for pair in both):
            raise ValueError("speed or step-seconds, and not both")  # for any client: no run is stopped by its devices
        if self.correlation and (self.down.median is None or self.up.median is None):
            raise ValueError("correlation 0, or log-normal down and up")
        return self

    @property
    def varies(self) -> bool:
        """Whether another seed gives other devices."""
        spreads = (self.speed, self.step_seconds, self.down, self.up, self.memory)
        return any(spread is not None and spread.varies for spread in spreads)

    def draws(self, count: int) -> list[DeviceProfile]:
        """Return the profile with ``count`` seeds, its own the first; itself alone if nothing is drawn."""
        seeds = range(self.seed, self.seed + (count if self.varies else 1))
        return [self.model_copy(update={"seed": seed}) for seed in seeds]

    def device(self, client: str, seed: int) -> SimulatedDevice:
        """Return the device of a client.

        Args:
            client: Its name.
            seed: The run's seed.
        """
        listed = self.clients.get(client, NOTHING_LISTED)
        values = self._drawn(client, seed)
        values |= {name: value for name in QUANTITIES if (value := getattr(listed, name)) is not None}
        if listed.speed:
            values.pop("step_seconds", None)
        elif listed.step_seconds:
            values.pop("speed", None)
        speed, step = values.get("speed", 0.0), values.get("step_seconds", 0.0)
        memory = values.get("memory", math.inf)
        return SimulatedDevice(speed, step, values["down"], values["up"], self.round_trip, memory)

    def _drawn(self, client: str, seed: int) -> dict[str, float]:
        """Return what the profile has a distribution of; a number at each place, so that one does not move another."""
        numbers = derive(self.seed, "devices", int(seed), client).standard_normal(len(QUANTITIES))
        z = dict(zip(QUANTITIES, map(float, numbers), strict=True))
        z["up"] = self.correlation * z["down"] + math.sqrt(1 - self.correlation**2) * z["up"]
        spreads: dict[str, Spread | None] = {name: getattr(self, name) for name in QUANTITIES}
        return {name: spread.at(z[name]) for name, spread in spreads.items() if spread is not None}

    def text(self) -> str:
        """Return it as TOML, all that differs from a default."""
        return tomli_w.dumps(self.model_dump(by_alias=True, exclude_defaults=True))

    def described(self) -> str:
        """Return all that it draws from, in a sentence, with units."""
        spreads: dict[str, Spread | None] = {name: getattr(self, name) for name in QUANTITIES}
        parts = [
            f"{words} {spread.described(*UNITS[name])}" for name, words in WORDS.items() if (spread := spreads[name])
        ]
        parts += [f"correlation of the links {self.correlation:g}"] if self.correlation else []
        parts += [f"{self.round_trip:g} s a message"] if self.round_trip else []
        parts += [f"{len(self.clients)} clients listed by name"] if self.clients else []
        parts += [f"seed {self.seed}"] if self.varies else []
        return f"{self.name}: {'; '.join(parts)}"


def parse_profile(text: str, key: str) -> DeviceProfile:
    """Return the profile that ``text``, TOML, describes.

    Args:
        text: TOML.
        key: What is named in an error: the key, or a file.

    Raises:
        ConfigError: It is no profile; the error names the first wrong key.
    """
    try:
        table: Mapping[str, Any] = parse_toml(text)
    except (ValueError, RecursionError) as reason:
        raise ConfigError(key, "a TOML file", one_line(str(reason), 200)) from None
    return validate(DeviceProfile, table, f"{key}: ")


def located(value: str) -> str:
    """Return a value of the key ``devices`` with an absolute path in place of a relative one."""
    return value if value in BUILT_IN or not value else str(expanded("devices", value).absolute())


def read_profile(value: str) -> DeviceProfile:
    """Return a built-in profile by name, or the one in a file.

    Raises:
        ConfigError: There is no such profile, or it cannot be read.
    """
    if value in BUILT_IN:
        return parse_profile((files(__package__) / f"profiles/{value}.toml").read_text(encoding="utf-8"), value)
    names = f"a file, or {', '.join(BUILT_IN)}"
    path = expanded("devices", value)
    try:
        text = read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError("devices", names, suggest(value, value, BUILT_IN)) from None
    except StateError as reason:
        raise ConfigError("devices", names, f"{path}: {reason.got}") from None
    return parse_profile(text, f"devices {path.name}")


def without_room(needed: Mapping[str, float], profile: DeviceProfile, seed: int) -> list[str]:
    """Return the clients whose memory is smaller than what they need, in bytes, sorted by name."""
    if profile.memory is None and not any(listed.memory for listed in profile.clients.values()):
        return []
    return sorted(client for client, size in needed.items() if profile.device(client, seed).memory < size)


def rates(profile: DeviceProfile, clients: Iterable[str], seed: int) -> npt.NDArray[np.float64]:
    """Return the rates of clients' devices, float64 (n, 5); see :attr:`SimulatedDevice.rates`."""
    return np.array([profile.device(client, seed).rates for client in clients], np.float64).reshape(-1, 5)
