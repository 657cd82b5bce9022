"""The digest of a notebook's functions: the same in another session, another for other code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sepal.api.code_digest import code_digest

ROOT = Path(__file__).parents[1]
CELL = """
import collections, enum, functools, re
from dataclasses import dataclass
import numpy as np
import torch
from torch import nn

WIDTH = 8
CENTRES = np.arange(3.0)
START = torch.ones(2)
WORD = re.compile("a+")
COUNTS = collections.Counter("abca")

class Kind(enum.Enum):
    FIRST = 1

@dataclass
class Options:
    width: int = 8
    names: frozenset = frozenset({"a", "b", "c"})

class Net(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layer = nn.Linear(inputs, WIDTH)
    @property
    def width(self):
        return WIDTH
    @staticmethod
    def scale(x):
        return np.add(x, CENTRES.mean())
    def forward(self, x):
        return self.layer(x)

def depth(n):
    return 1 + depth(n - 1) if n in {"one", "two", "three"} else 0

@functools.cache
def half(n):
    return n / 2

def build(shape, classes, *, options=Options(), kind=Kind.FIRST):
    hidden = [width for width in (WIDTH, 2)]
    assert WORD and COUNTS and START is not None and half(4)
    return nn.Sequential(Net(shape[0]), *(nn.Linear(WIDTH, classes) for _ in range(depth(1))), nn.Linear(8, hidden[1]))

partly = functools.partial(build, options=Options(4))
"""


def digests(source, file="<cell>", lines=0):
    scope = {"__name__": "__main__"}
    exec(compile("\n" * lines + source, file, "exec", dont_inherit=True), scope)
    return [code_digest(scope[name]) for name in ("build", "partly", "Net")]


def test_neither_file_nor_line_nor_process_counts(tmp_path):
    """The other process has another hash seed, and, as a kernel, another file name for the cell."""
    expected = digests(CELL)
    assert digests(CELL, "/tmp/ipykernel_17/2.py", lines=30) == expected
    script = tmp_path / "session.py"
    script.write_text(
        f"{CELL}\nfrom sepal.api.code_digest import code_digest\nprint(*map(code_digest, (build, partly, Net)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    completed = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=True)
    assert completed.stdout.split() == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nn.Linear(8, hidden[1])", "nn.Linear(8, hidden[0])"),  # its code
        ("WIDTH = 8", "WIDTH = 9"),  # a global value, that its class uses
        ("np.arange(3.0)", "np.arange(3.0) + 1"),
        ("torch.ones(2)", "torch.zeros(2)"),
        ('"a+"', '"b+"'),
        ('"abca"', '"abcb"'),
        ("FIRST = 1", "FIRST = 2"),
        ("width: int = 8", "width: int = 7"),  # a default, of a class of the session
        ("n / 2", "n / 3"),  # a cached function's code
        ('"two"', '"2"'),  # a constant of a function that it calls
    ],
)
def test_what_the_function_uses_counts(old, new):
    assert CELL.count(old) == 1
    assert digests(CELL.replace(old, new))[0] != digests(CELL)[0]


def test_what_it_does_not_use_does_not_count():
    assert digests(CELL + "\nOTHER = 1\ndef unused(): return OTHER") == digests(CELL)


def test_a_closure_counts_by_its_content():
    def make(hidden):
        return lambda x: x + hidden

    assert code_digest(make(2)) == code_digest(make(2)) != code_digest(make(3))
