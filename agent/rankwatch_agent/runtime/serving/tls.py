"""TLS of the server: certificates that change while it runs, and clients that must show theirs."""

from __future__ import annotations

import ssl
from pathlib import Path

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.reread import Reread

TlsContext = Reread[ssl.SSLContext]
"""The context for the next connection; a new one after its files have changed."""


def build_tls(*, certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsContext | None:
    """What the server speaks; None without a certificate. Raises UserError where a file cannot be used.

    With `client_ca` only clients with a certificate of these authorities may connect, to any page: the
    kubelet has none, so probes over HTTP are not possible then; use an exec probe or a TCP probe.
    """
    if certificate is None or key is None:
        return None
    files = [certificate, key, *([] if client_ca is None else [client_ca])]
    return Reread(files, lambda: load_context(certificate=certificate, key=key, client_ca=client_ca))


def load_context(*, certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """A server's context for TLS 1.2 and newer; raises UserError naming the files and the fault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise UserError(
            f"could not use tls_certificate {certificate} with tls_key {key}: {_reason(error)}"
        ) from None
    if client_ca is not None:
        try:
            context.load_verify_locations(cafile=client_ca)
        except OSError as error:
            raise UserError(f"could not use tls_client_ca {client_ca}: {_reason(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM file of this kind").replace("_", " ").lower()
    return error.strerror or str(error)
