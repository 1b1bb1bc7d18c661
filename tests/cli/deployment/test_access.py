"""Who may ask the agent, and how the kubelet and Prometheus then do."""

from __future__ import annotations

from typing import Any

from rankwatch_agent.runtime.config import load_config
from rankwatch_cli.deployment.monitoring import pod_monitor
from rankwatch_cli.deployment.surroundings import network_policy
from rankwatch_cli.deployment.values import Values
from support.deploy.manifests import container, environment, monitoring, pod

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def endpoint(*tiers: str) -> dict[str, Any]:
    """How Prometheus is told to ask."""
    (found,) = pod_monitor(Values(tiers=tiers), monitoring())["spec"]["podMetricsEndpoints"]
    return dict(found)


def test_only_the_namespace_of_prometheus_reaches_the_port() -> None:
    """And no other port is open to it."""
    spec = network_policy(Values(monitoring_namespace="observability"))["spec"]
    (rule,) = spec["ingress"]
    assert rule["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}
    ]
    assert rule["ports"] == [{"protocol": "TCP", "port": container()["ports"][0]["containerPort"]}]
    assert spec["policyTypes"] == ["Ingress"]


def test_with_tls_probes_and_scrapes_use_https() -> None:
    """With the certificate that the agent is told to serve."""
    config = load_config(flags={}, environ=environment("tls")).values
    assert config.tls_certificate is not None
    (mount,) = [each for each in container("tls")["volumeMounts"] if each["name"] == "tls"]
    assert str(config.tls_certificate.parent) == mount["mountPath"]
    assert {container("tls")[probe]["httpGet"]["scheme"] for probe in PROBES} == {"HTTPS"}
    assert endpoint("tls")["scheme"] == "https"
    assert "scheme" not in endpoint()


def test_with_mutual_tls_the_kubelet_only_connects_and_prometheus_shows_a_certificate() -> None:
    """The kubelet has none to show. The tier brings tls with it."""
    config = load_config(flags={}, environ=environment("mutual-tls")).values
    assert config.tls_client_ca is not None and config.tls_certificate is not None
    for probe in PROBES:
        assert container("mutual-tls")[probe]["tcpSocket"] == {"port": "metrics"}
        assert "httpGet" not in container("mutual-tls")[probe]
    assert {"ca", "cert", "keySecret", "serverName"} == set(endpoint("mutual-tls")["tlsConfig"])


def test_the_token_is_asked_of_prometheus_and_not_of_the_kubelet() -> None:
    """Probes read no metrics."""
    config = load_config(flags={}, environ=environment("token")).values
    (mount,) = [each for each in container("token")["volumeMounts"] if each["name"] == "token"]
    assert str(config.bearer_token_file) == f"{mount['mountPath']}/token"
    assert endpoint("token")["authorization"]["credentials"] == {
        "name": "rankwatch-agent-token",
        "key": "token",
    }
    assert container("token")["livenessProbe"] == container()["livenessProbe"]


def test_secrets_are_readable_by_the_agents_group_alone() -> None:
    """Mode 0440, and fsGroup makes the group the agent's."""
    spec = pod("mutual-tls", "token")
    secrets = [each["secret"] for each in spec["volumes"] if "secret" in each]
    assert [each["defaultMode"] for each in secrets] == [0o440, 0o440]
    assert spec["securityContext"]["fsGroup"] == 65532
