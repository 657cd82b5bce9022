"""The federations on which rates are calibrated, by data set: ``settings.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from sepal.config.run import GRADIENT_NORM
from sepal.strategies import registry

PAPERS = ("fedpse", "dmpfl", "subfedavg", "pfedgate", "pa3dfl")
GROWTH = 2  # how often the grid of an own key grows
Values = dict[str, dict[str, tuple[float, ...]]]  # method → its own key, without its name → values
_TABLE: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("settings.toml").read_text(encoding="utf-8"))

PINNED: Mapping[str, Mapping[str, str]] = {
    method: {f"{method}.{key}": value for key, value in keys.items()} for method, keys in _TABLE["pinned"].items()
}
"""Method → run-config keys that all its trials with a margin have."""

UNCLIPPED: Mapping[str, tuple[float, ...]] = {method: tuple(rates) for method, rates in _TABLE["unclipped"].items()}
"""Methods that refuse ``clip-gradient``, and the rates that they are tried at beyond a data set's grid."""


class Setting(BaseModel):
    """One data set's federation.

    Attributes:
        keys: Run-config keys beyond those that all data sets share.
        grid: Learning rates that are tried first.
        shortened: What is less than the data set's defaults; empty if nothing is.
        methods: The methods that are calibrated; empty for all.
        longer: Methods whose runs are longer, because the best rate of a short run was bad in a long one.
        longer_keys: Their keys beyond ``keys``.
        longer_words: What is less than the data set's defaults in their runs.
        own: Own keys with other values than elsewhere.
        margin: The methods that are searched with a margin; empty for all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"))
    keys: dict[str, int | float | str]
    grid: tuple[float, ...]
    shortened: str = ""
    methods: tuple[str, ...] = ()
    longer: tuple[str, ...] = ()
    longer_keys: dict[str, int | float | str] = {}
    longer_words: str = ""
    own: Values = {}
    margin: tuple[str, ...] = PAPERS

    @property
    def all_methods(self) -> tuple[str, ...]:
        """The methods that are calibrated, in the registry's order if they are all."""
        return self.methods or tuple(registry.METHODS)

    def clip(self, method: str) -> float | None:
        """Return ``clip-gradient`` of a search with a margin; None for a method that is searched without."""
        if self.margin and method not in self.margin:
            return None
        return 0.0 if method in UNCLIPPED else GRADIENT_NORM

    def rates(self, method: str) -> tuple[float, ...]:
        """Return the learning rates that are tried first for a method, in ascending order."""
        return tuple(sorted({*self.grid, *UNCLIPPED.get(method, ())}))

    @property
    def growth(self) -> int:
        """How often the grid of an own key may grow: where runs are shortened, not at all."""
        return 0 if self.shortened else GROWTH

    def run_keys(self, method: str) -> dict[str, int | float | str]:
        """Return the run-config keys of a method's trials."""
        longer = self.longer_keys if method in self.longer else {}
        judged_apart = method in _TABLE["choosing"] and self.clip(method) is not None
        apart = {"evaluate.validation-apart": True} if judged_apart else {}
        return {**_TABLE["everywhere"], **self.keys, **longer, **apart}

    def own_keys(self, method: str) -> dict[str, tuple[float, ...]]:
        """Return a method's own keys and their values; the first is used while the rate is searched."""
        return self.own.get(method) or {key: tuple(values) for key, values in _TABLE["own"].get(method, {}).items()}


SETTINGS: Mapping[str, Setting] = {name: Setting(**values) for name, values in _TABLE["datasets"].items()}
