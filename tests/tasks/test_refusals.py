"""Sums on the wire are bounded, what does not go together is refused in a line, and own tasks."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord
from torch import nn

import sepal
from examples.tasks import diabetes
from sepal.api.keys import name_of
from sepal.client_app.build import Node
from sepal.client_app.guard import local_config
from sepal.errors import ConfigError, ModelError, ProtocolError
from sepal.protocol.messages import Content, read_reply, version, write_reply
from sepal.server.answers import check_reply
from sepal.strategies.assembly import assemble
from sepal.tasks import Metric, Scoring, Targets, Task
from sepal.tasks.builtin import regression
from sepal.tasks.learning import LABELS, PER_EXAMPLE
from sepal.tasks.scoring import BY_ACCURACY
from tests.sepal.example_messages import CONTENT, ORDER, REPLY
from tests.tasks.settings import DIABETES, ROOT

# The wire


def test_sums_arrive_as_they_left_and_are_bounded():
    reply = replace(REPLY, sums={"trained.sums": (3.0, -0.1, 1e-300), "kept.sums": ()})
    assert read_reply(write_reply(reply, Content()))[0] == reply
    assert "sums" not in write_reply(REPLY, Content())

    def refused(value, words, key="trained.sums"):
        records = write_reply(REPLY, Content())
        records["sums"] = ConfigRecord({key: value})
        with pytest.raises(ProtocolError, match=words):
            read_reply(records)

    refused(np.array([1.0, np.nan]).tobytes(), "finite numbers")
    refused(b"1234567", "bytes of at most 1024 float64")
    refused(bytes(8 * 1025), "bytes of at most 1024 float64")
    refused(1.0, "bytes of at most 1024 float64")
    refused(b"", "names of at most 64", "a/b")


def test_a_server_takes_only_the_sums_that_its_task_has():
    scoring = regression((10,), 1).scoring
    good = (4.0, 1.0, 4.0, 4.0, 4.0, 4.0, 4.0, 30.0, 10.0, 4.0)
    order = replace(ORDER, views=("trained",), keep=False)
    reached = version(order.plan.round, order.base, REPLY.download, CONTENT.digest())
    bare = replace(REPLY, metrics={}, facts={}, state="", version=reached)

    def check(sums, scoring=scoring):
        check_reply(order, REPLY.client, REPLY.download, replace(bare, sums=sums), CONTENT, scoring)

    check({})
    check({"trained.sums": good, "trained.validation-sums": good})
    for sums, words in (
        ({"kept.sums": good}, "sums of trained"),
        ({"trained.others": good}, "sums of trained"),
        ({"trained.sums": good[1:]}, "10 sums"),
    ):
        with pytest.raises(ProtocolError, match=words):
            check(sums)
    with pytest.raises(ProtocolError, match="if any"):
        check({"trained.sums": good}, BY_ACCURACY)


# Refusals


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "heterofl"}, f"task: expected one with {LABELS}, which heterofl needs, got regression"),
        ({"method": "fedrolex"}, f"one with {LABELS}, which fedrolex needs"),
        ({"method": "fjord"}, f"one with {LABELS}, which fjord needs"),
        ({"method": "pa3dfl"}, f"one with {LABELS}, which pa3dfl needs"),
        ({"metric": "dice"}, "metric: expected one of rmse, mae, r2, got dice"),
        ({"own.class-weights": "balanced"}, "own.class-weights: expected none for the task regression"),
        ({"task": "regresion"}, "task: expected classification, multilabel, regression, segmentation, tokens, or"),
        ({"task": "multilabel", "own.classes": 2}, "target-unit: expected nothing for the task multilabel"),
        ({"target-unit": "%"}, "target-unit: expected a unit without %, brackets and quotes"),
        ({"task": "segmentation", "target-unit": "", "own.classes": 2}, "task: expected images"),
        ({"task": "tokens", "target-unit": "", "own.classes": 0}, "own.classes: expected at least 2"),
        (
            {"task": "no.such:Task", "target-unit": "", "own.classes": 1},
            "task: expected package.module:function that can be imported",
        ),
        ({"dataset": "digits", "model": "auto"}, "task: expected classification for digits"),
        (
            {"model": "har-mlp", "task": "tokens", "target-unit": "", "own.classes": 5},
            "package.module:function of your",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(more, words):
    with pytest.raises((ConfigError, ModelError)) as refused:
        assemble({**DIABETES, "method": "fedavg", **more})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_adaptive_inference_needs_classes():
    assembled = assemble({**DIABETES, "method": "dmpfl", "dmpfl.adaptive-inference": True})
    with pytest.raises(ConfigError, match=r"dmpfl\.adaptive-inference: expected false for the task regression"):
        assembled.method.make_server(assembled.setup)


def test_fedem_needs_a_loss_for_each_example(monkeypatch):
    def lacking(shape, numbers):
        return replace(regression(shape, numbers), loss_each=None, share="")

    name = name_of(lacking)
    for method, need in (("fedem", PER_EXAMPLE), ("subfedavg", "a metric from 0 to 1")):
        with pytest.raises(ConfigError, match=f"task: expected one with {need}, which {method} needs"):
            assemble({**DIABETES, "target-unit": "", "own.classes": 1, "task": name, "method": method})


# Own tasks


def huber(shape, numbers):
    """A regression with another loss, and one metric of its own."""

    def within(outputs, targets):
        return [float(((outputs - targets).abs() < 0.5).sum()), float(targets.numel())]

    metric = Metric("within-half", 2, within, lambda sums: sums[0] / sums[1])
    loss = nn.functional.huber_loss
    return Task(
        "huber",
        Targets((numbers,), floating=True),
        (numbers,),
        loss,
        Scoring((metric,), "within-half"),
        lambda outputs: outputs,
        share="within-half",
    )


def test_an_own_task_runs_and_is_named_by_its_metric(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = sepal.own(diabetes.load, shape=(10,), classes=1, task=huber)
    run = sepal.run("subfedavg", data, diabetes.build, clients=4, rounds=2, lr=0.05, workers=2, progress=False)
    assert list(run.frame.columns) == ["round", "client", "view", "within-half"]
    assert 0 < run.summary["headline"]["kept"]["mean"] <= 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": lambda outputs, targets: outputs - targets}, "a loss that is one finite number"),
        ({"scoring": Scoring((), "nothing")}, "metric: expected one of , got nothing"),
        ({"share": "other"}, "metric: expected one of within-half, got other"),
        ({"scoring": Scoring((Metric("a b", 1, lambda o, t: [1.0], lambda s: s[0]),), "a b")}, "metrics with names"),
        ({"scoring": Scoring((Metric("a", 2, lambda o, t: [1.0], lambda s: s[0]),), "a"), "share": ""}, "2 sums of a"),
    ],
)
def test_an_own_task_is_tried_before_the_run(change, words):
    def broken(shape, numbers):
        return replace(huber(shape, numbers), **change)

    with pytest.raises(ConfigError) as refused:
        assemble({**DIABETES, "target-unit": "", "own.classes": 1, "task": name_of(broken)})
    assert words in str(refused.value)


def test_the_pages_own_task_is_one(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "tasks.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    (tmp_path / "task_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = assemble(
        {**DIABETES, "target-unit": "", "own.classes": 1, "task": "task_of_the_page:counts", "method": "subfedavg"}
    ).setup.task
    assert task.scoring.measure.axis == "within-half, %"
    assert tomllib.loads((ROOT / "examples" / "tasks" / "diabetes.toml").read_text())["task"] == "regression"


@pytest.mark.parametrize("name", ["mine:Task", "os:getcwd"])
def test_a_node_uses_an_own_task_only_if_it_allows_it(name):
    with pytest.raises(ProtocolError, match="task: expected code that this node allows"):
        local_config({"task": name}, Node(0, 1))
    assert local_config({"task": name}, Node(0, 1, allow=frozenset({name})))["task"] == name
