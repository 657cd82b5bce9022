"""The number of torch threads. Engines give the same bits only with the same number."""

from __future__ import annotations


def set_threads(count: int) -> None:
    """Set the number of torch threads in this process."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
