"""What the chart refuses: with the value's name, in a sentence, before anything is rendered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from rankwatch_agent.runtime.config import AgentConfig, load_config
from support.deploy.chart import CHART, environment, refusal, render

pytestmark = pytest.mark.process

SETTINGS = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]["properties"]
FOLLOWING = {
    *("listen", "probe_listen", "address_file", "directory", "node", "cluster", "checkpoint_paths"),
    *("procfs", "sysfs", "rootfs", "kernel_log", "kubelet_socket"),
    *("tls_certificate", "tls_key", "tls_client_ca", "bearer_token_file"),
}
"""Settings that follow from mounts, probes and other values; set apart they would break these."""
DIGEST = "sha256:" + "0" * 64


def nested(path: str, value: Any) -> dict[str, Any]:
    """The value under its dotted name."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        # A wrong type.
        ("listen.port", "9477", "at '/listen/port': got string, want integer"),
        ("privileges.root", "yes", "at '/privileges/root': got string, want boolean"),
        ("nodeSelector", {"gpu": True}, "at '/nodeSelector/gpu': got boolean, want string"),
        ("tolerations", {"key": "a"}, "at '/tolerations': got object, want array"),
        ("image.tag", 1.5, "at '/image/tag': got number, want string"),
        ("settings.max_runs", "many", "at '/settings/max_runs': got string, want integer"),
        ("settings.network_exclude", "lo", "at '/settings/network_exclude': got string, want array"),
        # An unknown name.
        ("privilege", {}, "at '': additional properties 'privilege' not allowed"),
        ("image.name", "a", "at '/image': additional properties 'name' not allowed"),
        ("settings.max_run", 1, "at '/settings': additional properties 'max_run' not allowed"),
        ("monitor.relabelings", [{"source_labels": []}], "'source_labels' not allowed"),
        # Out of range.
        ("listen.port", 0, "at '/listen/port': minimum: got 0, want 1"),
        ("listen.port", 65536, "at '/listen/port': maximum: got 65,536, want 65,535"),
        ("listen.address", "127.0.0.1", "value must be one of '0.0.0.0', '[::]'"),
        ("monitor.sampleLimit", -1, "at '/monitor/sampleLimit': minimum: got -1, want 0"),
        ("monitor.kind", "Probe", "value must be one of 'PodMonitor', 'ServiceMonitor'"),
        ("settings.stall_seconds", 0, "at '/settings/stall_seconds': exclusiveMinimum: got 0, want 0"),
        ("settings.log_level", "trace", "value must be one of 'debug', 'info', 'warning', 'error'"),
        # Of the wrong form.
        ("image.repository", "registry.example.com/a:1", "at '/image/repository': "),
        ("image.repository", "rankwatch agent", "at '/image/repository': "),
        ("image.digest", "sha256:0", "at '/image/digest': "),
        ("image.pullSecrets", [{"name": "Reg_Cred"}], "at '/image/pullSecrets/0/name': "),
        ("namespace.name", "Rank Watch", "at '/namespace/name': "),
        ("monitor.labels", {"release": "a b"}, "at '/monitor/labels/release': "),
        ("monitor.interval", "15", "at '/monitor/interval': "),
        ("checkpointPaths", ["data"], "at '/checkpointPaths/0': "),
        ("checkpointPaths", ["/"], "at '/checkpointPaths/0': "),
        ("checkpointPaths", ["/data/../etc"], "at '/checkpointPaths/0': "),
        ("checkpointPaths", ["/a,b"], "at '/checkpointPaths/0': "),
        ("blackBoxes.directory", "/", "at '/blackBoxes/directory': "),
        ("blackBoxes.tenants", ["../etc"], "at '/blackBoxes/tenants/0': "),
        ("state.sizeLimit", "much", "at '/state/sizeLimit': "),
        ("settings.otlp_endpoint", "collector:4318", "at '/settings/otlp_endpoint': "),
    ],
)
def test_schema_refuses(path: str, value: Any, sentence: str) -> None:
    """One line says where the value is and what is wrong with it."""
    lines = refusal(nested(path, value)).strip().splitlines()
    sentences = [line for line in lines if line.startswith("- at '")]
    assert len(sentences) == 1 and lines[-1] == sentences[0], lines
    assert sentence in sentences[0]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"image": {"tag": "latest"}}, 'could not use image.tag = "latest": expected a version'),
        ({"tls": {"mutual": True}}, "could not use tls.mutual: expected tls.existingSecret beside it"),
        (
            {"monitor": {"scrapeTimeout": "20s"}},
            'could not use monitor.scrapeTimeout = "20s": expected at most monitor.interval, which is 15s',
        ),
        (
            {"settings": {"otlp_endpoint": "http://collector:4318/v1/metrics"}},
            "could not use settings.otlp_endpoint: expected networkPolicy.egress.rules that admit it",
        ),
        (
            {"settings": {"mlflow_endpoint": "https://mlflow.example"}},
            "could not use settings.mlflow_endpoint: expected networkPolicy.egress.rules that admit it",
        ),
        (
            {"settings": {"nccl_ras_address": ["auto", "node7:28028"]}},
            "could not use settings.nccl_ras_address: expected networkPolicy.egress.rules that admit it",
        ),
        (
            {"settings": {"preemption_cloud": "aws"}},
            "could not use settings.preemption_cloud: expected networkPolicy.egress.rules that admit it",
        ),
        (
            {"settings": {"price_table": "/etc/rankwatch/prices.toml"}},
            'could not use settings.price_table = "/etc/rankwatch/prices.toml": expected a path below',
        ),
        (
            {"settings": {"xid_table": "/etc/rankwatch/xid.toml"}},
            'could not use settings.xid_table = "/etc/rankwatch/xid.toml": expected a path below a mountPath',
        ),
        (
            {"prometheusRule": {"enabled": True, "alerts": "- alert: A\n"}},
            "could not use prometheusRule.alerts: expected a file of rules with the key groups",
        ),
    ],
)
def test_chart_refuses(values: Mapping[str, Any], sentence: str) -> None:
    """Values that do not go together are refused by the chart itself."""
    told = refusal(values)
    assert sentence in told
    assert told.count("could not use") == 1


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"tag": "latest", "digest": DIGEST}},
        {"image": {"repository": "registry.example.com:5000/a/b", "tag": "v1"}},
        {"settings": {"dump_directory": "/dev/shm/rankwatch/dumps"}},
        {
            "settings": {"otlp_endpoint": "http://localhost:4318/v1/metrics"},
            "privileges": {"hostNetwork": True},
        },
        {
            "settings": {"otlp_endpoint": "http://a:1/v1/metrics"},
            "networkPolicy": {"egress": {"enabled": False}},
        },
        {"settings": {"nccl_ras_address": ["auto", "localhost:28028"]}},
        {"settings": {"nccl_ras_address": [], "otlp_endpoint": "http://127.0.0.1:4318/v1/metrics"}},
        {"global": {"imageRegistry": "a"}},
        {"monitor": {"interval": "1m", "scrapeTimeout": "30s"}},
    ],
)
def test_what_looks_alike_is_taken(values: Mapping[str, Any]) -> None:
    """Neighbours of refused values."""
    assert render(values)


def test_settings_of_the_schema_are_those_of_the_agent() -> None:
    """All but those that follow from other values, with the types that the agent declares."""
    hints = get_type_hints(AgentConfig)
    assert set(SETTINGS) == {each.name for each in fields(AgentConfig)} - FOLLOWING
    kinds = {
        "integer": {int},
        "boolean": {bool},
        "number": {float},
        "#/definitions/names": {tuple[str, ...]},
        "#/definitions/seconds": {Mapping[str, float]},
        "#/definitions/path": {Path | None},
    }
    for name, entry in SETTINGS.items():
        if "enum" in entry:
            assert get_args(hints[name]) == tuple(entry["enum"])
            continue
        kind = entry.get("$ref") or entry.get("type")
        assert hints[name] in kinds.get(kind, {str}), name


def test_every_setting_reaches_the_agent() -> None:
    """The agent reads each, lists and tables among them, as it was written; large numbers too."""
    values = {
        "settings": {
            "max_runs": 7,
            "stall_seconds": 45.5,
            "evidence_bytes": 1 << 40,
            "network_exclude": ["lo", "veth*"],
            "disabled_collectors": [],
            "intervals_seconds": {"gpu": 5, "rdma": 2.5},
            "log_level": "debug",
            "log_format": "text",
            "dcgm_endpoint": "http://localhost:9400/metrics",
            "xid_table": "/etc/rankwatch/xid.toml",
        },
        "networkPolicy": {"egress": {"rules": [{"ports": [{"port": 9400}]}]}},
        "extraVolumes": [{"name": "xid", "configMap": {"name": "xid"}}],
        "extraVolumeMounts": [{"name": "xid", "mountPath": "/etc/rankwatch"}],
    }
    config = load_config(flags={}, environ=environment(values)).values
    assert (config.max_runs, config.stall_seconds, config.evidence_bytes) == (7, 45.5, 1 << 40)
    assert config.network_exclude == ("lo", "veth*")
    assert config.disabled_collectors == ()
    assert config.intervals_seconds == {"gpu": 5.0, "rdma": 2.5}
    assert (config.log_level, config.log_format) == ("debug", "text")
    assert config.dcgm_endpoint == "http://localhost:9400/metrics"
    assert config.xid_table == Path("/etc/rankwatch/xid.toml")
