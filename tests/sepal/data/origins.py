"""What an exported model's file says of a data set, for tests of how examples are prepared for it."""

from __future__ import annotations

from sepal.export.portable import Origin


def origin_of(info, **changes):
    facts = {
        "model": str(info.defaults["model"]),
        "shape": info.input_shape,
        "classes": info.classes,
        "vocabulary": info.vocabulary,
        "width": 1.0,
        "mean": info.mean,
        "std": info.std,
        "method": "fedavg",
        "dataset": info.name,
        "run": "run",
        "client": "client-00000",
        "class_names": info.class_names,
        "columns": info.columns,
    }
    return Origin(**{**facts, **changes})
