"""Certificates that expire: refused at the start, warned of 30, 7 and 1 days before."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import ServerCredentials
from sepal.errors import ConfigError, StateError
from sepal.operation.expiry import ExpiryWatch, check_not_expired, expiry

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


def test_serve_refuses_an_expired_certificate_before_it_starts_anything(tmp_path, monkeypatch):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    make_certificates(tmp_path, ["localhost"], days=10, now=datetime.now(UTC) - timedelta(days=11))
    answer = CliRunner().invoke(app, ["serve", "--certs", str(tmp_path), "--set", "dataset=digits", "--name", "late"])
    words = f"{answer.output} {answer.exception}"
    assert answer.exit_code != 0
    assert f"{tmp_path / 'server' / 'server.pem'}: expected a certificate that is valid on" in " ".join(words.split())
    assert not list(tmp_path.rglob("superlink.log")), "nothing was started"
