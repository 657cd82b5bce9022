"""One SuperLink with TLS and registered node keys for each file of tests that asks for it, and a Slurm for a test."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import ServerCredentials
from sepal.engines.flower.engine import Flower
from sepal.engines.flower.node_registry import NodeRegistry
from tests.e2e.attacking_client import EVIL, GUEST, HONEST
from tests.e2e.two_node_ray import RayCluster
from tests.e2e.two_node_ray import missing as no_ray_cluster
from tests.e2e.two_node_slurm import Slurm, missing


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certs")
    make_certificates(directory, nodes=[HONEST, EVIL, GUEST])
    return directory


@pytest.fixture(scope="module")
def server(certs, tmp_path_factory):
    environment = {"SEPAL_HOME": str(tmp_path_factory.mktemp("home"))}
    with Flower(environment=environment) as flower:
        credentials = ServerCredentials.of(certs)
        flower.start_superlink(credentials=credentials, timeout=120)
        flower.registry = NodeRegistry(credentials, flower.environment, flower.home / "nodes.json")
        flower.registry.sync()
        yield flower
    assert not flower.left(), "a process was left behind"


@pytest.fixture(scope="module")
def address(server):
    return f"localhost:{server.ports.fleet}"


@pytest.fixture
def slurm():
    if reason := missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as directory:  # sockets have short names
        cluster = Slurm(Path(directory))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster of two nodes; skipped where there can be none."""
    if reason := no_ray_cluster():
        pytest.skip(f"a Ray cluster: {reason}")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:  # sockets have short names
        cluster = RayCluster(Path(directory), f"sepal-ray-{os.getpid()}")
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
