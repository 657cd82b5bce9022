"""Certificates that expire: refused at the start, warned of 30, 7 and 1 days before."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import ServerCredentials
from sepal.engines.flower.processes import FlowerError
from sepal.errors import ConfigError, StateError
from sepal.flower import superlink
from sepal.operation import expiry as module
from sepal.operation.expiry import ExpiryWatch, check_not_expired, expiry, watched
from sepal.operation.figures import CERTIFICATES

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def certificate(tmp_path):
    """A server's certificate that ends 100 days after ``NOW``."""
    make_certificates(tmp_path, ["localhost"], days=100, now=NOW)
    return tmp_path / "server" / "server.pem"


def test_an_expired_certificate_is_refused_by_file_and_date(certificate):
    check_not_expired([certificate], NOW + timedelta(days=99))
    with pytest.raises(ConfigError) as caught:
        check_not_expired([certificate], NOW + timedelta(days=101))
    assert str(certificate) in str(caught.value)
    assert "expired on 2026-06-09 00:00 UTC" in str(caught.value)
    assert "valid on 2026-06-10" in str(caught.value), "the clock may be wrong"


def test_a_certificate_whose_version_is_damaged_is_one_line(certificate, tmp_path):
    """For it the library has an error of its own, which is no ValueError."""
    data = bytearray(x509.load_pem_x509_certificate(certificate.read_bytes()).public_bytes(Encoding.DER))
    data[data.index(bytes.fromhex("a003020102")) + 4] = 7
    damaged = ssl.DER_cert_to_PEM_cert(bytes(data))
    for file in (certificate, tmp_path / "ca" / "ca.crt"):
        whole = file.read_bytes()
        file.write_text(damaged)
        with pytest.raises(StateError, match="7 is not a valid X509 version"):
            make_certificates(tmp_path, ["localhost"], now=NOW)
        file.write_bytes(whole)
    certificate.write_text(damaged)
    with pytest.raises(ConfigError, match="expected a certificate in PEM"):
        ServerCredentials.of(tmp_path)
    lines = []
    ExpiryWatch([certificate], lines.append).look(NOW)
    assert "cannot be read: 7 is not a valid X509 version" in lines[0]


def test_each_warning_is_given_once_and_again_for_a_renewed_certificate(certificate, tmp_path):
    lines = []
    watch = ExpiryWatch([certificate], lines.append)
    for days_left in (60, 31, 30, 29, 8, 7, 6.5, 2, 1, 0.5, 0.1):
        before = len(lines)
        watch.look(NOW + timedelta(days=100 - days_left))
        assert len(lines) - before == (days_left in (30, 7, 1)), days_left
    assert all(str(certificate) in line and "expires on 2026-06-09" in line for line in lines)
    make_certificates(tmp_path, ["localhost"], days=20, now=NOW + timedelta(days=99))
    watch.look(NOW + timedelta(days=99))
    assert "in 20.0 days" in lines[-1]


def test_a_server_that_starts_late_warns_once(certificate):
    lines = []
    watch = ExpiryWatch([certificate], lines.append)
    for days_left in (3, 2.5):
        watch.look(NOW + timedelta(days=100 - days_left))
    assert len(lines) == 1


def test_a_certificate_that_is_being_replaced_ends_nothing(tmp_path):
    lines = []
    ExpiryWatch([tmp_path / "none.pem"], lines.append).look(NOW)
    assert "cannot be read" in lines[0]


def test_certs_prints_both_dates(tmp_path):
    answer = CliRunner().invoke(app, ["certs", str(tmp_path), "--host", "example.org", "--days", "50"])
    assert answer.exit_code == 0, answer.output
    for file in (tmp_path / "ca" / "ca.crt", tmp_path / "server" / "server.pem"):
        assert f"valid until {expiry(file):%Y-%m-%d}" in answer.output


def test_certificates_are_looked_at_daily(certificate, monkeypatch):
    looks, waits = [], []

    def wait(seconds):
        waits.append(seconds)
        return len(waits) == 4

    threads = SimpleNamespace(Thread=threading.Thread, Event=lambda: SimpleNamespace(wait=wait))
    monkeypatch.setattr(module, "threading", threads)
    monkeypatch.setattr(ExpiryWatch, "look", lambda self: looks.append(1))
    before = {*threading.enumerate()}
    ExpiryWatch([certificate], str).start()
    for thread in {*threading.enumerate()} - before:
        thread.join(20)
    assert (len(looks), waits) == (4, [24 * 3600.0] * 4)


@pytest.mark.parametrize("days", [99, 101], ids=["valid", "expired"])
def test_an_error_of_flowers_after_a_certificate_has_expired_names_the_certificate(days, certificate, monkeypatch):
    """Flower's: Connection to the SuperLink is unavailable. Please check your network connection."""
    check = check_not_expired
    times = iter((NOW, NOW + timedelta(days=days)))
    monkeypatch.setattr(module, "check_not_expired", lambda files: check(files, next(times)))
    with pytest.raises((FlowerError, ConfigError)) as caught, watched([certificate], str):
        raise FlowerError("run", "finished:completed", "unknown")
    expired = f"{certificate}: expected a certificate that is valid on 2026-06-10"
    assert str(caught.value).startswith(expired if days > 100 else "run: expected finished:completed")


@pytest.mark.parametrize("days", [10, -1], ids=["valid", "expired"])
def test_a_superlink_tells_its_server_app_the_dates_and_refuses_what_has_expired(days, tmp_path, monkeypatch):
    """However it is started: by `sepal serve`, as a service of its own, or in a container."""
    make_certificates(tmp_path, ["localhost"], days=20, now=datetime.now(UTC) - timedelta(days=20 - days))
    credentials = ServerCredentials.of(tmp_path)
    if days > 0:
        monkeypatch.setenv(CERTIFICATES, "")
        superlink.check_certificates(credentials.options())
        ends = {file.name: expiry(file).timestamp() for file in credentials.certificates}
        assert json.loads(os.environ[CERTIFICATES]) == ends
        return
    command = [sys.executable, "-P", "-m", superlink.__name__, *credentials.options(), "--database", ":memory:"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        f"sepal: {credentials.certificates[0]}: expected a certificate that"
    )


@pytest.mark.parametrize("command", ["serve", "submit"])
def test_serve_and_submit_refuse_an_expired_certificate_before_they_start_anything(command, tmp_path, monkeypatch):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    make_certificates(tmp_path, ["localhost"], days=10, now=datetime.now(UTC) - timedelta(days=11))
    answer = CliRunner().invoke(app, [command, "--certs", str(tmp_path), "--set", "dataset=digits", "--name", "late"])
    words = f"{answer.output} {answer.exception}"
    assert answer.exit_code != 0
    assert f"{tmp_path / 'server' / 'server.pem'}: expected a certificate that is valid on" in " ".join(words.split())
    assert not list(tmp_path.rglob("superlink.log")), "nothing was started"
