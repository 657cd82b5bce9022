"""Pa3dFL: selective knowledge sharing under capacity heterogeneity. Wang, Wang, Peng, Wang, Wang, 2024."""

from sepal.method.readers import Reader
from sepal.strategies.pa3dfl.contract import Hyper
from sepal.strategies.registration import register

Pa3dFL = register(
    "pa3dfl",
    "Decomposed models of each client's width, with personal factors from a hypernetwork",
    "Wang et al., 2024",
    "sepal.strategies.pa3dfl.server:Pa3dFLServer",
    "sepal.strategies.pa3dfl.client:Pa3dFLClient",
    Hyper,
    starts_from="factors of its own",
    learned={"vectors": Reader("sepal.strategies.pa3dfl.embedding_reader:embeddings", "Pa3dFL's embeddings")},
)
