"""DM-PFL and DM-PFL+: dual-masked personalized federated learning. Zhang et al., KDD 2023."""

from sepal.method.readers import Reader
from sepal.strategies.dmpfl.contract import Hyper
from sepal.strategies.registration import register

DmPfl = register(
    "dmpfl",
    "Dual masks: sparse global and personal models that share weights",
    "Zhang et al., KDD 2023",
    "sepal.strategies.dmpfl.server:DmPflServer",
    "sepal.strategies.dmpfl.client:DmPflClient",
    Hyper,
    learned={"masks": Reader("sepal.strategies.dmpfl.mask_reader:masks", "DM-PFL, Figure 6")},
)
