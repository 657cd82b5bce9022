"""Sub-FedAvg, unstructured and hybrid: clients prune their models step by step. Vahidian et al., 2021."""

from sepal.method.readers import Reader
from sepal.strategies.registration import register
from sepal.strategies.subfedavg.contract import Hyper

SubFedAvg = register(
    "subfedavg",
    "Each client prunes its model step by step; each entry is averaged over the clients that kept it",
    "Vahidian et al., ICDCS Workshops 2021",
    "sepal.strategies.subfedavg.server:SubFedAvgServer",
    "sepal.strategies.subfedavg.client:SubFedAvgClient",
    Hyper,
    learned={
        "masks": Reader("sepal.strategies.subfedavg.pruning_reader:masks", "Sub-FedAvg's masks"),
        "pruning": Reader("sepal.strategies.subfedavg.pruning_reader:courses", "Sub-FedAvg, Figure 1"),
    },
)
