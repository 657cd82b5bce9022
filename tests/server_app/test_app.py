"""The ServerApp's words in Flower's log."""

import logging

from sepal.errors import ConfigError
from sepal.server_app.app import OneLine


def record(error):
    try:
        raise error
    except Exception as raised:
        found = (type(raised), raised, raised.__traceback__)
    return logging.LogRecord("flwr", logging.ERROR, "", 0, "%s raised an exception", ("ServerApp",), found)


def test_an_error_of_sepal_is_one_line_and_others_keep_their_traceback():
    ours, others = record(ConfigError("out", "a directory", "/proc")), record(ZeroDivisionError("no"))
    assert OneLine().filter(ours)
    assert OneLine().filter(others)
    assert logging.Formatter().format(ours) == "sepal: out: expected a directory, got '/proc'".replace("'", "")
    assert "Traceback" in logging.Formatter().format(others)
