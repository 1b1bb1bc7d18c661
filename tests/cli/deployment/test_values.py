"""What the manifests refuse to be made of."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from rankwatch.errors import SettingError
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.deployment.manifests import agent_manifests
from rankwatch_cli.deployment.values import Values

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "values",
    [
        {"namespace": "Rank Watch"},
        {"monitoring_namespace": ""},
        {"image": "rankwatch-agent"},
        {"image": "rankwatch-agent:latest"},
        {"image": "registry.example.com:5000/rankwatch-agent"},
        {"image": "rankwatch agent:1"},
        {"tolerations": ("",)},
        {"node_selector": {"a b": "c"}},
        {"node_selector": {"a": "b c"}},
        {"monitor_labels": {"/x": "y"}},
        {"checkpoint_paths": ("data",)},
        {"checkpoint_paths": ("/data/../etc",)},
        {"checkpoint_paths": ("/",)},
        {"checkpoint_paths": ("/a,b",)},
        {"settings": {"max_run": "1"}},
        {"settings": {"listen": "0.0.0.0:1"}},
        {"settings": {"kubelet_socket": "/run/kubelet.sock"}},
        {"settings": {"xid_table": "/etc/rankwatch/xid.toml"}},
        {"listen": "127.0.0.1:9477"},
        {"listen": "0.0.0.0:0"},
        {"listen": "[::]:65536"},
        {"image_pull_secrets": ("Reg_Cred",)},
    ],
)
def test_a_value_that_no_cluster_takes_is_refused_by_name(values: dict[str, Any]) -> None:
    """In one sentence, before anything is printed."""
    with pytest.raises(UserError, match=r"could not use .*: expected "):
        Values(**values)


def test_a_setting_that_the_agent_would_refuse_is_refused_here() -> None:
    """By the agent's own reader, with the variable's name."""
    with pytest.raises(SettingError, match="max_runs = 'many' from environment RANKWATCH_AGENT_MAX_RUNS"):
        agent_manifests(Values(settings={"max_runs": "many"}))


def test_every_setting_that_names_a_file_of_the_node_is_refused() -> None:
    """It would not be there in the pod; those that have a mount follow from other values."""
    paths = [each.name for each in fields(AgentConfig) if "Path" in str(each.type)]
    assert "nvml_library" in paths and "checkpoint_paths" in paths
    for name in paths:
        with pytest.raises(UserError, match=f"could not use set = '{name}': expected settings"):
            Values(settings={name: "/x"})


def test_an_unknown_tier_is_refused_with_those_there_are() -> None:
    """The sentence lists them."""
    with pytest.raises(UserError, match=r"tier 'rooot': expected one of .*root, pods"):
        agent_manifests(Values(tiers=("rooot",)))


@pytest.mark.parametrize(
    "image",
    ["rankwatch-agent:0.1.0", "registry.example.com:5000/a/b:1", f"a/b@{DIGEST}", f"a/b:latest@{DIGEST}"],
)
def test_an_image_with_a_tag_or_a_digest_is_taken(image: str) -> None:
    """Beside a digest the tag is only a comment."""
    assert Values(image=image).image == image
