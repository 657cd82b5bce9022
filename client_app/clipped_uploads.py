"""A client's part in central privacy: what it uploads is clipped, and one bit says whether it needed to be."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sepal.errors import ProtocolError
from sepal.protocol.summed import Entries
from sepal.protocol.types import Payload, Plan, Weights
from sepal.training.privacy import clip


@dataclass(frozen=True)
class ClippedUploads:
    """Clips whatever a method uploads, over all its tensors together (docs/privacy.md).

    Only the upload is clipped: what the method keeps on the client is as it was.

    Attributes:
        first: W_0.
        tells: Whether the client says if it has clipped (``privacy.quantile``).
    """

    first: Weights
    tells: bool = False

    def clipped(self, upload: Payload, download: Payload, plan: Plan) -> tuple[Payload, bool]:
        """Return an upload that changes what the client received by at most ``plan.clip``, and whether it did before.

        A change that is not finite is taken as none, because an error would depend on the client's data alone.

        Args:
            upload: What the method sends: tensors with values.
            download: What it answers, decoded.
            plan: The round's plan, with a clip.

        Raises:
            ProtocolError: The upload has more than values, or the server names no clip.
        """
        if upload.scalars:
            raise ProtocolError("upload", "values alone, with privacy.mode = central", ", ".join(upload.scalars))
        if not plan.clip:
            raise ProtocolError("clip", "a number above 0, with privacy.mode = central", plan.clip)
        entries = Entries.of(upload.tensors, download, self.first)
        change = entries.change(upload.tensors)
        if not np.isfinite(change).all():
            change = np.zeros_like(change)
            within = False
        else:
            within = float(np.linalg.norm(change.astype(np.float64))) <= plan.clip
        if within:
            return upload, True
        shortened = entries.tensors(clip(change, plan.clip))
        coded = {name: replace(tensor, values=shortened[name].values) for name, tensor in upload.tensors.items()}
        return Payload(coded), False
