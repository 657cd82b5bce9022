"""The views in which a client's accuracy is evaluated.

*received*: the downloaded model before any local step. *trained*: the model after the client's local steps. *pooled*:
the trained model on the test data of all clients. *kept*: the client's own model after its last training, which it has
between rounds; a client that has not taken part yet has none. A method's record says which of these a user of a
deployed client predicts with (:attr:`sepal.method.interface.Method.deployed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sepal.errors import ProtocolError

VIEWS = ("received", "trained", "pooled")
CLOSING_VIEWS = (*VIEWS, "kept")  # of every full evaluation, the closing one among them
MODELS = ("received", "trained", "kept")  # views on the client's own test data
SHIFTS = (0, 20, 40, 60, 80, 100)  # per cent of a client's test data replaced (DM-PFL, Table 2)


def further_views(shift: bool, corruption: bool) -> tuple[str, ...]:
    """Return the additional views of the closing round: under test-time shift, and on corrupted inputs."""
    models = MODELS
    shifted = [f"{view}-shift-{percent}" for view in models for percent in SHIFTS] if shift else []
    return (*shifted, *(f"{view}-corrupted" for view in models if corruption))


def needs_training(views: Sequence[str]) -> bool:
    """Return whether one of ``views`` is of the model after the client's local steps."""
    return any(view.startswith(("trained", "pooled")) for view in views)


def refuse_unknown(views: Sequence[str]) -> None:
    """Reject names of views that a server has no reason to ask for, and a view that is asked for twice.

    Raises:
        ProtocolError: There is such a name.
    """
    view_names = (*CLOSING_VIEWS, *further_views(True, True))
    if len(set(views)) < len(views) or not set(views).issubset(view_names):
        raise ProtocolError("views", "names of views, each once", ", ".join(views))


def degree(view: str) -> int | None:
    """Return the percentage of a view like ``trained-shift-40``; None for any other view."""
    _, separator, percent = view.partition("-shift-")
    return int(percent) if separator and percent.isdecimal() else None


def check_counts(metrics: Mapping[str, float], views: Sequence[str]) -> None:
    """Reject impossible counts before anything uses them.

    Args:
        metrics: The metrics of one client's reply.
        views: The views that were requested.

    Raises:
        ProtocolError: A view that was not requested, one count without the other, or more correct examples than
            examples.
    """
    for key in metrics:
        view, dot, _ = key.partition(".")
        if view.partition("-")[0] in CLOSING_VIEWS and not (dot and view in views):
            raise ProtocolError(f"metrics.{key}", f"counts of {', '.join(views) or 'no view'}", "another view")
    for name in (f"{view}.{part}" for view in views for part in ("", "validation-")):
        correct, examples = metrics.get(f"{name}correct", -1.0), metrics.get(f"{name}examples", -1.0)
        whole = correct.is_integer() and examples.is_integer() and examples < 2**40
        if not whole or correct > examples or (correct < 0 <= examples):
            raise ProtocolError(f"metrics.{name}correct", "a count, at most examples", f"{correct:g} of {examples:g}")
