"""Tiers that guard /metrics, with secrets that the cluster brings."""

from __future__ import annotations

from rankwatch_cli.deployment.container import PROBES
from rankwatch_cli.deployment.names import (
    AGENT,
    PORT_NAME,
    SCRAPE_TLS_SECRET,
    TLS_FOLDER,
    TLS_SECRET,
    TOKEN_FOLDER,
    TOKEN_SECRET,
    Fields,
    read_only,
    setting,
)
from rankwatch_cli.deployment.tier import Tier, pod_patch

_READABLE_BY_GROUP = 0o440


def _secret_volume(name: str, secret: str) -> Fields:
    return {"name": name, "secret": {"secretName": secret, "defaultMode": _READABLE_BY_GROUP}}


def _key(secret: str, key: str) -> Fields:
    return {"name": secret, "key": key}


TLS = Tier(
    name="tls",
    help=f"HTTPS, with the certificate of Secret {TLS_SECRET} (tls.crt, tls.key, ca.crt)",
    patch=pod_patch(
        {
            "env": [
                setting("tls_certificate", f"{TLS_FOLDER}/tls.crt"),
                setting("tls_key", f"{TLS_FOLDER}/tls.key"),
            ],
            # The kubelet does not check the certificate.
            **{probe: {"httpGet": {"scheme": "HTTPS"}} for probe in PROBES},
            "volumeMounts": [read_only("tls", TLS_FOLDER)],
        },
        volumes=[_secret_volume("tls", TLS_SECRET)],
    ),
    scrape={
        "scheme": "https",
        "tlsConfig": {"ca": {"secret": _key(TLS_SECRET, "ca.crt")}, "serverName": AGENT},
    },
)

MUTUAL_TLS = Tier(
    name="mutual-tls",
    help="tls, and only for clients with a certificate of its ca.crt",
    requires=("tls",),
    patch=pod_patch(
        {
            "env": [setting("tls_client_ca", f"{TLS_FOLDER}/ca.crt")],
            # The kubelet has no certificate to show. That the port accepts is all it can learn.
            **{probe: {"httpGet": None, "tcpSocket": {"port": PORT_NAME}} for probe in PROBES},
        }
    ),
    scrape={
        "tlsConfig/cert": {"secret": _key(SCRAPE_TLS_SECRET, "tls.crt")},
        "tlsConfig/keySecret": _key(SCRAPE_TLS_SECRET, "tls.key"),
    },
)

TOKEN = Tier(
    name="token",
    help=f"/metrics asks for the bearer token of Secret {TOKEN_SECRET} (token); together with tls",
    patch=pod_patch(
        {
            "env": [setting("bearer_token_file", f"{TOKEN_FOLDER}/token")],
            "volumeMounts": [read_only("token", TOKEN_FOLDER)],
        },
        volumes=[_secret_volume("token", TOKEN_SECRET)],
    ),
    scrape={"authorization": {"type": "Bearer", "credentials": _key(TOKEN_SECRET, "token")}},
)
