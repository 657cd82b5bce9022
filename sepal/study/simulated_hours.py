"""Simulated hours as rows: each draw of the devices, evaluation of all clients and view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sepal.errors import ConfigError
from sepal.protocol.views import CLOSING_VIEWS
from sepal.study.results import Variant
from sepal.study.simulated_time import HOUR
from sepal.tasks.scoring import headline


def hour_rows(variant: Variant) -> Iterator[tuple[Any, ...]]:
    """Yield setting, name, seed, draw, round, view, hours and accuracy of a variant's evaluations.

    Raises:
        ConfigError: Its runs have no profile of devices, or it says nothing of them.
    """
    profile = variant.profile
    if profile is None:
        raise ConfigError("devices", "a profile, which these runs have not (docs/simulated-time.md)", "nothing")
    if why := variant.why_no_hours:
        raise ConfigError("devices", f"a profile that says something of {variant.label}", f"{profile.name}: {why}")
    for result in variant.results:
        for draw in profile.draws(variant.draws):
            clock = result.times.clock(draw)
            about = variant.cell, variant.label, result.seed, draw.seed
            for line in result.lines:
                for view in CLOSING_VIEWS:
                    if figures := headline(line).get(view):
                        hours = clock.at(view, line["model_round"]) / HOUR
                        yield (*about, line["round"], view, hours, figures["mean"])
