"""Prometheus and Grafana in Compose: the dashboard shows figures that exist; only Grafana is published, on loopback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from sepal.engines.flower.figures import ClientFigures
from sepal.server.status import Status
from sepal.server_app.metrics import ServerFigures

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_every_panel_shows_a_figure_that_exists(tmp_path):
    pytest.importorskip("prometheus_client")
    figures = ServerFigures(lambda: Status(1, "training"))
    figures._uploads["accepted", ""] = 1
    families = [*figures.collect(), *ClientFigures(tmp_path / "x", lambda: True, list).collect()]
    family_names = {family.name + "_total" * (family.type == "counter") for family in families}
    panels = json.loads((ROOT / "monitoring" / "sepal.json").read_text())["panels"]
    shown = {name for panel in panels for name in re.findall(r"sepal_\w+", panel["targets"][0]["expr"])}
    assert shown <= family_names
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_prometheus_asks_the_ports_that_the_services_serve():
    settings = yaml.safe_load((ROOT / "monitoring" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in settings["scrape_configs"]}
    server = COMPOSE["superlink"]["environment"]["SEPAL_METRICS"].rpartition(":")[2]
    assert jobs["sepal-server"]["static_configs"][0]["targets"] == [f"superlink:{server}"]
    dns = jobs["sepal-clients"]["dns_sd_configs"][0]
    assert f"--metrics=0.0.0.0:{dns['port']}" in COMPOSE[dns["names"][0]]["command"]


def test_only_the_profile_publishes_a_port_and_on_this_machine_only():
    published = {name: service["ports"] for name, service in COMPOSE.items() if "ports" in service}
    assert published == {"grafana": ["127.0.0.1:3000:3000"]}
    assert all(COMPOSE[name]["profiles"] == ["monitoring"] for name in ("grafana", "prometheus"))
    mounted = [v.partition(":")[0] for name in ("grafana", "prometheus") for v in COMPOSE[name]["volumes"]]
    assert all((ROOT / path).is_file() for path in mounted)
