"""What ``sepal.run`` and ``sepal.compare`` return: data frames of figures, models, and reports for a notebook."""

from __future__ import annotations

import base64
import html
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    from torch import nn

    from sepal.export.portable import Loaded
    from sepal.runs.stored_run import StoredRun
    from sepal.study.comparison import Comparison

HOW = "you allow: sepal.load(RUN, code=[…])"
HEIGHT = 720  # pixels of a report in a notebook


@dataclass(frozen=True)
class Run:
    """A run with its directory.

    Attributes:
        path: The run's directory (docs/run-directory.md).
        code: Code that its keys may name: for a run of this session the code that it ran with, for another run the code
            that :func:`sepal.load` got.
    """

    path: Path
    code: frozenset[str] = frozenset()

    @cached_property
    def stored(self) -> StoredRun:
        """Configuration, rounds and summary, as stored."""
        from sepal.runs.stored_run import read_run

        return read_run(self.path)

    @property
    def summary(self) -> Mapping[str, Any]:
        """summary.json; empty until the run has ended."""
        return self.stored.summary or {}

    @property
    def deployed(self) -> str:
        """The view of the model that a client's user predicts with: ``received``, ``trained`` or ``kept``."""
        return self.stored.deployed

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Accuracies, a row for each client, round and view: ``round, client, view, accuracy`` (a fraction).

        Of a task with another headline, the last column has its name, such as ``rmse``.
        """
        import pandas as pd

        from sepal.protocol.views import CLOSING_VIEWS
        from sepal.study.runs import naming

        with naming(self.path):
            rows = [
                (line["round"], client["name"], view, value)
                for line in self.stored.lines
                for client in line["clients"]
                for view in CLOSING_VIEWS
                if (value := client.get(view)) is not None
            ]
        return pd.DataFrame(rows, columns=["round", "client", "view", self.stored.measure.name])

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Means over clients, bytes and seconds, a row for each round: the columns of `sepal show --csv`."""
        import pandas as pd

        from sepal.report.files import by_round
        from sepal.study.runs import naming

        with naming(self.path):
            return pd.DataFrame(by_round(self.stored))

    def hours(self, devices: str = "") -> pd.DataFrame:
        """Return simulated hours: when the clients would have had the models of each evaluation of all of them.

        Args:
            devices: A profile of devices, such as ``phones``, or a file (docs/simulated-time.md); empty: the run's own.

        Returns:
            A row for each draw of the devices, evaluation and view: ``draw`` (the profile's seed), ``round`` (of the
            closing evaluation the last one plus 1), ``view``, ``hours`` and ``accuracy``, a fraction; of a task with
            another headline, the last column has its name.

        Raises:
            ConfigError: There is no such profile, the run has none of its own, or it says nothing of this run.
        """
        return Compared(self.path).hours(devices).drop(columns=["setting", "name", "seed"])

    def model(self, client: str | int, view: str = "") -> nn.Module:
        """Return a client's deployed model, whose accuracy the tables show, in evaluation mode.

        It takes examples as in training: images are scaled by the data's mean and standard deviation, which
        :meth:`prepare` does for you.

        Args:
            client: Its name, or its number from 0.
            view: ``received``, ``trained`` or ``kept`` for another of its models (docs/views.md).

        Raises:
            ConfigError: The run has no such client, or its model cannot be exported.
            StateError: The run's files are damaged.
        """
        return self._loaded(client, view).module.eval()

    def predict(self, client: str | int, data: Any, view: str = "") -> pd.DataFrame:
        """Return a client's predictions, as `sepal predict` makes them: pictures and rows are prepared as in training.

        Args:
            client: Its name, or its number from 0.
            data: Path of an image, a CSV, NPZ or NPY file, or a directory of such; a picture or a list of pictures,
                each a PIL image, an array (H, W[, C]), uint8 or uint16, or in a list a path; or an array (n, …): such
                pictures (n, H, W[, C]), rows of a table as in its file, or examples as the module takes them.
            view: As in :meth:`model`.

        Returns:
            A row for each example: ``example, label, name, probability`` of classes; else the task's predictions. Of
            masks ``example, mask``, whose cells are int64 (H, W); of a task of one's own ``example, prediction``.

        Raises:
            ConfigError: As in :meth:`model`.
            DataError: The data cannot be read.
            ModelError: It does not have the model's shape.
        """
        import pandas as pd

        from sepal.export.predicting import predictions

        result = predictions(self._loaded(client, view), data)
        if (table := result.table()) is None:
            head = "mask" if result.model.task.name == "segmentation" else "prediction"
            return pd.DataFrame({"example": result.names, head: list(result.predicted)})
        return pd.DataFrame(table[1], columns=table[0])

    def prepare(self, data: Any, client: str | int = 0) -> npt.NDArray[Any]:
        """Return what :meth:`model` takes: pictures or other data, prepared as in training and by :meth:`predict`.

        Args:
            data: As in :meth:`predict`.
            client: A client with a model. Pictures are prepared alike for all.

        Returns:
            float32 (n, …), of pictures (n, C, H, W); of tokens int64.

        Raises:
            ConfigError, DataError, ModelError: As in :meth:`predict`.
        """
        from sepal.export.preparing import prepared, read
        from sepal.study.runs import model_of

        origin = model_of(self.path, client, allow=self._allowed(), how=HOW).origin
        return prepared(origin, read(origin, data).x)

    def _allowed(self) -> frozenset[str]:
        """Return the code that may be imported; functions of this session are known to it alone."""
        from sepal import user_modules
        from sepal.config.elsewhere import named_code

        session_code = (
            name for name in named_code(self.stored.config).values() if name.startswith(f"{user_modules.DEFINED}:")
        )
        return self.code.union(session_code)

    def _loaded(self, client: str | int, view: str) -> Loaded:
        from sepal.export.extraction import write_model
        from sepal.study.runs import model_of

        client_model = model_of(self.path, client, view, self._allowed(), HOW)
        with tempfile.TemporaryDirectory() as scratch:
            return write_model(client_model, Path(scratch) / "model.safetensors", with_client=True)

    def plot(self, data: bool = False, devices: str = "") -> Report:
        """Return the run's report, which a notebook shows.

        Args:
            data: Whether the data that the run's keys name may be read, for the labels of a run of an earlier version.
            devices: A profile of devices, for accuracy against simulated hours; empty: the run's own.
        """
        return Report((str(self.path),), self.code, data, devices)


@dataclass(frozen=True)
class Compared:
    """Runs side by side.

    Attributes:
        path: The directory of the runs.
    """

    path: Path

    @cached_property
    def comparison(self) -> Comparison:
        """The runs and their figures."""
        from sepal.study.comparison import read_comparison
        from sepal.study.runs import naming

        with naming(self.path):
            return read_comparison([str(self.path)])

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row of figures for each setting and variant: the columns of ``comparison.csv``."""
        import pandas as pd

        from sepal.report.files import by_variant
        from sepal.study.runs import naming

        with naming(self.path):
            return pd.DataFrame(by_variant(self.comparison))

    def hours(self, devices: str = "") -> pd.DataFrame:
        """Return simulated hours as :meth:`Run.hours` does, with ``setting``, ``name`` and ``seed`` of each run.

        Raises:
            ConfigError: There is no such profile, runs have none of their own, or it says nothing of some run.
        """
        import pandas as pd

        from sepal.study.comparison import read_comparison
        from sepal.study.runs import naming
        from sepal.study.simulated_hours import hour_rows

        with naming(self.path):
            comparison = read_comparison([str(self.path)], devices=devices)
            rows = [row for variant in comparison.all_variants() for row in hour_rows(variant)]
        names = ["setting", "name", "seed", "draw", "round", "view", "hours", comparison.measure.name]
        return pd.DataFrame(rows, columns=names)

    def frontier(self) -> Frontier:
        """Return deployed accuracy against MB, as a picture that a notebook shows, a frame and words."""
        return Frontier(self.comparison)

    def plot(self, devices: str = "") -> Report:
        """Return the comparison's report, which a notebook shows.

        Args:
            devices: A profile of devices, for accuracy against simulated hours; empty: the runs' own.
        """
        return Report((str(self.path),), devices=devices)


@dataclass(frozen=True)
class Frontier:
    """Deployed accuracy, or another headline, against MB: shown by a notebook, or written with :meth:`save`."""

    comparison: Comparison

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Rows by setting and MB: ``setting, name, megabytes, accuracy, frontier, noise, megabytes_near``.

        ``megabytes`` are those of training, up and down, over all clients. A variant is on the ``frontier`` if no other
        of its setting is at least as accurate with at most its MB; if that is within the noise, ``noise`` names of
        which other. ``megabytes_near``: MB until it is within one point of FedAvg-FT and stays there.
        """
        import pandas as pd

        from sepal.study.frontier import close_to, entries, frontier

        rows = []
        with self._naming():
            for cell in self.comparison.cells:
                variants = self.comparison.variants(cell)
                near = close_to(variants) if variants else None
                for standing in frontier(entries(variants), self.comparison.measure):
                    entry, arrival = standing.entry, near and near.reached.get(standing.entry.label)
                    row = (cell, entry.label, entry.megabytes, entry.value.mean, standing.frontier, standing.rival)
                    rows.append((*row, arrival.megabytes if arrival else None))
        names = ["setting", "name", "megabytes", self.comparison.measure.name, "frontier", "noise", "megabytes_near"]
        return pd.DataFrame(rows, columns=names)

    @property
    def words(self) -> str:
        """Which variants are on it, a line for each setting."""
        from sepal.report.sentences import frontier_sentence

        cells = self.comparison.cells
        with self._naming():
            return "\n".join(f"{cell}: " * bool(cell) + frontier_sentence(self.comparison, cell) for cell in cells)

    def _naming(self) -> AbstractContextManager[None]:
        from sepal.study.runs import naming

        return naming(self.comparison.results[0].stored.path)

    def save(self, path: str | Path) -> Path:
        """Write the picture as SVG, which follows the reader's light or dark settings.

        Raises:
            ConfigError: The extra ``report`` is not installed, or no setting has two variants with figures.
        """
        from sepal.errors import ConfigError
        from sepal.report.page import write_picture

        with self._naming():
            written = write_picture(self.comparison, Path(path))
        if written:
            return written
        raise ConfigError("frontier", "two variants of a setting with figures", "fewer")

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory() as scratch:
            drawing = base64.b64encode(self.save(Path(scratch) / "frontier.svg").read_bytes()).decode()
        words = html.escape(self.words).replace("\n", "<br>")
        return f'<img alt="{words}" src="data:image/svg+xml;base64,{drawing}"><p>{words}</p>'


@dataclass(frozen=True)
class Report:
    """A report: shown by a notebook, or written with :meth:`save`."""

    places: tuple[str, ...]
    code: frozenset[str] = frozenset()
    data: bool = False
    devices: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the report as one HTML file."""
        from sepal.report.page import write_html
        from sepal.runs.stored_run import Allowed
        from sepal.study.runs import naming

        with naming(Path(self.places[0])):
            return write_html(self.places, Path(path), Allowed(self.code, self.data), self.devices)

    def _repr_html_(self) -> str:
        from sepal.report.page import render
        from sepal.runs.stored_run import Allowed
        from sepal.study.comparison import read_comparison
        from sepal.study.runs import naming

        with naming(Path(self.places[0])):
            comparison = read_comparison(self.places, Allowed(self.code, self.data), self.devices)
            page = html.escape(render(comparison))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
