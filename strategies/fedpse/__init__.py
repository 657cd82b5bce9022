"""FedPSE: personalized sparsification with element-wise aggregation. Zheng et al., CIKM 2023."""

from strategies.fedpse.contract import Hyper
from strategies.registration import register

FedPSE = register(
    "fedpse",
    "Personalized sparsification with element-wise aggregation",
    "Zheng et al., CIKM 2023",
    "strategies.fedpse.server:FedPSEServer",
    "strategies.fedpse.client:FedPSEClient",
    Hyper,
    private=("",),
)
