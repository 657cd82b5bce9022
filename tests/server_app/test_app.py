"""The ServerApp's words in Flower's log."""

import logging

from sepal.errors import ConfigError
from sepal.server_app.app import OneLineFilter


def record(error):
    try:
        raise error
    except Exception as raised:
        exc_info = (type(raised), raised, raised.__traceback__)
    return logging.LogRecord("flwr", logging.ERROR, "", 0, "%s raised an exception", ("ServerApp",), exc_info)


def test_an_error_of_sepal_is_one_line_and_others_keep_their_traceback():
    sepal_record, others = record(ConfigError("out", "a directory", "/proc")), record(ZeroDivisionError("no"))
    assert OneLineFilter().filter(sepal_record)
    assert OneLineFilter().filter(others)
    assert logging.Formatter().format(sepal_record) == "sepal: out: expected a directory, got '/proc'".replace("'", "")
    assert "Traceback" in logging.Formatter().format(others)
