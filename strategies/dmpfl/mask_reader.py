"""The masks of an ended run: the clients' own and the global one (Zhang et al., KDD 2023, Figure 6)."""

from __future__ import annotations

from sepal.masks.packed import unpack
from sepal.method.readers import ClientMasks, EndedRun, joined
from sepal.strategies.dmpfl.server import DmPflServer


def masks(run: EndedRun) -> ClientMasks:
    """Return the masks in the server's state."""
    run.check_few(run.server.held)
    algorithm, names = DmPflServer(run.setup), sorted(run.server.held)
    personal = [algorithm.personal_mask(run.server, name) for name in names]
    shared = joined([unpack(run.server.global_mask, algorithm.layout)], algorithm.parts)[0]
    return ClientMasks(names, algorithm.parts, joined(personal, algorithm.parts), shared)
