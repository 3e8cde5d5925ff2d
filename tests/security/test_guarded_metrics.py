"""Metrics over HTTPS and to holders of a token: the server of both planes, the operator's command, a rank, the scraper."""

from __future__ import annotations

import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from rap_contract import metrics
from rap_contract.guarded_http import Access, Page, PageServer
from rap_contract.problem import InvalidDocument
from rap_operator.cli import main as rap_operator
from rap_operator.health import HealthServer
from rap_operator.pages import http_fetch
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.display.metrics_server import MetricsServer, access_of
from servers.certificates import CertificateAuthority
from servers.processes import free_port

LOOPBACK = "127.0.0.1"
TOKEN = "open-sesame"


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "pki")


@pytest.fixture
def secret(tmp_path: Path, authority: CertificateAuthority) -> Path:
    """A mounted Secret."""
    folder = tmp_path / "secret"
    folder.mkdir()
    pair = authority.issue("metrics", user="metrics")
    shutil.copy(pair.certificate, folder / "tls.crt")
    shutil.copy(pair.key, folder / "tls.key")
    (folder / "token").write_text(f"{TOKEN}\n")
    return folder


def page(path: str, headers: Mapping[str, str]) -> Page | None:
    del headers
    return Page(body=path.encode()) if path in ("/open", "/guarded") else None


@pytest.fixture
def server(secret: Path) -> Iterator[PageServer]:
    made = PageServer(LOOPBACK, 0, page, access=Access.of_folder(secret), guarded=frozenset({"/guarded"}))
    made.start()
    yield made
    made.stop()


def read(port: int, path: str, authority: CertificateAuthority, token: str | None = None) -> tuple[int, bytes]:
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    asked = urllib.request.Request(f"https://{LOOPBACK}:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=10, context=trust) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def test_a_guarded_page_is_for_holders_of_the_token(server: PageServer, authority: CertificateAuthority) -> None:
    assert read(server.port, "/open", authority) == (200, b"/open")
    assert read(server.port, "/guarded", authority)[0] == 401
    assert read(server.port, "/guarded", authority, "wrong")[0] == 401
    assert read(server.port, "/guarded?x=1", authority)[0] == 401
    assert read(server.port, "/guarded", authority, TOKEN) == (200, b"/guarded")
    assert read(server.port, "/elsewhere", authority, TOKEN)[0] == 404


def test_a_token_that_changes_or_is_empty_counts_at_once(
    server: PageServer, authority: CertificateAuthority, secret: Path
) -> None:
    (secret / "token").write_text("new")
    assert read(server.port, "/guarded", authority, TOKEN)[0] == 401
    assert read(server.port, "/guarded", authority, "new")[0] == 200
    (secret / "token").write_text("\n")
    assert read(server.port, "/guarded", authority, "")[0] == 401
    (secret / "token").unlink()
    assert read(server.port, "/guarded", authority, "new")[0] == 401


def test_a_renewed_certificate_is_served_and_a_broken_one_is_not(
    server: PageServer, authority: CertificateAuthority, secret: Path, tmp_path: Path
) -> None:
    def serial() -> str:
        trust = ssl.create_default_context(cafile=str(authority.certificate))
        plain = socket.create_connection((LOOPBACK, server.port), timeout=10)
        with trust.wrap_socket(plain, server_hostname=LOOPBACK) as encrypted:
            found = encrypted.getpeercert()
        assert found is not None
        return str(found["serialNumber"])

    before = serial()
    pair = authority.issue("renewed", user="metrics")
    shutil.copy(pair.certificate, secret / "tls.crt")
    shutil.copy(pair.key, secret / "tls.key")
    after = serial()
    assert after != before
    (secret / "tls.crt").write_text("half a certificate")
    assert serial() == after


def test_a_reader_that_never_finishes_its_handshake_holds_up_nobody(
    server: PageServer, authority: CertificateAuthority
) -> None:
    with socket.create_connection((LOOPBACK, server.port)), socket.create_connection((LOOPBACK, server.port)):
        assert read(server.port, "/open", authority) == (200, b"/open")


def test_nothing_is_served_in_the_clear(server: PageServer) -> None:
    with pytest.raises(OSError):  # reset or closed, as the kernel likes
        urllib.request.urlopen(f"http://{LOOPBACK}:{server.port}/open", timeout=10)


def test_half_an_access_is_refused(secret: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="come together"):
        Access(certificate=secret / "tls.crt")
    with pytest.raises(ValueError, match="plain HTTP"):
        Access(token_file=secret / "token")
    (secret / "tls.key").write_text("no key")
    with pytest.raises(ValueError, match="cannot be used"):
        PageServer(LOOPBACK, 0, page, access=Access.of_folder(secret))
    with pytest.raises(ValueError, match=r"no tls.crt in"):
        Access.of_folder(tmp_path)


def test_the_operators_probes_need_no_token(secret: Path, authority: CertificateAuthority) -> None:
    access = Access.of_folder(secret)
    server = HealthServer(0, healthy=lambda: "", ready=lambda: "", page=lambda: b"m 1\n", access=access)
    server.start()
    try:
        assert read(server.port, "/healthz", authority) == (200, b"ok\n")
        assert read(server.port, "/readyz", authority) == (200, b"ok\n")
        assert read(server.port, "/metrics", authority)[0] == 401
        assert read(server.port, "/metrics", authority, TOKEN) == (200, b"m 1\n")
    finally:
        server.stop()


def test_the_operators_command_refuses_a_token_in_the_clear(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        rap_operator(["--metrics-token-file", "/token"])
    assert ended.value.code == 2
    assert "give a certificate and its key too" in capsys.readouterr().err


def test_a_rank_serves_its_metrics_guarded_and_the_operator_can_read_them(
    secret: Path, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAP_METRICS_SECRET", str(secret))
    port = free_port()
    server = MetricsServer(MetricStore(metrics.TRAINER), port=port, address=LOOPBACK, access=access_of("some-secret"))
    try:
        url = f"https://{LOOPBACK}:{port}/metrics"
        fetch = http_fetch(ca_file=authority.certificate, token_file=secret / "token")
        assert metrics.STEPS.name in fetch(url)
        with pytest.raises(ValueError, match="401"):
            http_fetch(ca_file=authority.certificate)(url)
        with pytest.raises(ValueError, match="--scrape-ca-file"):
            http_fetch()(url)
        stranger = CertificateAuthority(tmp_path / "stranger")
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            http_fetch(ca_file=stranger.certificate, token_file=secret / "token")(url)
    finally:
        server.close()


def test_a_secret_without_a_key_is_a_clear_error(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAP_METRICS_SECRET", str(secret))
    (secret / "tls.key").unlink()
    with pytest.raises(InvalidDocument, match=r"(?s)metricsSecretName.*no tls.key.*RAP_METRICS_SECRET"):
        access_of("some-secret")
    assert access_of(None) == Access()
