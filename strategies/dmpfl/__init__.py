"""DM-PFL and DM-PFL+: dual-masked personalized federated learning. Zhang et al., KDD 2023."""

from strategies.dmpfl.contract import Hyper
from strategies.registration import register

DmPfl = register(
    "dmpfl",
    "Dual masks: sparse global and personal models that share weights",
    "Zhang et al., KDD 2023",
    "strategies.dmpfl.server:DmPflServer",
    "strategies.dmpfl.client:DmPflClient",
    Hyper,
    private=("2a",),
)
