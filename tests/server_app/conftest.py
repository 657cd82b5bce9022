import pytest

from sepal.strategies.assembly import assemble

KEYS = {
    "dataset": "digits",
    "partition.name": "lambda-mix",
    "partition.subsample": 300,
    "clients": 3,
    "rounds": 3,
    "evaluate-every": 2,
    "checkpoint-every": 2,
}


@pytest.fixture(scope="session")
def keys():
    return dict(KEYS)


@pytest.fixture(scope="session")
def assembly():
    return assemble({**KEYS, "method": "fedavg"})
