"""The DaemonSet without tiers, and with values of a cluster."""

from __future__ import annotations

import tomllib

import pytest

from rankwatch_agent.runtime.config import load_config
from rankwatch_cli.deployment.daemonset import daemonset
from rankwatch_cli.deployment.surroundings import network_policy
from rankwatch_cli.deployment.tiers import TIERS
from rankwatch_cli.deployment.values import Values
from support.deploy.manifests import ROOT, container, environment, pod


def test_the_image_is_that_of_the_project_version() -> None:
    """As pyproject.toml tells it; both containers use the same one."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {each["image"] for each in (*pod()["containers"], *pod()["initContainers"])}
    assert images == {f"rankwatch-agent:{version}"}


def test_an_update_reaches_a_tenth_of_the_nodes_at_a_time_and_a_pod_ends_within_ten_seconds() -> None:
    """A number of nodes would be either nothing or everything, by the size of the cluster."""
    spec = daemonset(Values())["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}
    assert pod()["terminationGracePeriodSeconds"] == 10
    assert pod()["priorityClassName"] == "system-node-critical"


def test_it_runs_on_every_linux_node_and_on_tainted_gpu_nodes() -> None:
    """Without a GPU it idles; further taints and a selector are values."""
    assert pod()["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert pod()["nodeSelector"] == {"kubernetes.io/os": "linux"}
    chosen = pod(tolerations=("a", "b/c"), node_selector={"pool": "gpu"})
    assert [each["key"] for each in chosen["tolerations"]] == ["a", "b/c"]
    assert chosen["nodeSelector"]["pool"] == "gpu"


def test_it_sees_all_gpus_and_reserves_none() -> None:
    """By the variables of NVIDIA's runtime, with NVML alone."""
    assert environment()["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment()["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert container()["resources"] == {
        "requests": {"cpu": "50m", "memory": "128Mi"},
        "limits": {"memory": "512Mi"},
    }


def test_probes_ask_the_process_and_are_patient() -> None:
    """Readiness alone looks at data; none has the kubelet's default timeout of a second."""
    found = container()
    paths = [found[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert paths == ["/healthz", "/healthz", "/readyz"]
    assert {found[probe]["timeoutSeconds"] for probe in found if probe.endswith("Probe")} == {5}


@pytest.mark.parametrize("tier", [None, *TIERS])
def test_the_agent_takes_the_variables_of_every_tier(tier: str | None) -> None:
    """Its own reader of settings does, and finds the node, the port and the host's files in them."""
    tiers = () if tier is None else (tier,)
    config = load_config(flags={}, environ=environment(*tiers, cluster="lab")).values
    assert (config.node, config.cluster) == ("node-1", "lab")
    assert str(config.procfs) == "/host/proc"
    mounts = {each["mountPath"] for each in container(*tiers)["volumeMounts"]}
    assert {str(config.procfs), str(config.sysfs), str(config.directory)} <= mounts
    (port,) = container(*tiers)["ports"]
    assert config.address() == ("0.0.0.0", port["containerPort"])


def test_the_pods_own_network_is_never_called_the_nodes() -> None:
    """What asks by ioctl sees only the namespace it is in; the others read the node's /proc and /sys."""
    namespaced = {"ethtool"}
    without = load_config(flags={}, environ=environment()).values.enabled_collectors()
    within = load_config(flags={}, environ=environment("host-network")).values.enabled_collectors()
    assert set(within) - set(without) == namespaced
    assert not pod().get("hostNetwork", False)
    assert pod("host-network")["hostNetwork"] is True


def test_checkpoint_paths_are_mounted_read_only_where_the_agent_looks_for_them() -> None:
    """Below rootfs, each by itself: the rest of the node's files stays out of reach."""
    paths = ("/data/checkpoints", "/mnt/scratch")
    config = load_config(flags={}, environ=environment(checkpoint_paths=paths)).values
    assert tuple(map(str, config.checkpoint_paths)) == paths
    mounts = {each["mountPath"]: each for each in container(checkpoint_paths=paths)["volumeMounts"]}
    volumes = {
        each["name"]: each["hostPath"]["path"]
        for each in pod(checkpoint_paths=paths)["volumes"]
        if "hostPath" in each
    }
    for path in paths:
        mount = mounts[f"{config.rootfs}{path}"]
        assert mount["readOnly"] is True
        assert volumes[mount["name"]] == path


def test_the_port_and_ipv6_are_values() -> None:
    """Agent, container and policy agree on them."""
    values = {"listen": "[::]:9999"}
    assert load_config(flags={}, environ=environment(**values)).values.address() == ("::", 9999)
    assert [each["containerPort"] for each in container(**values)["ports"]] == [9999]
    (rule,) = network_policy(Values(listen="[::]:9999"))["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 9999}]


def test_the_image_is_pulled_with_the_secrets_that_are_named() -> None:
    """Without any, the pod names none."""
    assert pod(image_pull_secrets=("regcred",))["imagePullSecrets"] == [{"name": "regcred"}]
    assert "imagePullSecrets" not in pod()


def test_a_setting_wins_over_a_tier() -> None:
    """Host-network switches every collector on, unless the user has switched one off."""
    chosen = environment("host-network", settings={"disabled_collectors": "slurm"})
    assert chosen["RANKWATCH_AGENT_DISABLED_COLLECTORS"] == "slurm"


def test_a_setting_replaces_what_the_manifest_says() -> None:
    """And is not there twice."""
    chosen = container(settings={"log_format": "text", "retention_seconds": "60"})["env"]
    names = [each["name"] for each in chosen]
    assert len(names) == len(set(names))
    assert {"name": "RANKWATCH_AGENT_LOG_FORMAT", "value": "text"} in chosen
    assert {"name": "RANKWATCH_AGENT_RETENTION_SECONDS", "value": "60"} in chosen
