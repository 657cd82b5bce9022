"""Every method's final bits, so that a change of structure is known to be a change of structure only.

``python -m tests.test_golden_weights`` writes ``tests/golden/weights.txt`` anew. Bits depend on the kind of processor
and on torch, so the file says which; on another machine the test is skipped. A processor with AVX512 gives all these
bits but those of FedEM's clients under ``ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell`` and numpy's ``NPY_DISABLE_CPU_FEATURES``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sepal.engines.in_process import run_in_process
from sepal.server_app.summary import digest_clients, processor, weights_digest
from sepal.strategies import registry
from sepal.strategies.assembly import assemble

GOLDEN = Path(__file__).parent / "golden" / "weights.txt"
FLAT = {
    "dataset": "digits",
    "clients": 4,
    "rounds": 4,
    "evaluate-every": 2,
    "partition.name": "dirichlet",
    "partition.alpha": 1.0,
    "partition.subsample": 240,
    "seed": 3,
    "lr": 0.05,
}
# Rates other than FLAT's; calibration must not move the bits.
RATES = {
    "pfedme": {"lr": 0.09, "pfedme.lambda": 15.0, "pfedme.rate": 0.005},
    "pfedhn": {"pfedhn.rate": 0.01, "pfedhn.inner-rate": 0.005},
    "fedprox": {"fedprox.mu": 0.01},
    "ditto": {"ditto.lambda": 1.0},
    "fedbabu": {"fedbabu.tuning": 1.0},
    "fjord": {"fjord.distill": False},
    "mtl": {"mtl.lambda": 0.0},
    "pa3dfl": {"pa3dfl.rate": 0.1},
    "pfedgate": {"pfedgate.start": "half", "pfedgate.rate": 0.1},
}
PARTIAL = {"clients-per-round": 2}
VARIANTS = {
    "fedpse-per-layer": {"method": "fedpse", "fedpse.per-layer": True, **PARTIAL},
    "fedpse-naive": {"method": "fedpse", "fedpse.ewa": False, "fedpse.dps": False, "values": "fp16"},
    "fedpse-listing": {"method": "fedpse", "fedpse.listing": True, "optimizer": "adam", "lr": 0.001, **PARTIAL},
    "dmpfl-erk-plus": {
        "method": "dmpfl",
        "dmpfl.budget": "erk",
        "dmpfl.initial-mask": "own",
        "dmpfl.adaptive-inference": True,
        "dmpfl.readjust-every": 1,
        "momentum": 0.9,
        "weight-decay": 0.001,
        **PARTIAL,
    },
    "pa3dfl-position": {"method": "pa3dfl", "pa3dfl.personal": "position", **PARTIAL},
    "pa3dfl-local-flanc": {
        "method": "pa3dfl",
        "pa3dfl.personal": "local",
        "pa3dfl.decomposition": "flanc",
        "values": "fp16",
        **PARTIAL,
    },
    "feddst-moving": {"method": "feddst", "feddst.readjust-every": 1, "feddst.fraction": 0.3, **PARTIAL},
    "fedstc-plain": {"method": "fedstc", "fedstc.ternary": False, "fedstc.cache": 1, **PARTIAL},
    "subfedavg-hy": {
        "method": "subfedavg",
        "subfedavg.variant": "hy",
        "subfedavg.accuracy": 0.1,
        "model": "digits-cnn-bn",
        **PARTIAL,
    },
    "subfedavg-un-one-epoch": {"method": "subfedavg", "subfedavg.accuracy": 0.1, "local-epochs": 1, **PARTIAL},
    **{
        f"{name}-mixed": {"method": name, "capacity.profile": "0.07,0.25,1", **PARTIAL}
        for name in ("heterofl", "fjord", "fedrolex", "flanc", "tailorfl", "local-width", "pa3dfl", "subfedavg")
    },
    "heterofl-bn": {"method": "heterofl", "model": "digits-cnn-bn", "capacity.profile": "0.07,0.25,1", **PARTIAL},
    "fjord-distill": {"method": "fjord", "fjord.distill": True, "capacity.profile": "0.07,0.25,1", **PARTIAL},
    "pfedgate-batch": {
        "method": "pfedgate",
        "pfedgate.gating": "batch",
        "pfedgate.keep": 0.5,
        "pfedgate.keep-optimizer": True,
        "momentum": 0.9,
        **PARTIAL,
    },
    "pfedgate-client": {"method": "pfedgate", "pfedgate.gating": "client", "capacity.profile": "0.15,0.6", **PARTIAL},
    "apfl-fixed": {"method": "apfl", "apfl.adaptive": False, **PARTIAL},
}
CASES = {
    **{f"{name}-full": {"method": name} for name in registry.METHODS},
    **{f"{name}-partial": {"method": name, **PARTIAL} for name in registry.METHODS},
    **VARIANTS,
}


def machine() -> str:
    """What the bits depend on beside the code."""
    return f"{processor()}; {torch.backends.cpu.get_cpu_capability()}; torch {torch.__version__}"


def bits(case: str) -> str:
    """The server's weights and the clients' states, as summary.json has them."""
    strategy = run_in_process(assemble({**FLAT, **RATES.get(CASES[case]["method"], {}), **CASES[case]}))
    clients = digest_clients(strategy.report.digests)
    return f"{weights_digest(strategy.algorithm, strategy.progress.server) or clients} {clients}"


def recorded() -> tuple[str, dict[str, str]]:
    """The machine that the file was written on, and each case's bits."""
    head, *lines = GOLDEN.read_text().splitlines()
    return head, dict(line.split(" ", 1) for line in lines)


@pytest.mark.parametrize("case", CASES)
def test_final_bits_are_those_recorded(case):
    where, known = recorded()
    if where != machine():
        pytest.skip(f"recorded on {where}, this is {machine()}")
    assert bits(case) == known[case]


def test_every_case_is_recorded():
    assert set(recorded()[1]) == set(CASES)


if __name__ == "__main__":
    GOLDEN.write_text("\n".join([machine(), *(f"{case} {bits(case)}" for case in CASES)]) + "\n")
