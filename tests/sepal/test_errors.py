"""Errors: one line, whatever is in them; they survive a journey between processes."""

from __future__ import annotations

import pytest

from sepal import errors
from sepal.errors import ConfigError, DataError, RoundError, SepalError, UnfitError, causes_of, nearest, one_line
from tests.worker_pipe import through_a_pipe


def test_an_error_says_key_expected_and_got():
    error = ConfigError("lr", "a number", 3)
    assert str(error) == "lr: expected a number, got 3"
    assert (error.key, error.expected, error.got) == ("lr", "a number", "3")


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\nb", "\x1b[31mred", "a\u2028b", "a\x00b", "\ud800", "a\u202eb", "x" * 10**6]
)
def test_whatever_a_client_wrote_is_one_printable_line(text):
    for error in (SepalError(text, "x", "y"), SepalError("k", text, "y"), SepalError("k", "x", text)):
        shown = str(error)
        assert shown.isprintable()
        assert len(shown) <= 1000
        shown.encode()


def test_a_long_value_is_cut():
    assert len(SepalError("k", "x", "y" * 500).got) == 300
    assert one_line("a" * 50, 10) == "a" * 10


@pytest.mark.parametrize(
    "kind", [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, SepalError)]
)
def test_every_error_travels_from_worker_processes(kind):
    back = through_a_pipe(kind("key", "this", "that"))
    assert type(back) is kind
    assert str(back) == str(kind("key", "this", "that"))
    assert str(back) in ("key: expected this, got that", "key cannot this: that")


def test_clients_that_fail_alike_are_one_cause_with_their_names():
    same = [RoundError(f"client-{number}", "an answer", "RuntimeError: no (a.py:1 in load)") for number in range(3)]
    assert causes_of(same) == "RuntimeError: no (a.py:1 in load) (client-0, client-1, client-2)"
    plain = DataError("client-3: data", "an example", "none")
    assert causes_of([*same[:2], plain]).endswith(
        "(client-0, client-1); data: expected an example, got none (client-3)"
    )


def test_causes_that_differ_in_the_client_alone_are_one_and_none_is_cut():
    words = "no file " + "of the clinic " * 12
    many = [DataError(f"client-{n}: data", "rows", f"{words}{n}") for n in range(9)]
    causes = causes_of([*many, DataError("client-9: lr", "less", "more")])
    assert causes == (
        f"data: expected rows, got {words}0 (client-0, client-1, client-2 and 6 more); "
        "lr: expected less, got more (client-9)"
    )
    error = UnfitError("10 of 10 clients", "take part", causes)
    assert str(error) == f"10 of 10 clients cannot take part: {causes}"
    assert str(through_a_pipe(error)) == str(error)


@pytest.mark.parametrize("inner", [DataError("data", "an example", "none"), "nested: expected x, got y"])
def test_no_line_has_expected_and_got_within_expected_and_got(inner):
    line = str(RoundError("round 1", "at least 2 replies", f"1: {inner}"))
    assert line == f"round 1: needed at least 2 replies, but 1: {inner}"
    assert line.count("expected") == line.count(", got ") == 1


def test_a_name_that_begins_with_what_was_given_is_meant():
    keys = ["split.seed", "split.test-fraction", "split.test-of-labels", "lr"]
    assert nearest("split.test", keys) == "split.test-fraction"
    assert nearest("split.", keys) == "split.seed", "nothing is given of its name"
