"""What the server learns of an error of a client: a word and what to do, and no text of the client."""

from __future__ import annotations

import ast
import errno
import inspect
import os
from dataclasses import fields
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from sepal import errors
from sepal.client_app import app as client
from sepal.client_app.build import Node
from sepal.config import RunConfig, kebab
from sepal.errors import ConfigError, DataError, ProtocolError, SepalError, StateError, WireError
from sepal.flower.replies import enter_run
from sepal.protocol.client_errors import NODE_KEYS, SENTENCES, Word, read_parts, shared_keys, word_of
from sepal.protocol.messages import Content, Order, read_reply, write_order
from sepal.protocol.peer import PROTOCOL
from sepal.protocol.types import Kind, Plan

SECRET = "row 17: patient Jane Roe"
CLIENT_APP = Path(inspect.getfile(client)).parent
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, SepalError) and not issubclass(kind, ProtocolError | WireError)
]
PLAIN = [ValueError, KeyError, RuntimeError, TypeError, FloatingPointError, AssertionError]


class JaneRoeError(Exception):
    """Of a user's module, whose name is a text, too."""


def secret_error(kind):
    return kind(SECRET, SECRET, SECRET) if issubclass(kind, SepalError) else kind(SECRET)


def from_disk(number, kind=None):
    """An error of the operating system, or one of Sepal's that was raised from it as our modules do."""
    try:
        try:
            raise OSError(number, os.strerror(number), SECRET)
        except OSError:
            if kind is None:
                raise
            raise kind(SECRET, SECRET, SECRET) from None
    except Exception as error:
        return error


ERRORS = [
    *map(secret_error, [*KINDS, *PLAIN, JaneRoeError]),
    *[from_disk(number, kind) for number in (errno.ENOSPC, errno.EACCES, errno.ENOENT) for kind in (None, StateError)],
    *[kind(key, SECRET, SECRET) for kind in (ConfigError, DataError, StateError) for key in ("base", "device", "data")],
    *[ConfigError(key, SECRET, SECRET) for key in ("partition-id", "apfl.alpha", "jane-roe", "batch-size")],
]


@pytest.fixture
def server_error(monkeypatch):
    """Return what the server reads of an exception that is raised while a client answers; no text of it travels."""

    enter_run()

    def read(error):
        def fail(*arguments):
            raise error

        monkeypatch.setattr(client, "_answer", fail)
        order = write_order(Order("0" * 32, Kind.TRAIN, Plan(1)), Content())
        message = Message(order, dst_node_id=1, message_type="train")
        context = Context(1, 1, {"name": "site-a"}, RecordDict(), {"apfl.alpha": 0.5})
        records = client.handle(message, context).content
        assert "Jane" not in str(records)
        assert "jane" not in str(records)
        assert SECRET not in str(records)
        with pytest.raises(SepalError) as caught:
            read_reply(records, {"apfl.alpha"})
        return caught.value

    return read


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{type(error).__name__} {getattr(error, 'key', '')[:9]}")
def test_the_servers_line_about_any_error_says_what_to_do_and_has_no_text_of_it(error, server_error, caplog):
    line = str(server_error(error))
    word = word_of(error)
    assert line.startswith(f"site-a: {word}")
    assert SENTENCES[word] in line
    assert "Jane" not in line
    code = line.rpartition("code ")[2][:8]
    assert f"code {code}" in caplog.text, "the client's operator finds the details under the code"
    assert SECRET in caplog.text


def raised_names(path):
    """Yield the names of the classes of errors that a module raises."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            yield node.exc.func.id


def test_every_error_that_the_client_app_raises_has_a_class_with_a_sentence():
    """ProtocolError and WireError answer the server's own message, and are told as they are."""
    names = {name for path in CLIENT_APP.glob("*.py") for name in raised_names(path)}
    assert {"StateError", "DataError", "ConfigError", "ProtocolError"} <= names
    walked = {type(error).__name__ for error in ERRORS} | {"ProtocolError", "WireError"}
    assert names - walked == set()


def test_each_word_has_a_sentence_and_each_option_of_a_node_may_be_named():
    assert SENTENCES.keys() == set(Word)
    assert {kebab(part.name) for part in fields(Node)} <= shared_keys()
    assert not NODE_KEYS & RunConfig().flat().keys()


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (from_disk(errno.ENOSPC), Word.NO_ROOM),
        (from_disk(errno.EDQUOT, StateError), Word.NO_ROOM),
        (from_disk(errno.ENOSPC, DataError), Word.NO_ROOM),
        (from_disk(errno.EROFS, StateError), Word.NOT_WRITABLE),
        (from_disk(errno.EACCES, StateError), Word.NOT_WRITABLE),
        (from_disk(errno.EACCES, DataError), Word.DATA),  # a file that it may not read
        (from_disk(errno.ENOENT, StateError), Word.STATE),
        (StateError("base", "x", "y"), Word.STATE_LOST),
        (errors.DamagedError("x", "x", "y"), Word.STATE_LOST),
        (ConfigError("device", "x", "y"), Word.DEVICE),
        (ConfigError("partition-id", "x", "y"), Word.PARTITION),
        (ConfigError("apfl.alpha", "x", "y"), Word.KEY),
        (errors.DeviceMemoryError("device", "x", "y"), Word.DEVICE_MEMORY),
        (MemoryError(), Word.MEMORY),  # where memory has no limit, which is told as a refusal
        (JaneRoeError("x"), Word.OTHER),
    ],
)
def test_the_word_says_what_is_wrong(error, word):
    assert word_of(error) is word


@pytest.mark.parametrize(
    ("key", "shown"), [("apfl.alpha", "key: apfl.alpha"), ("batch-size", "key: batch-size"), ("jane-roe", "key")]
)
def test_a_key_is_named_if_it_is_one_of_the_run_or_of_the_node(key, shown, server_error):
    assert server_error(ConfigError(key, SECRET, SECRET)).key == f"site-a: {shown}"


@pytest.mark.parametrize(
    "record",
    [
        {"word": "send money", "type": "send money", "key": "send money", "code": "send money", "client": "send money"},
        {"word": "x" * 10**5, "type": "x" * 10**5, "key": "x" * 10**5, "code": "1" * 10**5, "client": "x" * 10**5},
        {"word": 3, "type": [1.0], "key": b"x", "code": True},
        {"word": "other", "type": "print", "key": "annotations", "code": "12345678\n"},
        {"word": ""},
    ],
)
def test_a_client_chooses_no_text_of_the_servers_line(record):
    with pytest.raises(SepalError) as caught:
        read_reply(RecordDict({"error": ConfigRecord({"protocol": PROTOCOL, **record})}))
    assert type(caught.value) is SepalError
    assert str(caught.value) == f"?: other: expected {SENTENCES[Word.OTHER]}, got Exception"


def test_a_word_of_a_later_release_reads_as_other():
    word, error = read_parts({"word": "on-fire", "type": "DataError", "key": "", "code": "12345678", "client": "a"})
    assert word is Word.OTHER
    assert str(error) == f"a: other: expected {SENTENCES[Word.OTHER]}, got DataError, code 12345678 in its node.log"
    assert "batch-size" in shared_keys()
