"""The committed protobuf code is what sparse.proto says, and loads under every protobuf the project allows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from sepal.wire import sparse_pb2

ROOT = Path(__file__).parents[3]
PROTO = "sepal/wire/sparse.proto"
COMMITTED = ROOT / "sepal/wire/sparse_pb2.py"


def protoc(*arguments: str) -> None:
    pytest.importorskip("grpc_tools")
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *arguments, PROTO], cwd=ROOT, check=True)


def gencode(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.search(r"Protobuf Python Version: (\d+)\.(\d+)\.(\d+)", text).groups()))


def test_descriptor_equals_a_fresh_one(tmp_path):
    """Any protoc will do: the descriptor does not depend on its version, the code around it does."""
    protoc(f"--descriptor_set_out={tmp_path / 'set'}")
    (fresh,) = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    fresh.ClearField("source_code_info")
    for message in fresh.message_type:
        for field in message.field:
            field.ClearField("json_name")
    committed = descriptor_pb2.FileDescriptorProto.FromString(sparse_pb2.DESCRIPTOR.serialized_pb)
    assert committed == fresh


def test_code_equals_fresh_code(tmp_path):
    protoc(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}")
    fresh = (tmp_path / "sepal/wire/sparse_pb2.py").read_text()
    if gencode(fresh) != gencode(COMMITTED.read_text()):
        pytest.skip(f"this grpcio-tools writes code of version {gencode(fresh)}; see {PROTO} for the one to use")
    assert COMMITTED.read_text() == fresh
    stub = (tmp_path / "sepal/wire/sparse_pb2.pyi").read_text()
    assert COMMITTED.with_suffix(".pyi").read_text() == "# mypy: ignore-errors\n" + stub


def test_code_is_older_than_every_allowed_runtime():
    assert gencode(COMMITTED.read_text()) <= (5, 28, 0)


def test_codec_imports_neither_torch_nor_flower():
    program = "import sys, sepal.wire; sys.exit(bool({'torch', 'flwr'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
