"""``make requirements``: the versions in the image with the digests of their files, from uv's answer on standard input.

- ``requirements.txt``: all but torch.
- ``requirements-cuda.txt``: torch as PyPI has it, with what only that needs.
- ``requirements-cpu.txt``: torch's CPU build, which PyTorch's own index has (``TORCH_INDEX_URL``).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sepal.storage.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
HEAD = "# Made by `make requirements` from pyproject.toml and constraints.txt, for `pip install --require-hashes`.\n"
CUDA = re.compile(r"(cuda|nvidia)-|(torch|triton)==")
# torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, with which the tests run
CPU = "torch==2.13.0+cpu --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b\n"


def split(text: str) -> dict[str, str]:
    """Return the contents of the files: the entries of ``text``, each a line that may be continued."""
    entries = re.findall(r"^\S(?:.*\\\n)*.*\n", text, re.MULTILINE)
    return {
        "requirements.txt": HEAD + "".join(entry for entry in entries if not CUDA.match(entry)),
        "requirements-cuda.txt": HEAD + "".join(entry for entry in entries if CUDA.match(entry)),
        "requirements-cpu.txt": HEAD + CPU,
    }


def main() -> None:
    """Write the files."""
    for name, text in split(sys.stdin.read()).items():
        write_atomically(ROOT / name, text.encode())
        (ROOT / name).chmod(0o644)


if __name__ == "__main__":
    main()
