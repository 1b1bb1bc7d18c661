"""Who may reach the agent and whom it may reach, and how the kubelet and Prometheus then ask it."""

from __future__ import annotations

from typing import Any

import pytest

from rankwatch_agent.runtime.config import load_config
from support.deploy.chart import MUTUAL_TLS, TLS, TOKEN, container, endpoint, environment, one, pod, render

pytestmark = pytest.mark.process

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def policy(**values: Any) -> dict[str, Any]:
    spec: dict[str, Any] = one("NetworkPolicy", {"networkPolicy": values})["spec"]
    return spec


def test_ingress() -> None:
    """Only the namespace of Prometheus reaches the port, and no other port is open."""
    (rule,) = policy(prometheusNamespace="observability")["ingress"]
    namespace = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}
    assert rule["from"] == [namespace]
    assert rule["ports"] == [{"protocol": "TCP", "port": container()["ports"][0]["containerPort"]}]
    peer = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    (wider,) = policy(prometheusNamespace="observability", **{"from": [peer]})["ingress"]
    assert wider["from"] == [namespace, peer]
    assert "ingress" not in policy(prometheusNamespace="")


def test_egress() -> None:
    """The agent reaches nobody, unless rules say whom, or egress is left open."""
    assert policy()["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy()
    rules = [{"to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}], "ports": [{"protocol": "TCP", "port": 4318}]}]
    assert policy(egress={"rules": rules})["egress"] == rules
    assert policy(egress={"enabled": False})["policyTypes"] == ["Ingress"]


def test_the_policy_is_of_the_agents() -> None:
    """It selects the pods of the DaemonSet; it can be left out."""
    labels = one("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert policy()["podSelector"]["matchLabels"].items() <= labels.items()
    kinds = {each["kind"] for each in render({"networkPolicy": {"enabled": False}})}
    assert "NetworkPolicy" not in kinds


def test_tls() -> None:
    """The agent serves the mounted certificate, and scrapes use HTTPS; the probes have a plain listener."""
    config = load_config(flags={}, environ=environment(TLS)).values
    assert config.tls_certificate is not None and config.tls_client_ca is None
    (mount,) = [each for each in container(TLS)["volumeMounts"] if each["name"] == "tls"]
    assert str(config.tls_certificate.parent) == mount["mountPath"]
    assert {container(TLS)[probe]["httpGet"]["port"] for probe in PROBES} == {"probes"}
    assert endpoint(TLS)["scheme"] == "https"
    assert set(endpoint(TLS)["tlsConfig"]) == {"ca", "serverName"}
    assert not {"scheme", "tlsConfig", "authorization"} & set(endpoint())


def test_mutual_tls() -> None:
    """Prometheus shows a certificate; the probes have a plain listener of their own."""
    config = load_config(flags={}, environ=environment(MUTUAL_TLS)).values
    assert config.tls_client_ca is not None and config.tls_certificate is not None
    for probe in PROBES:
        assert container(MUTUAL_TLS)[probe] == container()[probe]
    shown = endpoint(MUTUAL_TLS, {"tls": {"clientSecret": "prom"}})["tlsConfig"]
    assert shown["cert"] == {"secret": {"name": "prom", "key": "tls.crt"}}
    assert shown["keySecret"] == {"name": "prom", "key": "tls.key"}


@pytest.mark.parametrize("key", ["token", "bearer.txt"])
def test_token(key: str) -> None:
    """Prometheus sends it, and the kubelet does not: probes read no metrics."""
    values = {"token": {**TOKEN["token"], "key": key}}
    config = load_config(flags={}, environ=environment(values)).values
    (mount,) = [each for each in container(values)["volumeMounts"] if each["name"] == "token"]
    assert str(config.bearer_token_file) == f"{mount['mountPath']}/{key}"
    assert endpoint(values)["authorization"] == {
        "type": "Bearer",
        "credentials": {"name": "rankwatch-agent-token", "key": key},
    }
    assert container(values)["livenessProbe"] == container()["livenessProbe"]


def test_secrets_are_readable_by_the_group_of_the_agent() -> None:
    """And by nobody else: mode 0440, and fsGroup makes the group the agent's."""
    spec = pod(MUTUAL_TLS, TOKEN)
    secrets = [each["secret"] for each in spec["volumes"] if "secret" in each]
    assert [each["defaultMode"] for each in secrets] == [0o440, 0o440]
    assert spec["securityContext"]["fsGroup"] == 65532
