"""Every key of open text says what its text may lead to, and the lists of such keys are those of the fields."""

from __future__ import annotations

import ast
import re
import typing
from pathlib import Path

import pytest
from pydantic import Field

from sepal.client_app.build import Node
from sepal.client_app.guard import local_config
from sepal.config import Mark, PartitionSettings, RunConfig, Settings, group_names, has_mark, key_fields, marked, marks
from sepal.config.agreement import SERVER_ONLY
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
    method_groups = {prefix: kind for prefix, kind in groups() if prefix}
    leading = (
        marked(kind, Mark.CODE, Mark.PATH, Mark.FETCHED, prefix=prefix) for prefix, kind in method_groups.items()
    )
    assert [key for keys in leading for key in keys] == []


def test_the_lists_are_those_of_the_fields():
    assert set(CODE) == {"method", "task", "augment", "model", "own.data"}
    assert set(PATHS) == {"out", "data-dir", "devices", "folder.schema", "initial-weights", "state-dir"}
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


@pytest.mark.parametrize("key", [key for key in PLACES if key not in SERVER_ONLY])
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


# Which key must have which mark

ROOT = Path(__file__).resolve().parents[3]
DATA_GROUPS = ("partition", "split", "drift", "folder", "hf", "own")
NOT_THE_DATA = {"own.class-weights"}  # of the loss


def faults(kind, prefix=""):
    """Keys of which a fact is missing that their name, their description or another mark tells."""
    for key, info in key_fields(kind, prefix):
        words, group = info.description or "", key.partition(".")[0]
        open_text, outside = takes_any_text(info), has_mark(info, Mark.PATH, Mark.FETCHED)
        anywhere = has_mark(info, Mark.MACHINE, Mark.SERVER_ONLY)
        rules = {
            "names code": "package.module" in words and not has_mark(info, Mark.CODE),
            "is a path": open_text
            and not outside
            and bool(re.search(r"(^|[-.])(dir|directory|file|path|weights|schema)$", key)),
            "is another one on each machine": outside and not anywhere,
            "is agreed on, and free": has_mark(info, Mark.FREE) and not anywhere,
            "is agreed on, and free when a run goes back": not prefix
            and has_mark(info, Mark.FREE_BACK)
            and not has_mark(info, Mark.SERVER_ONLY),
            "says what the data are": group in DATA_GROUPS
            and key not in NOT_THE_DATA
            and not has_mark(info, Mark.DATA, Mark.FILES),
            "says how data are read": group in DATA_GROUPS and not has_mark(info, Mark.DIGESTED),
            "has the data set's default": "the data set's default" in words and not has_mark(info, Mark.AUTOMATIC),
            "has a seed's name": key.endswith("seed") and not has_mark(info, Mark.REPEAT, Mark.DATA),
        }
        yield from (f"{key}: {rule}" for rule, broken in rules.items() if broken)


def test_every_key_has_the_marks_that_it_must_have():
    assert [fault for prefix, kind in groups() for fault in faults(kind, prefix)] == []


@pytest.mark.parametrize(
    ("words", "name", "extra", "rule"),
    [
        ("a hook, package.module:hook", "hook", Mark.WORDS, "names code"),
        ("where it goes", "log_dir", Mark.WORDS, "is a path"),
        ("where it goes", "place", Mark.PATH, "is another one on each machine"),
        ("seconds; the data set's default if it is empty", "rest", Mark.WORDS, "has the data set's default"),
        ("how long", "rest", Mark.FREE, "is agreed on, and free"),
    ],
)
def test_a_new_key_that_lacks_a_mark_would_be_noticed(words, name, extra, rule):
    fields = {name: Field("", description=words, json_schema_extra=marks(extra))}
    kind = type("Group", (Settings,), {"__annotations__": {name: str}, **fields})
    assert [fault.partition(": ")[2] for fault in faults(kind)] == [rule]


def test_a_new_key_of_a_group_has_the_marks_of_the_group():
    class More(PartitionSettings):
        skew: float = Field(0.0, description="new")

    class Whole(Settings):
        partition: More = RunConfig.model_fields["partition"]

    assert "partition.skew" in marked(Whole, Mark.DATA)
    assert "partition.skew" in marked(Whole, Mark.DIGESTED)
    assert set(group_names(RunConfig, Mark.DATA, Mark.FILES, Mark.DIGESTED)) == set(DATA_GROUPS)


def test_what_must_be_agreed_on_is_not_what_only_one_side_reads():
    assert set(marked(RunConfig, Mark.SERVER_ONLY)) & set(marked(RunConfig, Mark.MACHINE)) == set()
    assert set(marked(RunConfig, Mark.DIGESTED)) & set(marked(RunConfig, Mark.FREE, Mark.FREE_BACK)) == set()


# Lists by hand

PACKAGES = ("client_app", "models", "sepal", "server_app", "strategies")
COLUMNS = {  # heads of tables, and keys that a command looks up for one sentence
    "sepal/api/results.py": {"name", "seed"},
    "sepal/cli/showing.py": {"name", "dataset", "model"},
    "sepal/cli/listing.py": {"method", "rounds"},
    "sepal/report/card.py": {"name", "method", "dataset", "rounds"},
    "sepal/cli/notices.py": {"method", "dataset"},
    "client_app/guard.py": {"own.classes", "own.vocabulary"},
    "sepal/study/plans/converged.py": {"rounds", "stop-after"},
}


def hand_lists():
    """Every list, tuple and set in the product that names two or more run-config keys; ``file`` → the keys."""
    names = {prefix + key for prefix, kind in groups() for key, _ in key_fields(kind)}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                items = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else ()
                listed = {item.value for item in items if isinstance(item, ast.Constant)} & names
                if len(listed) > 1:
                    yield str(path.relative_to(ROOT)), listed


def test_no_list_of_keys_is_written_by_hand():
    """What is true of a key stands at its field; a list beside it is forgotten when a key is new."""
    assert [(path, keys) for path, keys in hand_lists() if not keys <= COLUMNS.get(path, set())] == []
