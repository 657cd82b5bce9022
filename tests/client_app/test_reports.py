"""A client's capacity and a method's own figures on their way to the line of metrics.jsonl."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.method.interface import resolve
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import FedAvgServer

FLAT = {"dataset": "digits", "clients": 2, "rounds": 1, "partition.name": "iid", "partition.subsample": 80}


class Reporting(resolve(registry.get("fedavg").client)):
    """FedAvg's client, which reports as much as may be reported whenever it trains."""

    def __init__(self, setup, trainer):
        super().__init__(setup, trainer)
        fit = trainer.fit

        def report_and_fit(*arguments, **keys):
            for number in range(12):
                trainer.report(f"figure-{number}", number / 2)
            return fit(*arguments, **keys)

        trainer.fit = report_and_fit


class Cutting(FedAvgServer):
    uses_capacity = True


class Lines(list):
    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.append(line)

    def closed(self, progress, line):
        pass


def test_reports_reach_the_lines_even_beside_every_view():
    """The closing round has most figures: all views, under shift and corruption. No reply may be refused for that."""
    method, lines = replace(registry.get("fedavg"), client=Reporting), Lines()
    keys = {"evaluate.shift": True, "evaluate.corruption": "gaussian-noise"}
    run_in_process(assemble({**FLAT, **keys}, method), observers=[lines])
    for line in lines:
        assert len(line["clients"]) == 2
        for client in line["clients"]:
            assert client["metrics"].items() >= {f"figure-{number}": number / 2 for number in range(12)}.items()
            assert client["metrics"].keys() >= {"seconds", "steps", "multiply-adds", "unseen-test-labels"}


def test_each_line_says_what_capacity_a_client_has():
    method, lines = replace(registry.get("fedavg"), server=Cutting), Lines()
    strategy = run_in_process(assemble({**FLAT, "capacity.profile": "hetero"}, method), observers=[lines])
    capacities = {name: client.capacity for name, client in strategy.progress.roster.items()}
    assert len(set(capacities.values())) == 2
    for line in lines:
        assert {client["name"]: client["capacity"] for client in line["clients"]} == capacities


def test_clients_that_cannot_hold_the_model_end_the_run_before_round_one():
    lines = Lines()
    with pytest.raises(
        ConfigError, match=r"width: expected at most 0\.707: fedavg has one model for all clients"
    ) as caught:
        run_in_process(assemble({**FLAT, "capacity.profile": "0.5"}, registry.get("fedavg")), observers=[lines])
    assert "\n" not in str(caught.value)
    assert not lines


def test_with_width_a_method_with_one_model_trains_on_small_clients():
    strategy = run_in_process(assemble({**FLAT, "capacity.profile": "0.25,0.5", "width": 0.5}, registry.get("fedavg")))
    assert {client.capacity for client in strategy.progress.roster.values()} <= {0.25, 0.5}
    assert strategy.progress.closed
