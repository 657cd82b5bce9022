"""Writes ``strategies/calibrated.toml`` and ``referee/results/calibration.md`` from the stored trials."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from referee.calibrate.rows import ROOT, Evidence
from referee.calibrate.search import CLIP, GROWTH, Keys, Trials, mean, standard_error
from referee.calibrate.settings import SETTINGS, Setting
from sepal.config.run import GRADIENT_NORM
from sepal.data.catalogue import CATALOGUE
from sepal.storage.files import write_atomically

TABLE = ROOT / "strategies" / "calibrated.toml"
PAGE = ROOT / "referee" / "results" / "calibration.md"
HEAD = """\
# The default rates

`lr = 0`, and `auto` for a method's own rates, mean the values on this page. A run reads them from
[strategies/calibrated.toml](../../strategies/calibrated.toml); `python -m referee.calibrate` writes both files.

- **Judged by** validation accuracy alone, in the view that the method deploys. A fifth of each client's training data
  is held out for it.
- **Seeds** 101, 102 and 103, which no results page uses. They draw partition, weights and batches.
- **Grid**: learning rates of .01 to 3 on digits, of .02 to 1 where runs are shortened, and of .0003 to .03 for Adam,
  all with the first seed; the three best with the other seeds. While the best or the chosen one is at an edge, the grid
  grows there. Then each own key at the chosen learning rate, with all seeds, and on digits at most {growth} more values
  beyond an edge. Elsewhere runs are shortened, and what they want beyond an edge may be their shortness: FedAdagrad's
  server rate .009 was 9 points ahead of .03 in 10 rounds of HAR, and 1.7 behind in 30 (three seeds on test data, not
  stored).
- **Own keys** are those of which the paper says nothing for the data. Not searched: FedAvgM's server rate, which is the
  paper's 1, and how often DM-PFL and FedDST readjust masks, because a short run says nothing of that in a long one.
  Keys that are not on this page have the same default everywhere. The learning rate is searched with the first value
  listed; for FedAdagrad on Fashion-MNIST that is .03, because with .1 no learning rate had more than 22 %.
- **pFedGate's trials** without clipping have s = 1 (`pfedgate.keep = 0`), its default at the time; that is .5 now.
- **Choice**: the smallest rate (of an own key: the first value listed) that the best is not ahead of by more than a
  standard error of the difference. The best of a noisy grid is often close to divergence.
- A run that ends with an error, for example because its weights are no longer finite, counts as accuracy 0.
- **± SE** is the standard error over the three seeds.
- **A search with a margin** (five seeds, clipped gradients, no rate whose next one up collapses) has begun:
  its trials name `clip-gradient`. They choose nothing before all methods of a data set have ended.
- All trials, with seconds and commit: [calibration.ndjson](calibration.ndjson).
"""


def write_pages(evidence: Evidence, table: Path = TABLE, page: Path = PAGE) -> None:
    """Write the table and the page for all methods whose trials have ended."""
    write_atomically(table, toml(evidence).encode())
    write_atomically(page, markdown(evidence).encode())


def toml(evidence: Evidence) -> str:
    """Return the table that runs read."""
    parts = ["# The default rates. Made by `python -m referee.calibrate` from referee/results/calibration.ndjson."]
    for name, setting in SETTINGS.items():
        info, ended = CATALOGUE[name], list(_ended(evidence, name, setting))
        if not ended:
            continue
        facts = {"model": info.defaults["model"], "optimizer": info.defaults["optimizer"], "kind": info.kind}
        parts += ["", f"[{name}]", *(f'{key} = "{value}"' for key, value in facts.items())]
        parts += [f"size = {math.prod(info.input_shape)}", "", f"[{name}.rates]"]
        for trials in ended:
            chosen = [(key, value) for key, value in _lr_first(trials.chosen()) if key != CLIP]
            keys = ", ".join(f"{_quoted(key)} = {_float(value)}" for key, value in chosen)
            parts.append(f"{trials.method} = {{ {keys} }}")
    return "\n".join(parts) + "\n"


def markdown(evidence: Evidence) -> str:
    """Return the page: per data set what was chosen, and the whole grid."""
    parts = [HEAD.format(growth=GROWTH)]
    for name, setting in SETTINGS.items():
        ended = list(_ended(evidence, name, setting))
        if not ended:
            continue
        seconds = sum(sum(line["seconds"].values()) for (d, _, _), line in evidence.lines.items() if d == name)
        rounds = next(r["rounds"] for (d, m, _), r in evidence.lines.items() if d == name and m not in setting.longer)
        defaults = CATALOGUE[name].defaults
        words = f"{setting.keys['clients']} clients, {rounds} rounds, model `{defaults['model']}`, "
        words += (
            f"{defaults['optimizer']}, batches of {defaults['batch-size']}, local epochs: {defaults['local-epochs']}"
        )
        words += f". **Shortened**: {setting.shortened}" if setting.shortened else ". The data set's default horizon"
        if longer := [f"`{trials.method}`" for trials in ended if trials.method in setting.longer]:
            words += f"; {', '.join(longer)}: {setting.longer_words}, because their best rate of the short runs was bad"
            words += " in long ones"
        parts += [f"\n## {name}\n\n{words}. {seconds / 3600:.1f} hours of runs.\n"]
        rates = sorted({dict(keys)["lr"] for trials in ended for keys in trials.found})
        parts += ["| method | chosen | validation, % ± SE | " + " | ".join(f"{rate:g}" for rate in rates) + " |"]
        parts += ["| --- " * (3 + len(rates)) + "|"]
        parts += [_row(trials, rates) for trials in ended]
        parts += [
            "",
            "Columns from the fourth on: validation accuracy at that rate, of the first seed where no SE is given.",
        ]
        parts += list(_own_rows(ended))
    return "\n".join(parts) + "\n"


def _row(trials: Trials, rates: list[float]) -> str:
    chosen = trials.chosen()
    base = {dict(keys)["lr"]: keys for keys in trials.grid_keys()}
    cells = [_figure(trials, base[rate]) if rate in base else "" for rate in rates]
    words = ", ".join(f"{key} = {value:g}" for key, value in _lr_first(chosen) if key != CLIP)
    return f"| `{trials.method}` | {words} | {_figure(trials, chosen)} | {' | '.join(cells)} |"


def _own_rows(ended: list[Trials]) -> Iterator[str]:
    rows = []
    for trials in ended:
        for key, grid in trials.own_grids():
            figures = ", ".join(f"{dict(keys)[key]:g}: {_figure(trials, keys)}" for keys in grid)
            rows.append(f"| `{key}` | {figures} |")
    if rows:
        yield from ("", "| own key | validation, % ± SE, at the chosen rate |", "| --- | --- |", *rows)


def _figure(trials: Trials, keys: Keys) -> str:
    values = list(trials.found[keys].values())
    error = standard_error(values)
    return f"{100 * mean(values):.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _ended(evidence: Evidence, dataset: str, setting: Setting) -> Iterator[Trials]:
    """Yield the methods of a data set whose trials have all ended, in the registry's order.

    The searches with a margin replace those of before once all of them have ended: until then the table would compare
    rates that were chosen by two rules.
    """
    from sepal.strategies import registry

    methods = setting.methods or registry.METHODS
    new = {method: _trials(evidence, dataset, setting, method) for method in methods if setting.has_margin(method)}
    replaced = all(trials.found and not trials.needed() for trials in new.values())
    for method in methods:
        trials = (
            new[method] if replaced and method in new else _trials(evidence, dataset, setting, method, margin=False)
        )
        if trials.found and not trials.needed():
            yield trials


def _trials(evidence: Evidence, dataset: str, setting: Setting, method: str, margin: bool = True) -> Trials:
    clip = GRADIENT_NORM if margin and setting.has_margin(method) else 0.0
    return evidence.trials(dataset, method, setting.grid, setting.own_keys(method), setting.growth, clip)


def _lr_first(keys: Keys) -> list[tuple[str, float]]:
    return sorted(keys, key=lambda item: (item[0] != "lr", item[0]))


def _quoted(key: str) -> str:
    return f'"{key}"' if "." in key else key


def _float(value: float) -> str:
    return f"{value:g}" if "." in f"{value:g}" or "e" in f"{value:g}" else f"{value:g}.0"
