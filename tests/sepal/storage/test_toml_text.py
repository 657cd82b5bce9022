"""TOML of somebody else takes neither the memory nor a traceback, whoever reads it."""

from __future__ import annotations

import pytest

from sepal.data.schema import read_schema
from sepal.errors import SepalError
from sepal.runs.stored_run import stored_config
from sepal.storage.toml_text import MOST_PARTS, parse_toml
from sepal.study.plans.plan import read_table
from sepal.study.run_keys import read_file, scalar

MANY = 20_000
PARTS = ["a", '"\\""', "'x'", '""', "a ", "\ta"]
ODD = {
    **{f"a name of {part!r}": f"{'.'.join([part] * MANY)} = 1" for part in PARTS},
    "a heading": f"[{'.'.join('a' * MANY)}]",
    "an inline table": f"x = {{{'.'.join('a' * MANY)} = 1}}",
    "a hexadecimal number": f"rounds = 0x{'F' * 6000}",
    "a list of such numbers": f"x = [[0o1{'7' * 22}]]",
    "a decimal number": f"rounds = {'9' * 6000}",
    "depth": f"x = {'[' * 50_000}",
    "size": "#" * (1 << 23),
}


def as_config(path, text):
    path.mkdir()
    (path / "config.toml").write_text(text)
    return stored_config(path)


def as_file(read):
    def reading(path, text):
        path.write_text(text)
        return read(path)

    return reading


READERS = {"config": as_config, "schema": as_file(read_schema), "plan": as_file(read_table), "keys": as_file(read_file)}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_odd_toml_ends_in_one_line(read, text, tmp_path):
    with pytest.raises(SepalError) as error:
        read(tmp_path / "file", text)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("number", [f"0x{'F' * 6000}", "9" * 6000, str(2**63)])
def test_a_number_that_is_none_of_toml_is_a_text(number):
    assert scalar(number) == number


def test_names_and_texts_of_usual_length_are_read():
    name, text = ".".join("b" * MOST_PARTS), "one two. " * 1000
    assert parse_toml(f'{name} = 1\na = "{text}"\n')["a"] == text


def test_many_escaped_quotes_are_read_in_a_moment():
    """A search that began at each of them took hours."""
    assert len(parse_toml('x = "' + '\\"' * 400_000 + '"')["x"]) == 400_000
