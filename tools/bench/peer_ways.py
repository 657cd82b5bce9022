"""One federation as bare steps, PFLlib's loop, pfl, fluke and Sepal run it: ``-m tools.bench.peer_ways WAY ROW``.

All train FedAvg on the same random images with the same model, batches and rate, in one process with one thread,
without evaluation. Prints the CPU seconds of each round as JSON. A peer's own parts do all that it does in a round; it
runs in an environment that has it.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tools.bench import data, small

RATE = 0.01


@dataclass(frozen=True)
class Workload:
    """What all train: a row of the table."""

    registered: int
    sampled: int
    batch: int
    model: str
    rounds: int
    load: str

    def images(self, client: int) -> tuple[Any, ...]:
        """Return a client's training images and labels."""
        x, y, *_ = LOADERS[self.load](client)
        return x, y

    def module(self) -> nn.Module:
        """Return the model."""
        if self.model != "cnn2":
            return {"tiny": small.tiny, "pfl-cnn": small.pfl_cnn}[self.model]()  # type: ignore[no-any-return]
        return nn.Sequential(  # Sepal's cnn2, for peers whose environment has no Sepal
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3136, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


LOADERS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "data:load": data.load,
    "small:load": small.load,
    "data:load_cifar": data.load_cifar,
}
ROWS = {
    "training": Workload(20, 20, 50, "cnn2", 4, "data:load"),
    "small cnn2": Workload(1000, 50, 10, "cnn2", 6, "small:load"),
    "small perceptron": Workload(1000, 50, 10, "tiny", 12, "small:load"),
    # The workload of pfl-research's CIFAR-10 benchmark: 1,000 users × 50 images, 50 a round, one epoch, batch 10.
    "pfl's cifar-10": Workload(1000, 50, 10, "pfl-cnn", 4, "data:load_cifar"),
}


def bare(row: Workload) -> list[float]:
    """The floor: the same SGD steps and nothing else."""
    module = row.module().train()
    loaded = {c: tuple(map(torch.from_numpy, row.images(c))) for c in range(row.sampled)}
    seconds = []
    for _ in range(row.rounds):
        begun = time.process_time()
        for x, y in loaded.values():
            optimizer = torch.optim.SGD(module.parameters(), RATE)
            for rows in torch.split(torch.randperm(len(y)), row.batch):
                optimizer.zero_grad()
                functional.cross_entropy(module(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        seconds.append(time.process_time() - begun)
    return seconds


def pfllib(row: Workload) -> list[float]:
    """PFLlib's loop (github.com/TsingZ0/PFLlib), made again: a module and an optimizer a client, parameters copied."""
    server = row.module()
    loss = nn.CrossEntropyLoss()
    clients = []
    for c in range(row.registered):
        module = copy.deepcopy(server)
        x, y = row.images(c)
        examples = [(torch.from_numpy(a), torch.tensor(b)) for a, b in zip(x, y, strict=True)]
        clients.append((module, torch.optim.SGD(module.parameters(), RATE), examples))
    seconds = []
    for _ in range(row.rounds):
        begun = time.process_time()
        drawn = random.sample(clients, row.sampled)
        for module, _, _ in drawn:
            for new, old in zip(server.parameters(), module.parameters(), strict=True):
                old.data = new.data.clone()
        for module, optimizer, examples in drawn:
            batches: Any = torch.utils.data.DataLoader(examples, row.batch, drop_last=True, shuffle=True)  # type: ignore[arg-type]
            module.train()
            for x, y in batches:
                optimizer.zero_grad()
                loss(module(x), y).backward()
                optimizer.step()
        total = sum(len(examples) for *_, examples in drawn)
        for old in server.parameters():
            old.data.zero_()
        for module, _, examples in drawn:
            for mean, new in zip(server.parameters(), module.parameters(), strict=True):
                mean.data += new.data.clone() * len(examples) / total
        seconds.append(time.process_time() - begun)
    return seconds


def pfl(row: Workload) -> list[float]:
    """pfl-research (``pip install pfl``): its simulated backend, in one process."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = row.module()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

        def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:  # noqa: A002
            return functional.cross_entropy(self(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, Any]:  # noqa: A002
            return {"loss": Weighted(0.0, 1)}

    seconds: list[float] = []
    begun = [time.process_time()]

    class PflClock(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, aggregate: Any, model: Any, *, central_iteration: int) -> Any:
            now = time.process_time()
            seconds.append(now - begun[0])
            begun[0] = now
            return False, Metrics()

    images = {c: tuple(map(torch.from_numpy, row.images(c))) for c in range(row.registered)}
    loaded = {c: Dataset(raw_data=[x, y]) for c, (x, y) in images.items()}
    dataset = FederatedDataset(loaded.__getitem__, get_user_sampler("random", list(loaded)))
    module = Module()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    parameters = NNAlgorithmParams(
        central_num_iterations=row.rounds,
        evaluation_frequency=10**6,
        train_cohort_size=row.sampled,
        val_cohort_size=0,
    )
    steps = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=row.batch)
    backend = SimulatedBackend(training_data=dataset, val_data=dataset)
    begun[0] = time.process_time()
    FederatedAveraging().run(parameters, backend, model, steps, callbacks=[PflClock()], send_metrics_to_platform=False)
    return seconds


def fluke(row: Workload) -> list[float]:
    """Fluke (``pip install fluke-fl``): its FedAvg client and server."""
    _without_torchvisions_operators()
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.client import Client
    from fluke.data import FastDataLoader
    from fluke.server import Server

    settings = FlukeENV()
    settings.set_seed(0)
    settings.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    parameters = DDict(
        batch_size=row.batch,
        local_epochs=1,
        loss=nn.CrossEntropyLoss,
        optimizer=DDict(name=torch.optim.SGD, lr=RATE),
        scheduler=DDict(name=torch.optim.lr_scheduler.StepLR, step_size=1, gamma=1.0),
    )

    def loader(c: int) -> Any:
        x, y = map(torch.from_numpy, row.images(c))
        return FastDataLoader(x, y, num_labels=10, batch_size=row.batch, shuffle=True, skip_singleton=False)

    clients = [
        Client(
            index=c,
            train_set=loader(c),
            test_set=None,
            optimizer_cfg=_optimizer(parameters),
            loss_fn=nn.CrossEntropyLoss(),
            local_epochs=1,
        )
        for c in range(row.registered)
    ]
    server = Server(model=row.module(), test_set=None, clients=clients, weighted=True)
    algorithm = FedAVG(row.registered, None, {}, clients=clients, server=server)
    seconds: list[float] = []

    class FlukeClock:
        begun = 0.0

        def start_round(self, round: int, global_model: Any) -> None:
            self.begun = time.process_time()

        def end_round(self, round: int) -> None:
            seconds.append(time.process_time() - self.begun)

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **kwargs: None

    algorithm.attach(FlukeClock())
    algorithm.run(row.rounds, row.sampled / row.registered, finalize=False)
    return seconds


def _without_torchvisions_operators() -> None:
    """Let torchvision be imported where its wheel does not fit torch: fluke imports it for data sets of its own."""
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)


_libraries: list[Any] = []


def _optimizer(parameters: Any) -> Any:
    from fluke.config import OptimizerConfigurator

    return OptimizerConfigurator(parameters.optimizer, parameters.scheduler)


def sepal(row: Workload) -> list[float]:
    """Sepal's in-process engine."""
    from sepal.engines.in_process import run_in_process
    from sepal.strategies.assembly import assemble
    from tools.bench.engine import FLAT

    seconds: list[float] = []

    class SepalClock:
        def opened(self, progress: Any, total: int) -> None:
            self.begun = time.process_time()

        def round(self, progress: Any, record: Any, line: Any) -> None:
            now = time.process_time()
            seconds.append(now - self.begun)
            self.begun = now

        def closed(self, progress: Any, line: Any) -> None:
            """Do nothing: the closing round is not measured."""

    keys = {"model": small.MODELS[row.model], "own.data": f"tools.bench.{row.load}", "batch-size": row.batch}
    keys |= {"clients": row.registered, "clients-per-round": row.sampled, "rounds": row.rounds, "lr": RATE}
    keys |= {"clip-gradient": 0.0, "evaluate-clients": row.sampled}
    keys |= {"own.shape": "x".join(map(str, row.images(0)[0].shape[1:]))}
    run_in_process(assemble({**FLAT, **keys}), observers=[SepalClock()])
    return seconds


WAYS: dict[str, Callable[[Workload], list[float]]] = {way.__name__: way for way in (bare, pfllib, pfl, fluke, sepal)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(WAYS[sys.argv[1]](ROWS[sys.argv[2]])))
