"""The ServerApp."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from quickstart.task import Net
from sepal.strategies.fedpse import FedPSE

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    num_rounds: int = context.run_config["num-server-rounds"]
    lr: float = context.run_config["learning-rate"]
    fraction_evaluate: float = context.run_config["fraction-evaluate"]
    torch.manual_seed(0)  # so that a run can be repeated
    arrays = ArrayRecord(Net().state_dict())

    strategy = FedPSE(Net, context.run_config, fraction_evaluate=fraction_evaluate)

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
    )
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"accuracy after round {number}: {metrics['accuracy']:.3f}")
