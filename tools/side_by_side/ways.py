"""One framework runs the federation: ``python -m tools.side_by_side.ways WAY ROUNDS WORKERS DIRECTORY STOP``.

FedAvg, 10 clients that all train in each round, 20 random images each, one epoch in batches of 10, rate .01, a
perceptron of 7,960 parameters, seed 0, one thread a process. With STOP it saves what the framework can save and kills
itself after that round; the same command without STOP then goes on from there. Prints a line of JSON: SHA-256 of the
weights, and the bytes that the framework itself reports.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tools.bench import small

CLIENTS, BATCH, RATE = 10, 10, 0.01


def result(directory: Path, tensors: Iterable[Any]) -> dict[str, Any]:
    """Return the digest of a model's tensors, in their order, which are written to ``weights.npy``."""
    flat = np.concatenate([np.asarray(tensor, np.float32).ravel() for tensor in tensors])
    np.save(directory / "weights.npy", flat)
    return {"weights": hashlib.sha256(flat.tobytes()).hexdigest()}


def parameters_of(module: nn.Module) -> list[Any]:
    """Return a module's parameters as arrays."""
    return [parameter.detach().numpy() for parameter in module.parameters()]


def seeded() -> nn.Module:
    """Return the first model, with all generators that a framework may use at seed 0."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # frameworks draw from it
    torch.manual_seed(0)
    return small.tiny()  # type: ignore[no-any-return]


def kill() -> None:
    """End this process as a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


def pfl(rounds: int, workers: int, directory: Path, stop: int) -> dict[str, Any]:
    """pfl-research, with its callback that restores a training."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.restore_training import RestoreTrainingCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = seeded()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

        def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:  # noqa: A002
            return functional.cross_entropy(self(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, Any]:  # noqa: A002
            return {}

    class PowerCut(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, aggregate: Any, model: Any, *, central_iteration: int) -> Any:
            if stop and central_iteration + 1 >= stop:
                kill()
            return False, Metrics()

    module = Module()
    images = {c: tuple(map(torch.from_numpy, small.load(c)[:2])) for c in range(CLIENTS)}
    loaded = {c: Dataset(raw_data=[x, y]) for c, (x, y) in images.items()}
    dataset = FederatedDataset(loaded.__getitem__, get_user_sampler("random", list(loaded)))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    parameters = NNAlgorithmParams(
        central_num_iterations=rounds, evaluation_frequency=10**6, train_cohort_size=CLIENTS, val_cohort_size=0
    )
    steps = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH)
    backend, algorithm = SimulatedBackend(training_data=dataset, val_data=dataset), FederatedAveraging()
    callbacks = [
        RestoreTrainingCallback([model, algorithm], [f"{directory}/model", f"{directory}/algorithm"]),
        PowerCut(),
    ]
    algorithm.run(parameters, backend, model, steps, callbacks=callbacks, send_metrics_to_platform=False)
    return result(directory, parameters_of(module))


def fluke(rounds: int, workers: int, directory: Path, stop: int) -> dict[str, Any]:
    """Fluke, with its own files of server and clients."""
    from tools.bench import peer_ways

    peer_ways._without_torchvisions_operators()
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.client import Client
    from fluke.comm import ChannelObserver
    from fluke.data import FastDataLoader
    from fluke.server import Server

    settings = FlukeENV()
    settings.set_seed(0)
    settings.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    optimizer = DDict(
        optimizer=DDict(name=torch.optim.SGD, lr=RATE),
        scheduler=DDict(name=torch.optim.lr_scheduler.StepLR, step_size=1, gamma=1.0),
    )
    model = seeded()
    clients = []
    for number in range(CLIENTS):
        x, y = map(torch.from_numpy, small.load(number)[:2])
        loader = FastDataLoader(x, y, num_labels=10, batch_size=BATCH, shuffle=True, skip_singleton=False)
        client = Client(
            index=number,
            train_set=loader,
            test_set=None,
            optimizer_cfg=peer_ways._optimizer(optimizer),
            loss_fn=nn.CrossEntropyLoss(),
            local_epochs=1,
        )
        clients.append(client)
    server = Server(model=model, test_set=None, clients=clients, weighted=True)
    algorithm = FedAVG(CLIENTS, None, {}, clients=clients, server=server)
    spent: list[int] = []

    class Counter(ChannelObserver):  # type: ignore[misc]
        def message_received(self, by: Any, message: Any) -> None:
            spent.append(int(message.size))

    server.channel.attach(Counter())
    saved = next(iter(sorted(directory.glob("saved*"))), None)
    if saved is not None:
        algorithm.load(str(saved))
    algorithm.run((stop or rounds) - algorithm.rounds, 1.0, finalize=False)
    if stop:
        algorithm.save(str(directory / "saved"), round=stop)
        kill()
    return {**result(directory, parameters_of(server.model)), "reported_numbers": sum(spent)}


def flower(rounds: int, workers: int, directory: Path, stop: int, seeded_clients: bool = False) -> dict[str, Any]:
    """Flower's FedAvg in its simulation."""
    from flwr.simulation import run_simulation

    client_app, server_app, results = flower_apps(stop or rounds, directory, seeded_clients)
    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": workers}}
    run_simulation(server_app, client_app, CLIENTS, backend_config=resources)
    return results[0]  # type: ignore[no-any-return]


def flower_apps(rounds: int, directory: Path, seeded_clients: bool) -> tuple[Any, Any, list[Any]]:
    """Return Flower's apps as its quickstart for PyTorch has them, which seeds nothing at a client, and the results."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    client_app, server_app, results = ClientApp(), ServerApp(), []

    @client_app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        number = int(context.node_config["partition-id"])
        if seeded_clients:
            torch.manual_seed(number)
        module = small.tiny()
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(module.parameters(), RATE)
        x, y = map(torch.from_numpy, small.load(number)[:2])
        for rows in torch.split(torch.randperm(len(y)), BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(module(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(y)})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        arrays = ArrayRecord(seeded().state_dict())
        ended = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
        results.append(result(directory, [array.numpy() for array in ended.arrays.values()]))

    return client_app, server_app, results


def pfllib(rounds: int, workers: int, directory: Path, stop: int) -> dict[str, Any]:
    """PFLlib's FedAvg, from the checkout that PFLLIB names, with files where its reader looks for them."""
    sys.path.insert(0, str(Path(os.environ["PFLLIB"]) / "system"))
    from flcore.servers.serveravg import FedAvg

    for number in range(CLIENTS):
        x, y, x_test, y_test = small.load(number)
        for part, images, labels in (("train", x, y), ("test", x_test, y_test)):
            file = directory / "dataset" / "small" / part / f"{number}.npz"
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(file, data=np.array({"x": images, "y": labels}))
    (directory / "system").mkdir()
    os.chdir(directory / "system")  # it looks for ../dataset
    settings: dict[str, Any] = {"dataset": "small", "num_classes": 10, "num_clients": CLIENTS, "join_ratio": 1.0}
    settings |= {"global_rounds": rounds - 1, "local_epochs": 1, "batch_size": BATCH, "local_learning_rate": RATE}
    settings |= {"learning_rate_decay": False, "learning_rate_decay_gamma": 1.0, "device": "cpu", "algorithm": "FedAvg"}
    settings |= {"random_join_ratio": False, "client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0}
    settings |= {"time_select": False, "time_threthold": 1e9, "eval_gap": rounds, "few_shot": 0, "num_new_clients": 0}
    settings |= {"fine_tuning_epoch_new": 0, "dlg_eval": False, "dlg_gap": 1, "batch_num_per_client": 1, "top_cnt": 1}
    settings |= {"auto_break": False, "goal": "", "save_folder_name": "saved"}
    server = FedAvg(argparse.Namespace(**settings, model=seeded()), 0)
    server.train()
    return result(directory, parameters_of(server.global_model))


def sepal(rounds: int, workers: int, directory: Path, stop: int) -> dict[str, Any]:
    """Sepal, in process; the checkpoint of a round is what it always writes."""
    from sepal.study.run import execute, prepare

    prepared = prepare(sepal_keys(rounds, directory), directory, workers)

    class PowerCut:
        def opened(self, progress: Any, total: int) -> None:
            """Do nothing."""

        def round(self, progress: Any, record: Any, line: Any) -> None:
            if stop and line["round"] > stop:  # in the next round, after its checkpoint was due
                kill()

        def closed(self, progress: Any, line: Any) -> None:
            """Do nothing."""

    execute(prepared, workers, None, [PowerCut()])
    summary = json.loads((prepared.path / "summary.json").read_text(encoding="utf-8"))
    sent = summary["bytes"]
    return {**result(directory, last_weights(prepared.path)), "reported_bytes": sent["up"] + sent["down"]}


def sepal_keys(rounds: int, directory: Path) -> dict[str, Any]:
    """Return the keys of Sepal's run, which writes ``directory/run``."""
    from tools.bench.engine import FLAT

    keys: dict[str, Any] = {**FLAT, "model": small.MODELS["tiny"], "own.data": "tools.bench.small:load"}
    keys |= {"batch-size": BATCH, "lr": RATE, "clients": CLIENTS, "rounds": rounds}
    return {**keys, "checkpoint-every": 1, "clip-gradient": 0.0, "seed": 0, "name": "run", "out": str(directory)}


def last_weights(run: Path) -> list[Any]:
    """Return the tensors of a run's last checkpoint."""
    from safetensors.numpy import load_file

    tensors = load_file(max((run / "checkpoints").glob("round-*.safetensors")))
    return [tensors[name] for name in sorted(tensors) if name.endswith(("weight", "bias"))]


WAYS: dict[str, Callable[[int, int, Path, int], dict[str, Any]]] = {
    "flower": flower,
    "flower-seeded": partial(flower, seeded_clients=True),
    "fluke": fluke,
    "pfl": pfl,
    "pfllib": pfllib,
    "sepal": sepal,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    name, number_of_rounds, number_of_workers, folder, last = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    print(json.dumps(WAYS[name](int(number_of_rounds), int(number_of_workers), Path(folder), int(last))))
