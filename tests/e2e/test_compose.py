"""The Compose file, for real: a federation in containers, one of which is killed and started again in mid-run.

Needs a Docker engine (``DOCKER_HOST``), Compose, and images: those that ``SEPAL_IMAGE`` names, or one for each
``FLOWER`` of the Dockerfile, built here from the base image that ``BASE_IMAGE`` names (``tests/compose/base_image.sh``
makes a stand-in for it).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from sepal.engines.in_process import run_in_process
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.strategies.assembly import assemble

docker = pytest.importorskip("docker", reason="the Docker SDK for Python is not installed")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
ROUNDS, CLIENTS, EPOCHS, CAPACITIES, WIDTH = 4, 3, 5, "1,0.7,0.4", 0.6
FLOWERS = ("grpc", "http")


def compose_command() -> list[str]:
    for command in (["docker", "compose"], ["docker-compose"]):
        version = [*command, "version"]
        if shutil.which(command[0]) and not subprocess.run(version, check=False, capture_output=True).returncode:
            return command
    pytest.skip("Compose is not installed (docker-compose or the plugin)")


@pytest.fixture(scope="module")
def engine():
    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except Exception as reason:
        pytest.skip(f"no Docker engine: {str(reason)[:120]}")
    return client


@pytest.fixture(scope="module", params=os.environ.get("SEPAL_IMAGE", " ".join(FLOWERS)).split())
def image(engine, request):
    if request.param not in FLOWERS:
        return request.param
    base = os.environ.get("BASE_IMAGE", "python:3.11-slim")
    try:
        engine.images.get(base)
    except docker.errors.ImageNotFound:
        pytest.skip(f"the base image {base} is not there: set SEPAL_IMAGE or BASE_IMAGE (tests/compose/base_image.sh)")
    name = f"sepal:test-{request.param}"
    environment = {**os.environ, "SEPAL_IMAGE": name, "FLOWER": request.param}
    subprocess.run([*compose_command(), "build", "certs"], cwd=ROOT, env=environment, check=True)
    arguments = ["-P", "-c", "from sepal.flower.versions import transport; print(transport())"]
    answer = engine.containers.run(name, arguments, entrypoint="python3", remove=True, network_mode="none")
    assert answer.decode().lower().startswith(request.param), "it has another Flower"
    return name


class Project:
    """One start of the Compose file, with volumes of its own."""

    def __init__(self, engine, image, method):
        self.engine, self.name = engine, f"sepal{uuid.uuid4().hex[:8]}"
        keys = {"ROUNDS": ROUNDS, "CLIENTS": CLIENTS, "EPOCHS": EPOCHS, "CAPACITIES": CAPACITIES, "WIDTH": WIDTH}
        self.method, settings = method, {key: str(value) for key, value in keys.items()}
        self.environment = {**os.environ, **settings, "SEPAL_IMAGE": image, "METHOD": method, "RUN": "kill"}

    def compose(self, *arguments, check=True):
        command = [*compose_command(), "--project-name", self.name, *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=600, check=check
        )

    def containers(self, service):
        labels = [f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}"]
        containers = self.engine.containers.list(all=True, filters={"label": labels})
        return sorted(containers, key=lambda container: container.name)

    def read(self, path):
        (container,) = self.containers("superlink")
        return container.exec_run(["cat", path]).output.decode()

    def rounds(self):
        return len(self.read("/runs/kill/metrics.jsonl").splitlines()) if self.has("/runs/kill/metrics.jsonl") else 0

    def has(self, path):
        (container,) = self.containers("superlink")
        return container.exec_run(["test", "-e", path]).exit_code == 0

    def until(self, holds, seconds, failure):
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, (
                f"{failure}\n{self.compose('logs', '--tail', '40', check=False).stdout[-6000:]}"
            )
            time.sleep(1)

    def ended(self):
        (run,) = self.containers("run")
        run.reload()
        return run.status == "exited"


@pytest.fixture
def project(engine, image, request):
    started = Project(engine, image, request.param)
    try:
        started.compose("up", "--detach", "--no-build", "--scale", f"supernode={CLIENTS}")
        yield started
    finally:
        started.compose("down", "--volumes", "--timeout", "10", check=False)


@pytest.mark.parametrize("project", ["fedpse", "fedavg"], indirect=True)
def test_a_client_container_that_is_killed_in_mid_run_comes_back_and_the_run_is_as_in_process(project, tmp_path):
    project.until(lambda: project.rounds() >= 1, 600, "no round was completed")
    victim = project.containers("supernode")[0]
    before = slot(victim, starts=1)
    victim.kill()
    time.sleep(2)
    victim.start()
    project.until(project.ended, 900, "the run did not end")
    (run,) = project.containers("run")
    assert run.wait()["StatusCode"] == 0, run.logs(tail=40).decode()
    summary = json.loads(project.read("/runs/kill/summary.json"))
    assert summary["complete"]
    assert summary["clients"] == CLIENTS
    assert project.rounds() == ROUNDS + 1, "a round was lost or doubled"
    assert hashes(summary) == in_process(project.method, tmp_path / "kill")
    victim.reload()
    assert slot(victim, starts=2) == before, "it took another key"
    entries = [json.loads(line) for line in project.read("/runs/kill/ledger.jsonl").splitlines()]
    accepted = {(e["round"], e["client"]) for e in entries if e["direction"] == "up" and e["status"] == "accepted"}
    assert len(accepted) == (ROUNDS + 1) * CLIENTS, "every client took part in every round"
    superlink = project.containers("superlink")[0]
    owner = superlink.exec_run(["id", "-u"]).output.decode().strip()
    assert owner == "49999", "not root"


def hashes(summary) -> tuple[str, str]:
    return summary["weights_sha256"], summary["clients_sha256"]


def in_process(method, path) -> tuple[str, str]:
    """The hashes of the same run without containers: the same with either Flower."""
    keys = {"method": method, "dataset": "digits", "rounds": ROUNDS, "local-epochs": EPOCHS, "clients": CLIENTS}
    assembly = assemble({**keys, "width": WIDTH, "capacity.profile": CAPACITIES, "name": path.name})
    with RunDirectory(path, assembly, IN_PROCESS) as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory])
    return hashes(json.loads((path / "summary.json").read_text()))


def slot(container, starts) -> str:
    """The last slot that a client's log names; it names one at each start."""
    slot_lines = [line for line in container.logs().decode(errors="replace").splitlines() if line.startswith("slot ")]
    assert len(slot_lines) >= starts
    return slot_lines[-1]


def test_the_demo_ends_with_its_summary_and_takes_down_its_own_project_alone(engine, image):
    """`make compose-demo` without the build. What was started by hand belongs to a project of the directory's name."""
    by_hand = ROOT.name.lower()
    labels = {"com.docker.compose.project": by_hand, "com.docker.compose.volume": "authority"}
    if engine.volumes.list(filters={"name": f"{by_hand}_authority"}):
        pytest.skip(f"there is a federation by hand: volume {by_hand}_authority")
    bystander = engine.volumes.create(f"{by_hand}_authority", labels=labels)
    keys = {"SEPAL_IMAGE": image, "BUILD": "0", "CLIENTS": "2", "METHOD": "fedavg", "ROUNDS": "1"}
    environment = {**os.environ, **keys, "COMPOSE": " ".join(compose_command())}
    environment.pop("COMPOSE_PROJECT_NAME", None)
    try:
        script = ["bash", str(ROOT / "tools" / "compose_demo.sh")]
        completed = subprocess.run(
            script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-2000:]
        assert "closing evaluation" in completed.stdout
        assert "2 clients" in completed.stdout
        demo_label = {"label": "com.docker.compose.project=sepal-demo"}
        assert engine.containers.list(all=True, filters=demo_label) == engine.volumes.list(filters=demo_label) == []
        assert engine.volumes.get(bystander.name)
    finally:
        bystander.remove()


def test_no_key_is_in_the_image(engine, image):
    arguments = ["/certs", "/home/sepal", "-type", "f", "-not", "-name", ".bash*", "-not", "-name", ".profile"]
    key_files = engine.containers.run(image, arguments, entrypoint="find", remove=True, network_mode="none")
    assert key_files.decode().strip() == ""
