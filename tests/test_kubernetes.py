"""The manifests in deploy/kubernetes: their schema, and what no schema checks. No cluster is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from sepal.cli.serving import serve
from sepal.engines.flower import rejoining
from sepal.names import client_name
from sepal.strategies.assembly import assemble
from sepal.study.run_keys import gather_to_serve
from tests.test_monitoring import COMPOSE, ROOT

PLACE = ROOT / "deploy" / "kubernetes"
PAGE = (ROOT / "docs" / "deployment.md").read_text().partition("## Kubernetes")[2]
CLOSED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def resources(directory: Path = PLACE) -> list[Path]:
    """Resolve ``resources:`` of a kustomization as kustomize does."""
    files = []
    for name in yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]:
        path = directory / name
        files += resources(path) if path.is_dir() else [path]
    return files


FILES = [*resources(), PLACE / "monitoring.yaml"]
OBJECTS = {
    (item["kind"], item["metadata"]["name"]): item for path in FILES for item in yaml.safe_load_all(path.read_text())
}
PODS = {name: item["spec"]["template"]["spec"] for (kind, name), item in OBJECTS.items() if kind == "StatefulSet"}
CONTAINERS = {
    f"{pod}/{container['name']}": (pod, container)
    for pod, spec in PODS.items()
    for container in (*spec["initContainers"], *spec["containers"])
}
CLIENT, SUPERLINK, RUN = (
    CONTAINERS[name][1] for name in ("sepal-client/client", "sepal-server/superlink", "sepal-server/run")
)


def default(name: str) -> int:
    return serve.__defaults__[list(serve.__annotations__).index(name)]


def ports(container: dict) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container.get("ports", ())}


def test_every_file_is_a_resource_and_fits_the_schema():
    import kubernetes_validate

    assert {path.relative_to(PLACE) for path in PLACE.rglob("*.yaml")} == {
        *(path.relative_to(PLACE) for path in FILES),
        *(path.relative_to(PLACE) for path in PLACE.rglob("kustomization.yaml")),
    }
    for item in OBJECTS.values():
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kustomize_makes_the_same_objects():
    completed = subprocess.run(["kubectl", "kustomize", str(PLACE)], capture_output=True, text=True, check=True)
    objects = list(yaml.safe_load_all(completed.stdout))
    named_objects = {(item["kind"], item["metadata"]["name"]) for item in objects if item["kind"] != "ConfigMap"}
    assert named_objects == OBJECTS.keys() - {("NetworkPolicy", "sepal-figures")}
    assert {item["metadata"].get("namespace", "sepal") for item in objects} == {"sepal"}
    run = next(item for item in objects if item["kind"] == "ConfigMap")
    assert f"name: {run['metadata']['name']}\n" in completed.stdout.partition("kind: StatefulSet")[2]


@pytest.mark.parametrize("name", CONTAINERS)
def test_each_mount_has_its_volume_and_each_container_is_closed_and_limited(name):
    pod, container = CONTAINERS[name]
    volumes = {volume["name"] for volume in PODS[pod]["volumes"]}
    volumes |= {item["metadata"]["name"] for item in OBJECTS["StatefulSet", pod]["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert container["securityContext"] == CLOSED
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]
    if container not in PODS[pod]["initContainers"]:
        assert {"/tmp", "/home/sepal", "/data"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
        assert all(v["name"] != "secret" for v in container["volumeMounts"])
    assert container["image"] == re.search(r":-(.*)}", COMPOSE["superlink"]["image"])[1]


@pytest.mark.parametrize("pod", PODS)
def test_pods_run_as_the_image_s_user_and_each_volume_is_used(pod):
    spec = PODS[pod]
    user = int(re.search(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1])
    context = spec["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (user, user, user)
    assert context["runAsNonRoot"]
    assert context["fsGroupChangePolicy"] == "OnRootMismatch"
    assert not spec["automountServiceAccountToken"]
    used = {
        mount["name"]
        for _, c in CONTAINERS.values()
        if c in spec["initContainers"] + spec["containers"]
        for mount in c["volumeMounts"]
    }
    assert {volume["name"] for volume in spec["volumes"]} <= used


def test_each_secret_and_config_map_is_generated_or_made_by_a_command_of_the_page():
    generated = {
        item["name"]: item["files"]
        for item in yaml.safe_load((PLACE / "server" / "kustomization.yaml").read_text())["configMapGenerator"]
    }
    assert all((PLACE / "server" / file).is_file() for files in generated.values() for file in files)
    for spec in PODS.values():
        for volume in spec["volumes"]:
            if "secret" in volume:
                assert f"create secret generic {volume['secret']['secretName']} " in PAGE
            elif (name := volume.get("configMap", {}).get("name")) and name not in generated:
                assert f"create configmap {name} " in PAGE


def test_ports_are_those_of_the_code_and_of_compose():
    fleet, control = default("port"), default("control")
    assert ports(SUPERLINK)["fleet"] == fleet
    assert SUPERLINK["command"][-2:] == ["--door", f"0.0.0.0:{fleet}"]
    assert f"--port={control}" in SUPERLINK["args"]
    assert "--host=127.0.0.1" in SUPERLINK["args"]
    assert f"127.0.0.1:{control}/" in SUPERLINK["livenessProbe"]["exec"]["command"][-1]
    environment = {item["name"]: item.get("value") for item in SUPERLINK["env"]}
    assert environment["SEPAL_METRICS"] == COMPOSE["superlink"]["environment"]["SEPAL_METRICS"]
    assert environment["SEPAL_METRICS"] == f"0.0.0.0:{ports(SUPERLINK)['figures']}"
    figures = f"--metrics=0.0.0.0:{ports(CLIENT)['figures']}"
    assert figures in CLIENT["args"]
    assert figures in COMPOSE["supernode"]["command"]
    assert CLIENT["args"][:2] == ["join", f"sepal-server:{fleet}"]
    service = OBJECTS["Service", "sepal-server"]["spec"]
    assert [(port["port"], port["targetPort"]) for port in service["ports"]] == [(fleet, "fleet")]


def test_no_probe_asks_a_port_that_others_reach():
    """Whoever keeps the port busy would have the container restarted. The kernel alone accepts a connection."""
    pairs = [(name, key, probe) for name, (_, container) in CONTAINERS.items() for key, probe in container.items()]
    probes = {(name, key): probe for name, key, probe in pairs if key.endswith("Probe")}
    others = {where for where, probe in probes.items() if "exec" not in probe}
    assert others == {("sepal-server/superlink", "readinessProbe")}
    assert "tcpSocket" in probes[others.pop()]


@pytest.mark.skipif(not shutil.which("find"), reason="find is not installed")
def test_a_clients_probes_read_what_it_writes(tmp_path, monkeypatch):
    """Alive while it waits or runs, ready while it runs; neither once it has not written for minutes."""
    home = Path({item["name"]: item.get("value") for item in CLIENT["env"]}["SEPAL_HOME"])
    file = tmp_path / "clients" / "client-00002" / rejoining.ALIVE

    def good(probe):
        command = [word.replace(str(home), str(tmp_path)) for word in CLIENT[probe]["exec"]["command"]]
        assert str(home) in CLIENT[probe]["exec"]["command"][-1]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def both():
        return good("livenessProbe"), good("readinessProbe")

    ends = [subprocess.TimeoutExpired("node", 1), 0]

    def waited(timeout):
        end = ends.pop(0)
        if end:
            raise end
        return end

    assert both() == (False, False)
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(rejoining, "examine", lambda *arguments: iter(()))
    rejoining.wait_until_welcome("h:1", None, beat=lambda: file.write_text("waiting\n"))
    assert both() == (True, False)
    writes = []
    assert rejoining._ended(SimpleNamespace(wait=waited), lambda: writes.append(file.write_text("running\n"))) == 0
    assert (len(writes), both()) == (2, (True, True))
    long_ago = file.stat().st_mtime - 600
    os.utime(file, (long_ago, long_ago))
    assert not good("livenessProbe")


def test_the_superlink_is_composes():
    assert SUPERLINK["command"] == COMPOSE["superlink"]["entrypoint"]
    differ = set(SUPERLINK["args"]) ^ set(COMPOSE["superlink"]["command"])
    assert {argument.partition("=")[0] for argument in differ} == {"--database"}


def test_only_the_fleet_api_is_reachable():
    for component, name, allowed in (("server", "sepal-server", ["fleet"]), ("client", "sepal-client", [])):
        policy = OBJECTS["NetworkPolicy", name]["spec"]
        labels = {"app.kubernetes.io/name": "sepal", "app.kubernetes.io/component": component}
        assert policy["podSelector"]["matchLabels"] == labels
        assert OBJECTS["StatefulSet", name]["spec"]["template"]["metadata"]["labels"] == labels
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == allowed
    server, client = (OBJECTS["NetworkPolicy", f"sepal-{name}"]["spec"] for name in ("server", "client"))
    assert server["egress"] == []
    assert [port["port"] for rule in client["egress"] for port in rule["ports"]] == [default("port"), 53, 53]
    assert all(rule["to"] for rule in client["egress"])


def test_the_run_has_as_many_clients_as_there_are_pods_and_keys():
    config = PLACE / "server" / "run.toml"
    run = tomllib.loads(config.read_text())
    replicas = OBJECTS["StatefulSet", "sepal-client"]["spec"]["replicas"]
    assert run["clients"] == replicas
    assert f"--of={replicas}" in CLIENT["args"]
    assert f"--nodes {replicas}" in PAGE
    assert run["name"]  # --attempts needs it
    assert Path(run["out"]).parent in {Path(mount["mountPath"]) for mount in RUN["volumeMounts"]}
    assemble(gather_to_serve(config, [], None, None))
    (init,) = PODS["sepal-client"]["initContainers"]
    form = re.search(r"printf (\S+) ", init["command"][-1])[1]
    assert form % 7 == client_name(7)
