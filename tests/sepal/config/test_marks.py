"""Every key of open text says what its text may lead to, and the lists of such keys are those of the fields."""

from __future__ import annotations

import typing

import pytest

from sepal.client_app.build import Node
from sepal.client_app.guard import local_config
from sepal.config import Mark, RunConfig, Settings, has_mark, key_fields, marked, marks
from sepal.config.elsewhere import CODE, PATHS, PLACES, check_code, named_code, without_places
from sepal.errors import ConfigError, ProtocolError
from sepal.report.page import PLACES as HIDDEN
from sepal.strategies import registry

TEXTS = (Mark.CODE, Mark.PATH, Mark.FETCHED, Mark.WORDS)
CODE_NAME = "module_of_tests:NAME"


def groups():
    yield "", RunConfig
    for name in registry.names():
        yield f"{name}.", registry.get(name).hyper


def takes_any_text(info):
    kinds = {info.annotation, *typing.get_args(info.annotation)}
    return str in kinds and not any(getattr(fact, "pattern", None) for fact in info.metadata)


def test_every_key_of_open_text_says_what_its_text_may_lead_to():
    texts = [(p + k, info) for p, kind in groups() for k, info in key_fields(kind) if takes_any_text(info)]
    assert len(texts) > 20
    assert [key for key, info in texts if sum(has_mark(info, fact) for fact in TEXTS) != 1] == []


def test_a_key_without_a_mark_would_be_noticed():
    class Group(Settings):
        hook: str = ""

    ((_, info),) = key_fields(Group)
    assert takes_any_text(info)
    assert not has_mark(info, *TEXTS)


def test_only_shared_keys_lead_outside_the_run():
    """A method's own keys are known once it is imported: a config from elsewhere is judged before that."""
    own = {prefix: kind for prefix, kind in groups() if prefix}
    leading = (marked(kind, Mark.CODE, Mark.PATH, Mark.FETCHED, prefix=prefix) for prefix, kind in own.items())
    assert [key for keys in leading for key in keys] == []


def test_the_lists_are_those_of_the_fields():
    assert set(CODE) == {"method", "task", "augment", "model", "own.data"}
    assert set(PATHS) == {"out", "data-dir", "folder.schema", "initial-weights", "state-dir"}
    assert set(PLACES) == set(HIDDEN) == {*PATHS, "hf.name"}


@pytest.mark.parametrize("key", CODE)
def test_a_node_and_a_reader_refuse_code_by_the_same_list(key):
    flat = {**RunConfig().flat(), key: CODE_NAME}
    assert named_code(flat) == {key: CODE_NAME}
    with pytest.raises(ConfigError, match=f"{key}: expected code that"):
        check_code(flat, (), "is allowed")
    with pytest.raises(ProtocolError, match=f"{key}: expected code that this node allows"):
        local_config(flat, Node())
    assert local_config(flat, Node(allow=frozenset({CODE_NAME})))[key] == CODE_NAME


@pytest.mark.parametrize("key", [key for key in PLACES if key != "out"])
def test_a_node_refuses_places_by_the_same_list(key):
    with pytest.raises(ProtocolError, match=f"{key}: expected a"):
        local_config({**RunConfig().flat(), key: "x/y"}, Node())


def test_keys_that_lead_outside_are_emptied():
    flat = {**RunConfig().flat(), **dict.fromkeys(PLACES, "x/y"), "seed": 3}
    assert without_places(flat) == {**RunConfig().flat(), "seed": 3}


def test_marks_are_of_nested_groups_and_of_any_fact():
    class Group(Settings):
        hook: str = registry.RunConfig.model_fields["model"]

    assert marked(Group, Mark.CODE, prefix="mine.") == ("mine.hook",)
    assert marks(Mark.CODE, Mark.FREE_BACK) == {"code": True, "free-back": True}
    assert marked(RunConfig, Mark.FETCHED) == ("hf.name",)
