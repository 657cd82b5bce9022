"""``make -C tools requirements``: the versions in the image with the digests of their files, from two answers of uv.

- ``requirements.txt``: all but Flower and torch.
- ``requirements-grpc.txt``: Flower of ``constraints.txt``, with what only that needs or has in another version.
- ``requirements-http.txt``: the same of ``constraints-current.txt``.
- ``requirements-cuda.txt``: torch as PyPI has it, with what only that needs.
- ``requirements-cpu.txt``: torch's CPU build, which PyTorch's own index has (``TORCH_INDEX_URL``).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sepal.storage.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
HEAD = "# Made by `make -C tools requirements` from pyproject.toml and constraints*.txt, for pip --require-hashes.\n"
CUDA = re.compile(r"(cuda|nvidia)-|(torch|triton)==")
# torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, with which the tests run
CPU = "torch==2.13.0+cpu --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b\n"


def split(grpc: str, http: str) -> dict[str, str]:
    """Return the contents of the files.

    Args:
        grpc: Entries with the versions of ``constraints.txt``, each a line that may be continued.
        http: Entries with the versions of ``constraints-current.txt``.

    Raises:
        ValueError: The two differ in what belongs to torch.
    """
    entries_of = [re.findall(r"^\S(?:.*\\\n)*.*\n", text, re.MULTILINE) for text in (grpc, http)]
    both = [entry for entry in entries_of[0] if entry in entries_of[1]]
    only = [[entry for entry in entries if entry not in both] for entries in entries_of]
    differ = [entry.split()[0] for entries in only for entry in entries if CUDA.match(entry)]
    if differ:
        raise ValueError(f"constraints-current.txt: expected torch as in constraints.txt, got {', '.join(differ)}")
    return {
        "requirements.txt": HEAD + "".join(entry for entry in both if not CUDA.match(entry)),
        "requirements-grpc.txt": HEAD + "".join(only[0]),
        "requirements-http.txt": HEAD + "".join(only[1]),
        "requirements-cuda.txt": HEAD + "".join(entry for entry in both if CUDA.match(entry)),
        "requirements-cpu.txt": HEAD + CPU,
    }


def main() -> None:
    """Write the files, from two files of uv's that the command names: by constraints.txt, constraints-current.txt."""
    grpc, http = (Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])
    for name, text in split(grpc, http).items():
        write_atomically(ROOT / name, text.encode())
        (ROOT / name).chmod(0o644)


if __name__ == "__main__":
    main()
