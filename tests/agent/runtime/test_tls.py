"""TLS of the server: certificates that change, and certificates of clients."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.server import Page, Route, TlsContext, build_tls, load_context
from support.agent.process import DEADLINE_SECONDS, ManualClock, until
from support.servers.routes import TIMEOUT_SECONDS, outlive, serving

BODY = b"x" * 1_000_000


class Files:
    """Certificate and key on 127.0.0.1 in a directory that is a symbolic link, as in a Kubernetes secret."""

    def __init__(self, directory: Path, authority: trustme.CA) -> None:
        self._directory = directory
        self._generation = 0
        self.certificate = directory / "current" / "tls.crt"
        self.key = directory / "current" / "tls.key"
        self.client_ca = directory / "ca.crt"
        self.issue(authority)

    def issue(self, authority: trustme.CA) -> None:
        """Put a new pair in place by swapping the link."""
        issued = authority.issue_cert("127.0.0.1")
        self.swap(issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes())

    def swap(self, certificate: bytes, key: bytes) -> None:
        self._generation += 1
        target = self._directory / f"generation-{self._generation}"
        target.mkdir()
        (target / "tls.crt").write_bytes(certificate)
        (target / "tls.key").write_bytes(key)
        link = self._directory / "new"
        link.symlink_to(target)
        link.replace(self._directory / "current")

    def tls(self, client_ca: Path | None = None) -> TlsContext:
        found = build_tls(certificate=self.certificate, key=self.key, client_ca=client_ca)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Files:
    return Files(tmp_path, authority)


@contextlib.contextmanager
def serving_page(
    tls: TlsContext, *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[tuple[str, int]]:
    """A server of one page that speaks TLS; its address."""
    routes = {"/": Route(lambda headers: Page(HTTPStatus.OK, BODY, {}))}
    with serving(routes, tls=tls, monotonic=monotonic) as (server, _):
        yield server.listening_address()


def client(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """A client that trusts the authority, with a certificate of its own where given."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context


def get(address: tuple[str, int], context: ssl.SSLContext) -> bytes:
    """The page."""
    connection = http.client.HTTPSConnection(*address, context=context, timeout=DEADLINE_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().read()


def shown_certificate(address: tuple[str, int], authority: trustme.CA) -> bytes:
    """What the server shows, in DER."""
    with (
        socket.create_connection(address, timeout=DEADLINE_SECONDS) as plain,
        client(authority).wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def test_page_over_tls(files: Files, authority: trustme.CA) -> None:
    """The client checks the certificate. Nothing older than TLS 1.2 is spoken."""
    with serving_page(files.tls()) as address:
        assert get(address, client(authority)) == BODY
    assert files.tls().current().minimum_version is ssl.TLSVersion.TLSv1_2


def test_clients_without_tls(files: Files, authority: trustme.CA) -> None:
    """Plain HTTP, random bytes, or gone in the middle: they are closed and harm nobody."""
    with serving_page(files.tls()) as address:
        for words in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x00\xff" + b"\x00" * 300, b"\x16"):
            with (
                socket.create_connection(address, timeout=DEADLINE_SECONDS) as plain,
                contextlib.suppress(ConnectionError),  # closed with words of ours unread, it is reset
            ):
                plain.sendall(words)
                with contextlib.suppress(OSError):  # it may be closed already
                    plain.shutdown(socket.SHUT_WR)
                while answer := plain.recv(4096):
                    assert b"HTTP" not in answer
        assert get(address, client(authority)) == BODY


def test_silent_client(files: Files, authority: trustme.CA) -> None:
    """The handshake is not part of accepting connections, so nobody waits, and it has a limit."""
    clock = ManualClock()
    with (
        serving_page(files.tls(), monotonic=clock) as address,
        socket.create_connection(address, timeout=DEADLINE_SECONDS) as silent,
    ):
        assert get(address, client(authority)) == BODY
        outlive(silent, clock)
        assert silent.recv(1) == b""


def test_slow_client_after_the_handshake(
    files: Files, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """It is cut, and the log shows no error."""
    clock = ManualClock()
    with (
        serving_page(files.tls(), monotonic=clock) as address,
        socket.create_connection(address, timeout=DEADLINE_SECONDS) as plain,
        client(authority).wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(b"GET / HTT")
        with contextlib.suppress(ssl.SSLError, ConnectionResetError):  # it was cut without a goodbye of TLS
            clock.now += 2 * TIMEOUT_SECONDS
            assert secured.recv(1) == b""
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_client_certificates(files: Files, authority: trustme.CA) -> None:
    """Clients without a certificate, or with one of another authority, are refused."""
    clients, strangers = trustme.CA(), trustme.CA()
    clients.cert_pem.write_to_path(str(files.client_ca))
    with serving_page(files.tls(files.client_ca)) as address:
        assert get(address, client(authority, clients.issue_cert("prometheus@example.org"))) == BODY
        for wrong in (None, strangers.issue_cert("prometheus@example.org")):
            with pytest.raises(OSError):
                get(address, client(authority, wrong))


def test_certificate_changes(files: Files, authority: trustme.CA) -> None:
    """Kubernetes swaps a symbolic link. The next connection gets the new certificate."""
    with serving_page(files.tls()) as address:
        before = shown_certificate(address, authority)
        assert before == ssl.PEM_cert_to_DER_cert(files.certificate.read_text())
        files.issue(authority)
        after = shown_certificate(address, authority)
    assert before != after == ssl.PEM_cert_to_DER_cert(files.certificate.read_text())


def test_client_authority_changes(files: Files, authority: trustme.CA) -> None:
    """Clients of the old authority are refused, even with a session from before."""
    old, new = trustme.CA(), trustme.CA()
    old.cert_pem.write_to_path(str(files.client_ca))
    with serving_page(files.tls(files.client_ca)) as address:
        former = client(authority, old.issue_cert("prometheus@example.org"))
        assert get(address, former) == BODY
        files.client_ca.unlink()
        new.cert_pem.write_to_path(str(files.client_ca))
        with pytest.raises(OSError):
            get(address, former)
        assert get(address, client(authority, new.issue_cert("prometheus@example.org"))) == BODY


def test_unusable_new_certificate(
    files: Files, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """The previous one stays in use. The log reports it once, and a usable one is taken later."""
    with serving_page(files.tls()) as address:
        before = shown_certificate(address, authority)
        files.swap(b"no certificate", b"no key")
        assert [shown_certificate(address, authority) for _ in range(3)] == [before] * 3
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        (warning,) = warnings
        assert warning.startswith(f"could not use tls_certificate {files.certificate} with tls_key")
        assert warning.endswith("; the previous version stays in use")
        files.issue(authority)
        until(lambda: shown_certificate(address, authority) != before, "the next pair is in use")


def test_wrong_files(files: Files, authority: trustme.CA, tmp_path: Path) -> None:
    """Missing, of another pair, not PEM. An encrypted key never asks the terminal for its password."""
    other = authority.issue_cert("127.0.0.1").private_key_pem.bytes()
    pem = load_pem_private_key(other, None)
    encrypted = pem.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    pair = f"could not use tls_certificate {files.certificate} with tls_key"
    for name, content in {"other": other, "empty": b"", "encrypted": encrypted}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"{pair} {path}: [a-z ]+$"):
            load_context(certificate=files.certificate, key=path, client_ca=None)
        if name != "other":
            with pytest.raises(UserError, match=f"could not use tls_client_ca {path}: [a-z ]+$"):
                load_context(certificate=files.certificate, key=files.key, client_ca=path)
    with pytest.raises(UserError, match=r"No such file or directory$"):
        load_context(certificate=tmp_path / "missing", key=files.key, client_ca=None)
