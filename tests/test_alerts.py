"""Each alert of monitoring/alerts.yml fires, and is silent while all is well: promtool plays series through it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ALERTS = Path(__file__).parents[1] / "monitoring" / "alerts.yml"
SERVER, CLIENT = {"instance": "server:9464", "job": "sepal-server"}, {"instance": "client:9465", "job": "sepal-clients"}
SECOND_SERVER = {**SERVER, "instance": "second:9464"}
HOURS = "0+0x180"  # three hours, a sample a minute, all 0

# Alert → the series by which it fires after three hours, and those by which it must not.
CASES = {
    "SepalRoundOverdue": (
        [("sepal_last_round_timestamp_seconds", SERVER, HOURS), ('sepal_phase{phase="training"}', SERVER, "1+0x180")],
        [("sepal_last_round_timestamp_seconds", SERVER, HOURS), ('sepal_phase{phase="closed"}', SERVER, "1+0x180")],
    ),
    "SepalServerGone": (
        [("sepal_round", SERVER, "5+0x60 stale"), ("sepal_rounds", SERVER, "10+0x60 stale")],
        [
            *[(name, SERVER, "10+0x60 stale") for name in ("sepal_round", "sepal_rounds")],  # its run has ended
            *[(name, SECOND_SERVER, f"{value}+0x180") for name, value in (("sepal_round", 5), ("sepal_rounds", 10))],
        ],
    ),
    "SepalClientsMissing": (
        [('sepal_clients{state="missing"}', SERVER, "2+0x180")],
        [('sepal_clients{state="missing"}', SERVER, HOURS), ('sepal_clients{state="working"}', SERVER, "2+0x180")],
    ),
    "SepalClientDown": ([("sepal_client_up", CLIENT, HOURS)], [("sepal_client_up", CLIENT, "1+0x180")]),
    "SepalRepliesRefused": (
        [('sepal_replies_total{status="refused",reason="lr"}', SERVER, "0+1x180")],
        [('sepal_replies_total{status="accepted",reason=""}', SERVER, "0+1x180")],
    ),
    "SepalTrainingsDiverged": (
        [("sepal_diverged_trainings_total", SERVER, "0+1x180")],
        [("sepal_diverged_trainings_total", SERVER, "3+0x180")],
    ),
    "SepalCertificateExpires": (
        [('sepal_certificate_expiry_seconds{file="server.pem"}', SERVER, "600000+0x180")],
        [('sepal_certificate_expiry_seconds{file="server.pem"}', SERVER, "900000+0x180")],
    ),
}


def test_every_alert_has_a_case():
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == set(CASES)


@pytest.mark.parametrize("alert", CASES)
@pytest.mark.parametrize("fires", [True, False], ids=["fires", "silent"])
def test_an_alert_fires_and_only_then(alert, fires, tmp_path):
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed (Debian: prometheus)")
    series = [
        {"series": _with(name, labels), "values": values} for name, labels, values in CASES[alert][0 if fires else 1]
    ]
    (rule,) = [r for g in yaml.safe_load(ALERTS.read_text())["groups"] for r in g["rules"] if r["alert"] == alert]
    file = tmp_path / "test.yml"
    expected = [{"exp_labels": _labels(rule, series[0]["series"]), "exp_annotations": {}}] if fires else []
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for group_rule in group["rules"]:
            group_rule.pop("annotations")
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    test = {"interval": "1m", "input_series": series}
    test["alert_rule_test"] = [{"eval_time": "3h", "alertname": alert, "exp_alerts": expected}]
    file.write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}))
    command = ["promtool", "test", "rules", file]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def _with(name: str, labels: dict[str, str]) -> str:
    """Return a series' name with more labels."""
    base, _, rest = name.partition("{")
    pairs = [*filter(None, rest.rstrip("}").split(",")), *(f'{key}="{value}"' for key, value in labels.items())]
    return f"{base}{{{','.join(pairs)}}}"


def _labels(rule: dict[str, dict[str, str]], series: str) -> dict[str, str]:
    """Return the labels of an alert: those of its series and of its rule."""
    pairs = series.partition("{")[2].rstrip("}").split(",")
    return {**{pair.partition("=")[0]: pair.partition("=")[2].strip('"') for pair in pairs}, **rule["labels"]}
