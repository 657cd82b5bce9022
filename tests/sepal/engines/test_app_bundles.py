"""An app bundle with code is refused before anything of it is stored, unpacked or imported.

On the old code it ran as the client's user, past ``--least-noise``, ``--most-uploads`` and ``--no-accuracies``.
"""

from __future__ import annotations

import io
import zipfile
from types import SimpleNamespace

import pytest
from flwr.app import Message, RecordDict
from flwr.cli.build import build_fab_from_disk

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.protection import CodeError, refuse_code
from sepal.flower.replies import enter_run
from sepal.flower.supernode import refuse_bundles


@pytest.fixture(scope="module")
def own_app(tmp_path_factory):
    return build_fab_from_disk(write_app(tmp_path_factory.mktemp("app"))[0].parent)


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def settings(project="sepal-fl", version="0.1.0", publisher="sepal", **components):
    named = {"serverapp": "sepal.apps:server_app", "clientapp": "sepal.apps:client_app", **components}
    lines = "\n".join(f'{name} = "{value}"' for name, value in named.items())
    about = f'[project]\nname = "{project}"\nversion = "{version}"\n[tool.flwr.app]\npublisher = "{publisher}"\n'
    return f"{about}[tool.flwr.app.components]\n{lines}\n"


def test_the_app_of_sepal_serve_is_accepted(own_app):
    refuse_code(own_app)
    refuse_code(zipped(**{"pyproject.toml": settings()}))


@pytest.mark.parametrize(
    ("files", "got"),
    [
        ({"pyproject.toml": settings(), "client_app/app.py": ""}, "client_app/app.py"),
        (
            {"pyproject.toml": settings(), "other_name/app.py": ""},
            "other_name/app.py",
        ),  # as no package of ours is named
        ({"pyproject.toml": settings(), "sitecustomize.py": ""}, "sitecustomize.py"),
        ({"pyproject.toml": settings(), ".info/../run.py": ""}, ".info/../run.py"),
        ({"pyproject.toml": settings(clientapp="antigravity:app")}, "antigravity"),
        ({"pyproject.toml": "[tool.flwr.app.components"}, "cannot be read"),
        ({"pyproject.toml": "[tool]"}, "cannot be read"),
        ({"pyproject.toml": settings() + "#" * (1 << 20)}, "pyproject.toml"),  # deflates to a thousandth
        ({".info/CONTENT": ""}, "cannot be read"),
        # Flower makes them the name of a directory: this one would be anywhere.
        ({"pyproject.toml": settings(version="1/../../../../../../tmp/x")}, "1/../../../../../../tmp/x"),
        ({"pyproject.toml": settings(project="../x")}, "../x"),
        ({"pyproject.toml": settings(publisher="../x")}, "../x"),
        # A nested name, for whose length the reader takes the square of the time: three minutes.
        ({"pyproject.toml": settings() + ".".join(["a"] * 200_000) + " = 1"}, "pyproject.toml"),
    ],
)
def test_any_other_is_refused_by_name(files, got):
    with pytest.raises(CodeError, match=r"app bundle: expected no code, .*--allow-code") as caught:
        refuse_code(zipped(**files))
    assert got in caught.value.got


def test_what_is_no_zip_file_is_refused():
    with pytest.raises(CodeError, match="cannot be read"):
        refuse_code(b"#!/bin/sh")


def test_damage_within_a_compressed_file_is_refused_too():
    """zlib's error is none of zipfile's; it would end the SuperNode's loop."""
    whole = zipped(**{"pyproject.toml": settings()})
    at = whole.index(b"pyproject.toml") + len("pyproject.toml")
    with pytest.raises(CodeError, match="cannot be read"):
        refuse_code(whole[:at] + b"\xff" * 20 + whole[at + 20 :])


def test_the_server_gets_one_line_and_the_node_keeps_nothing(own_app):
    """Flower's function is replaced by one that stores what it gets, as Flower's does after it has got the bundle."""
    stored, replies = [], []

    def pull(*, state, object_store, receive, get_fab, **further):
        message, _ = receive()
        stored.append(get_fab("hash", message.metadata.run_id))
        return message.metadata.run_id

    insert = lambda reply, state, store: replies.append(reply)  # noqa: E731
    module = SimpleNamespace(_pull_and_store_message=pull, _insert_message=insert)
    refuse_bundles(module, refuse_code)
    enter_run()
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_run_id"] = 7

    def ask(content):
        fab = SimpleNamespace(content=content)
        return module._pull_and_store_message(
            state=None, object_store=None, receive=lambda: (message, None), get_fab=lambda *_: fab
        )

    assert ask(zipped(**{"pyproject.toml": settings(), "evil.py": "1/0"})) == 7
    assert stored == []
    assert "expected no code" in replies[0].error.reason
    assert "evil.py" in replies[0].error.reason
    assert ask(own_app) == 7
    assert len(stored) == 1
    assert len(replies) == 1
