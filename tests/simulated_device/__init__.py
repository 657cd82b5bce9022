"""A simulated accelerator, ``sim``, for tests on machines without one; see device.cpp.

It stays registered in a process that loaded it, where torch.accelerator then finds it. So tests that use it run in a
process of their own (:mod:`tests.simulated_device.test_...`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

SOURCE = Path(__file__).with_name("device.cpp")
BUILD = Path(__file__).parents[2] / "build" / "simulated-device"
NAME = "sim"


def compiler() -> str | None:
    """The C++ compiler of this machine, if there is one."""
    return shutil.which(os.environ.get("CXX", "c++"))


def built() -> Path:
    """The compiled device; compiled, in about ten seconds, when its source, torch or the compiler has changed."""
    torch_dir = Path(torch.__file__).parent
    command = [compiler(), "-O1", "-std=c++20", "-shared", "-fPIC"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-I{torch_dir / 'include'}", f"-I{torch_dir / 'include/torch/csrc/api/include'}", str(SOURCE)]
    command += [f"-L{torch_dir / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch_dir / 'lib'}"]
    key = hashlib.sha256(f"{command}|{torch.__version__}|{SOURCE.read_text()}".encode()).hexdigest()[:16]
    library = BUILD / f"{key}.so"
    if not library.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        scratch = BUILD / f"{key}.{os.getpid()}"
        subprocess.run([*command, "-o", str(scratch)], check=True)
        scratch.replace(library)
    return library


class Sim(ModuleType):
    """What torch expects of ``torch.sim``."""

    def is_available(self):
        return True

    def device_count(self):
        return 2

    def current_device(self):
        return torch.accelerator.current_device_index()

    def manual_seed_all(self, seed):
        """Random numbers are the CPU's."""

    manual_seed = manual_seed_all

    def _is_in_bad_fork(self):
        return False


@cache
def load() -> None:
    """Register the device ``sim`` in this process."""
    torch.ops.load_library(str(built()))
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, Sim("torch.sim"))
    sys.modules["torch.sim"] = torch.sim
