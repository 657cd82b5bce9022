"""pFedGate: sparse models made per example, batch or client by a private gating layer. Chen et al., ICML 2023."""

from sepal.method.readers import Reader
from sepal.strategies.pfedgate.contract import Hyper
from sepal.strategies.registration import register

PFedGate = register(
    "pfedgate",
    "Sparse models made by each client's private gate within its budget",
    "Chen et al., ICML 2023",
    "sepal.strategies.pfedgate.server:PFedGateServer",
    "sepal.strategies.pfedgate.client:PFedGateClient",
    Hyper,
    learned={
        "masks": Reader("sepal.strategies.pfedgate.gate_reader:masks", "pFedGate's blocks", examples=True),
        "vectors": Reader("sepal.strategies.pfedgate.gate_reader:gates", "pFedGate's gates, its Figure 4"),
    },
    defaults={"clip-gradient": 0.0},  # it has a clip of its own
)
