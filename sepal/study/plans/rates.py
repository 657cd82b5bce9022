"""Where the learning rates of a plan's runs come from, and what is odd in their data, in lines to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from sepal.config import RunConfig, Settings, parse
from sepal.errors import SepalError
from sepal.study.plans.looking import without_data
from sepal.study.plans.model import PlanFile, PlannedRun
from sepal.study.run_keys import Value, flatten_tables

ONE_RATE = "all methods have the same learning rate, which may explain differences; `tune = true` searches one for each"


def completed(keys: Mapping[str, Value]) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the shared keys of a run with every default filled in, and lines that say where its rates come from.

    Args:
        keys: Flat run-config keys.

    Raises:
        SepalError: A key is invalid, or the data set is unknown or not here.
    """
    from sepal.data import federated_data
    from sepal.strategies import registry
    from sepal.strategies.assembly import complete

    config, hyper = _parsed(without_data(keys))
    full = complete(config, hyper, registry.get(config.method), federated_data(config).info)
    return full.config, full.notes


def _parsed(keys: Mapping[str, Value]) -> tuple[RunConfig, Settings]:
    from sepal.strategies import registry

    return parse({key: value for key, value in keys.items() if key != "name"}, registry.Hypers())


def data_notes(runs: Sequence[PlannedRun]) -> list[str]:
    """Return the notes that the runs have about their data, such as which files are left out, each note once.

    A report, which may be given away, does not have these lines: they name the user's own files.

    Args:
        runs: A plan's runs, also trials.
    """
    from sepal.data.federation import DealtData, federated_data
    from sepal.data.owners import with_owners

    lines: dict[str, None] = {}
    for run in {(r.block, r.cell, r.variant): r for r in runs}.values():
        with suppress(SepalError):  # for example data that is not here; what needs it says so
            config = _parsed(run.keys)[0]
            data = federated_data(config)
            owners = with_owners(config, data, "clients" in config.model_fields_set)
            left_out = data.left_out(owners.config.clients) if isinstance(data, DealtData) else ()
            lines |= dict.fromkeys((*owners.notes, *data.info.notes, *left_out))
    return list(lines)


def rate_notes(plan: PlanFile, runs: Sequence[PlannedRun]) -> list[str]:
    """Return at most two lines: which rates are calibrated, and whether all methods share one of the plan's.

    Args:
        plan: The plan.
        runs: Its runs, with the values that trials have chosen.
    """
    lines = []
    methods_by_origin: dict[tuple[str, str], dict[str, None]] = {}  # values and their origin → methods
    for run in {(r.block, r.cell, r.variant): r for r in runs if r.block not in plan.trial_blocks and r.ready}.values():
        method = str(run.keys["method"])
        try:
            notes = completed(run.keys)[1]
        except SepalError:  # for example data that is not here; what needs it says so
            continue
        for values, _, origin in (note.partition(": ") for note in notes):
            methods_by_origin.setdefault((values, origin.replace(f" for {method} ", " ")), {})[method] = None
    if methods_by_origin:
        words = (
            f"{values} for {', '.join(methods)}, {origin}" for (values, origin), methods in methods_by_origin.items()
        )
        lines.append(f"rates that the plan does not set: {'; '.join(words)}")
    for block in plan.block:
        if block.name in plan.trial_blocks or block.trials or not {**plan.keys, **block.keys}.get("lr"):
            continue
        keys_by_variant = {
            name: dict(flatten_tables(plan.variants.get(name, {"method": name}))) for name in block.variants
        }
        if len({keys["method"] for keys in keys_by_variant.values() if not keys.get("lr")}) > 1:
            lines.append(ONE_RATE)
            break
    return lines
