"""The ClientApp."""

from flwr.app import Context

from quickstart.task import Net, load_data
from sepal.client_app.plain import wrap_client
from sepal.strategies.fedpse import FedPSE


def data(context: Context):
    """Return the client's DataLoaders for training and test."""
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    return load_data(partition_id, num_partitions, context.run_config["batch-size"])


app = wrap_client(FedPSE, Net, data)
