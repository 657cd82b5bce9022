"""FedPSE: personalized sparsification with element-wise aggregation. Zheng et al., CIKM 2023."""

from sepal.strategies.fedpse.contract import Hyper
from sepal.strategies.registration import register

FedPSE = register(
    "fedpse",
    "Personalized sparsification with element-wise aggregation",
    "Zheng et al., CIKM 2023",
    "sepal.strategies.fedpse.server:FedPSEServer",
    "sepal.strategies.fedpse.client:FedPSEClient",
    Hyper,
)
