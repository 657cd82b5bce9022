"""The in-process engine: a Flower Grid without a SuperLink, for tests, sweeps and one machine."""

from sepal.engines.in_process.run import check_clients, run_in_process

__all__ = ["check_clients", "run_in_process"]
