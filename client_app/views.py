"""A client's examples for views beyond its own test part: of all clients, shifted, corrupted; and its class weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sepal.config import Mark, RunConfig, marked
from sepal.data import ClientData, FederatedData
from sepal.data.corruption import corrupt
from sepal.data.scaling import Scale
from sepal.data.streams import Stream
from sepal.errors import ConfigError
from sepal.rng import derive
from sepal.training.columns import Part, tensors
from sepal.training.evaluation import Shift, no_examples

if TYPE_CHECKING:
    from sepal.client_app.build import Shared

Pair = tuple[torch.Tensor, torch.Tensor]


def refuse_streams(config: RunConfig, data: ClientData, client: str) -> None:
    """Raise if a key needs all examples at once, and the data is read from a Dataset.

    Raises:
        ConfigError: See above.
    """
    if not isinstance(data.train, Stream):
        return
    for key in marked(RunConfig, Mark.WHOLE):
        if config.value(key) != "none":
            expected = "none with a Dataset, which is read batch by batch: return arrays for it"
            raise ConfigError(f"{client}: {key}", expected, config.value(key))


def pooled(shared: Shared, data: FederatedData, clients: int) -> Pair:
    """Return test examples of all clients; empty if the data is private."""
    if data.private:
        return no_examples()
    if shared.pooled is None:
        count = shared.assembly.setup.config.pooled_samples
        shared.pooled = tensors(data.pooled_test(clients, count), _device(shared, data))
    return shared.pooled


def _device(shared: Shared, data: FederatedData) -> str:
    """Return where examples of all clients are put: rows of a table are float64, which not all devices have."""
    return "cpu" if data.info.table else shared.device


def scaled(pair: Pair, scale: Scale | None, device: str = "cpu") -> Pair:
    """Return examples of other clients as this client's model takes them: standardised like its own."""
    if scale is None or not len(pair[1]):
        return pair
    return torch.from_numpy(scale(pair[0].numpy())).to(device), pair[1].to(device)


def shift(
    shared: Shared, data: FederatedData, clients: int, client: str, examples: int, scale: Scale | None = None
) -> Shift | None:
    """Return the client's test-time shift, the same for every method; None if the data is private."""
    if data.private:
        return None
    if shared.everyone is None:
        shared.everyone = tensors(data.pooled_test(clients), _device(shared, data))
    rng = derive(data.seed, "shift", client)
    x, y = shared.everyone
    rows = torch.from_numpy(rng.permutation(len(y))[:examples]).to(y.device)
    others = scaled((x[rows], y[rows]), scale, shared.device)
    return Shift(torch.from_numpy(rng.permutation(examples)).to(shared.device), others)


def corrupted(shared: Shared, client: str, x: Part, y: Part) -> Pair:
    """Return the client's test part, in memory, corrupted; the noise is the same for every method."""
    settings = shared.assembly.setup.config.evaluate
    rng = derive(shared.assembly.setup.config.seed, "corruption", client)
    noisy = corrupt(x[:].cpu().numpy(), shared.assembly.info, settings.corruption, settings.severity, rng)
    return torch.from_numpy(noisy).to(shared.device), y[:]


def class_weights(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Return weights float32 (classes,) under which all classes that a client has count alike in its loss.

    n / (k · n_c) for a class with n_c of n examples and k classes that occur; 0 for one that does not occur.
    """
    counts = torch.bincount(labels, minlength=classes).to(torch.float32)
    weights = len(labels) / (int((counts > 0).sum()) * counts.clamp(min=1))
    return weights * (counts > 0)
