"""Makes ``strategies/calibrated.toml`` and ``referee/results/calibration.md`` from the stored trials."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from referee.calibrate.search import CLIP, Evidence, Keys, Trials, pinned_by_default
from referee.calibrate.settings import GROWTH, PINNED, SETTINGS, Setting
from referee.checkout import RESULTS, ROOT, render
from sepal.data.catalogue import CATALOGUE
from sepal.study.search import mean_of_trials, standard_error

TABLE, PAGE = ROOT / "strategies" / "calibrated.toml", RESULTS / "calibration.md"


def pages(evidence: Evidence | None = None) -> dict[Path, str]:
    """Return path → text of the table and the page, for all methods whose trials have ended."""
    evidence = evidence or Evidence.read()
    ended = {name: list(_ended(evidence, name, setting)) for name, setting in SETTINGS.items()}
    ended = {name: searches for name, searches in ended.items() if searches}
    datasets = [_described(evidence, name, searches) for name, searches in ended.items()]
    return {TABLE: toml(ended), PAGE: render("calibration.md", growth=GROWTH, datasets=datasets)}


def toml(ended: dict[str, list[Trials]]) -> str:
    """Return the table that runs read."""
    parts = ["# The default rates. Made by `python -m referee.calibrate` from referee/results/calibration.ndjson."]
    for name, searches in ended.items():
        info = CATALOGUE[name]
        facts = {"model": info.defaults["model"], "optimizer": info.defaults["optimizer"], "kind": info.kind}
        parts += ["", f"[{name}]", *(f'{key} = "{value}"' for key, value in facts.items())]
        parts += [f"size = {math.prod(info.input_shape)}", "", f"[{name}.rates]"]
        for trials in searches:
            keys = ", ".join(f"{_quoted(key)} = {_float(value)}" for key, value in _shown(trials.chosen()))
            parts.append(f"{trials.method} = {{ {keys} }}")
    return "\n".join(parts) + "\n"


def _described(evidence: Evidence, name: str, ended: list[Trials]) -> dict[str, Any]:
    """Return what the page says of a data set: what was chosen, and the whole grid."""
    setting, records = SETTINGS[name], [record for record in evidence.records if record.dataset == name]
    rates = sorted({dict(keys)["lr"] for trials in ended for keys in trials.accuracies})
    return {
        "name": name,
        "setting": setting,
        "defaults": CATALOGUE[name].defaults,
        "rounds": next(record.rounds for record in records if record.method not in setting.longer),
        "longer": [trials.method for trials in ended if trials.method in setting.longer],
        "hours": sum(record.seconds for record in records) / 3600,
        "rates": [f"{rate:g}" for rate in rates],
        "rows": [_row(trials, rates) for trials in ended],
        "own_rows": [row for trials in ended for row in _own_rows(trials)],
    }


def _row(trials: Trials, rates: list[float]) -> list[str]:
    chosen = trials.chosen()
    base = {dict(keys)["lr"]: keys for keys in trials.grid_keys()}
    cells = [_figure(trials, base[rate]) if rate in base else "" for rate in rates]
    words = ", ".join(f"{key} = {value:g}" for key, value in _shown(chosen))
    return [f"`{trials.method}`", words, _figure(trials, chosen), *cells]


def _own_rows(trials: Trials) -> Iterator[list[str]]:
    for key, grid in trials.own_grids():
        yield [f"`{key}`", ", ".join(f"{dict(keys)[key]:g}: {_figure(trials, keys)}" for keys in grid)]


def _figure(trials: Trials, keys: Keys) -> str:
    values = list(trials.accuracies[keys].values())
    error = standard_error(values)
    return f"{100 * mean_of_trials(values):.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _ended(evidence: Evidence, dataset: str, setting: Setting) -> Iterator[Trials]:
    """Yield the methods of a data set whose trials have all ended.

    The searches with a margin replace the earlier ones once all of them have ended: until then the table would compare
    rates that were chosen by two rules. A method without an earlier search is not waited for, nor is one whose pinned
    keys are its defaults: its earlier search was of what is not its default any more.
    """
    earlier = {method: evidence.trials(dataset, method, setting) for method in setting.all_methods}
    new = {
        method: evidence.trials(dataset, method, setting, setting.clip(method), pinned=pinned_by_default(method))
        for method in setting.all_methods
        if setting.clip(method) is not None
    }
    only_new = {method for method in new if not earlier[method].accuracies}
    apart = {method for method in PINNED if pinned_by_default(method)}
    pinned = {method for method in new.keys() & apart if not new[method].needed()}
    others = new.keys() - only_new - apart
    replaced = others if all(not new[method].needed() for method in others) else set()
    for method in setting.all_methods:
        trials = new[method] if method in only_new | pinned | replaced else earlier[method]
        if trials.accuracies and not trials.needed():
            yield trials


def _shown(keys: Keys) -> list[tuple[str, float]]:
    """Return the chosen keys, the learning rate first."""
    return sorted((pair for pair in keys if pair[0] != CLIP), key=lambda item: (item[0] != "lr", item[0]))


def _quoted(key: str) -> str:
    return f'"{key}"' if "." in key else key


def _float(value: float) -> str:
    return f"{value:g}" if "." in f"{value:g}" or "e" in f"{value:g}" else f"{value:g}.0"
