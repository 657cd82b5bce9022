"""Every registered method and variants of it, for the checks of ``sepal check-method`` (sepal.study.method_checks)."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache

import pytest
import torch

from sepal.server.run_state import RoundStart
from sepal.server.uploads import RoundUploads
from sepal.strategies import registry
from sepal.study.method_checks.cases import SHORT, Case

CASES = {  # name of the case: its keys; a variant of a method joins by a line
    **{name: {"method": name} for name in registry.METHODS},
    "fedbuff": {"method": "fedbuff", "fedbuff.buffer": 2},  # with 10 there is no step in four rounds
    "subfedavg": {"method": "subfedavg", "subfedavg.accuracy": 0.1},  # at .5 nobody prunes in four rounds
    "subfedavg-hy": {
        "method": "subfedavg",
        "subfedavg.variant": "hy",
        "subfedavg.accuracy": 0.1,
        "model": "digits-cnn-bn",
    },
    "subfedavg-mixed": {"method": "subfedavg", "subfedavg.accuracy": 0.1, "capacity.profile": "0.25,0.6,1"},
    "pfedme": {
        "method": "pfedme",
        "pfedme.lambda": 2.0,
        "pfedme.rate": 0.1,
        "lr": 0.09,
    },  # at the authors' λ it takes 100 rounds
    "fedadam-stc": {"method": "fedadam", "compress.name": "stc"},  # a server with a state of its own
    "ditto-stc": {"method": "ditto", "compress.name": "stc", "compress.cache": 1},  # a personal model beside it
    "fedavg-ft-stc": {"method": "fedavg-ft", "compress.name": "stc"},
    "apfl-stc": {"method": "apfl", "compress.name": "stc"},  # a personal model that mixes what was received
    "fedper-topk": {"method": "fedper", "compress.name": "topk", "model": "digits-cnn-bn"},  # a part, with statistics
    "fedavg-stc-private": {
        "method": "fedavg",
        "compress.name": "stc",
        "privacy.clip": 100.0,
        "privacy.noise": 1e-6,
    },
    "fedpse-private": {"method": "fedpse", "privacy.clip": 100.0, "privacy.noise": 1e-6},
    "dmpfl-private": {"method": "dmpfl", "privacy.clip": 100.0, "privacy.noise": 1e-6},
    "local-width-mixed": {"method": "local-width", "capacity.profile": "0.05,0.25,1"},
    "pa3dfl-mixed": {"method": "pa3dfl", "capacity.profile": "0.05,0.25,1"},
    "fedrolex-mixed": {"method": "fedrolex", "capacity.profile": "0.05,0.25,1", "model": "digits-cnn-bn"},
    "fjord-mixed": {"method": "fjord", "capacity.profile": "0.05,0.25,1", "fjord.distill": False},
    "tailorfl-mixed": {"method": "tailorfl", "capacity.profile": "0.05,0.25,1"},
    "pfedgate": {"method": "pfedgate", "pfedgate.keep": 0.3},  # at .5 every block is on for some example of a round
    "pfedgate-batch": {
        "method": "pfedgate",
        "pfedgate.gating": "batch",
        "pfedgate.keep": 0.5,
        "pfedgate.keep-optimizer": True,
        "pfedgate.shift": 3.0,
        "momentum": 0.9,
    },
    "fedrts": {"method": "fedrts", "fedrts.adjust-every": 2, "fedrts.until": 4},  # four rounds end before the first
    "fedselect": {"method": "fedselect", "fedselect.every": 1},  # at 3 nobody selects in four rounds
    "fiarse": {"method": "fiarse", "capacity.profile": "0.25,1"},
    "pfedgate-client": {
        "method": "pfedgate",
        "pfedgate.gating": "client",
        "pfedgate.shift": 3.0,
        "capacity.profile": "0.15,0.6",
    },
}
MORE = {"rounds": 4, "partition.subsample": 600}
TO_LEARN = {  # keys with which a case learns within a few rounds; those of CASES are there to take other paths
    "scaffold": {"momentum": 0.0, "rounds": 5},  # it refuses momentum
    "flanc": {"momentum": 0.0},  # products of factors: momentum diverges at this rate
    "pfedhn": {"pfedhn.inner-rate": 0.02},
    # Adapters beside random frozen layers learn little.
    "fedsa-lora": {"trainable": "*", **MORE},
    "flasc": {"trainable": "*", "flasc.rate": 0.03, "flasc.down": 0.5, "flasc.up": 0.5, **MORE},
    "fedpm": {"local-epochs": 20, **MORE},  # scores start at random, and the mean is of drawn bits
    "pfedme": {"pfedme.steps": 2, **MORE},
    "sparsyfed": {"sparsyfed.keep": 0.3, "lr": 0.2, **MORE},
    **dict.fromkeys(
        ("feddst", "fedrts", "dmpfl", "fjord-mixed", "pa3dfl", "pfedgate"), MORE
    ),  # sparse or narrow at first
    # A shift is the distance from the weights that learnt without gates.
    "pfedgate-batch": {"pfedgate.shift": 0.0, **MORE},
    "pfedgate-client": {"pfedgate.shift": 0.0, "capacity.profile": "0.5,1", **MORE},
}
LEARNING = [  # own ways to train; that FedMask learns is in its own tests
    *(name for name in registry.METHODS if name != "fedmask"),
    "subfedavg-hy",
    "fjord-mixed",
    "pfedgate-batch",
    "pfedgate-client",
]


def flat(name, **keys):
    """The keys of a case; ``keys`` win."""
    return {**SHORT, **CASES[name], **keys}


class Counted(Case):
    """A case whose runs have three more attributes.

    Attributes of its runs:
        composed: How often the download of a round and client was composed.
        decoded: How often the upload of a round and client was decoded.
        warnings: All that was warned of, as text; torch warns of some things only once a process by itself.
    """

    def run(self, keys, observers=()):
        composed, decoded = Counter(), Counter()
        download, decode = RoundStart.download, RoundUploads._decode

        def counted_download(start, client, *rest):
            composed[start.plan.round, client] += 1
            return download(start, client, *rest)

        def counted_decode(uploads, client, *rest):
            decoded[uploads._start.plan.round, client] += 1
            return decode(uploads, client, *rest)

        warns_always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        try:
            with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as shown:
                warnings.simplefilter("always")
                patch.setattr(RoundStart, "download", counted_download)
                patch.setattr(RoundUploads, "_decode", counted_decode)
                run = super().run(keys, observers)
        finally:
            torch.set_warn_always(warns_always)
        run.composed, run.decoded, run.warnings = composed, decoded, [str(warning.message) for warning in shown]
        return run


@cache
def case(name):
    """The case of a name, once per process: xdist keeps the tests of a file together."""
    return Counted(name, CASES[name])
