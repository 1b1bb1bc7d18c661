"""The DaemonSet: its defaults, and the values that people change."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from rankwatch_agent.runtime.config import load_config
from support.deploy.chart import (
    MUTUAL_TLS,
    NAMESPACE,
    ROOT,
    TLS,
    TOKEN,
    container,
    environment,
    one,
    pod,
    render,
)

pytestmark = pytest.mark.process

DIGEST = "sha256:" + "0" * 64
HOST_NETWORK = {"privileges": {"hostNetwork": True}}


def images(values: dict[str, Any]) -> set[str]:
    return {each["image"] for each in (*pod(values)["containers"], *pod(values)["initContainers"])}


def test_image() -> None:
    """The version of the project, unless a tag or a digest is named; both containers use the same."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert images({}) == {f"rankwatch-agent:{version}"}
    chosen = {"repository": "registry.example.com:5000/a", "tag": "v2", "digest": DIGEST}
    assert images({"image": chosen}) == {f"registry.example.com:5000/a:v2@{DIGEST}"}
    secrets = {"image": {"pullSecrets": [{"name": "regcred"}], "pullPolicy": "Always"}}
    assert pod(secrets)["imagePullSecrets"] == [{"name": "regcred"}]
    assert container(secrets)["imagePullPolicy"] == "Always"
    assert "imagePullSecrets" not in pod()


def test_update() -> None:
    """A tenth of the nodes at a time: a number would be nothing in one cluster and everything in another."""
    spec = one("DaemonSet")["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    assert pod()["terminationGracePeriodSeconds"] == 10
    assert pod()["priorityClassName"] == "system-node-critical"


def test_scheduling() -> None:
    """Every Linux node, tainted GPU nodes too; a selector, taints and affinity are values."""
    assert pod()["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert pod()["nodeSelector"] == {"kubernetes.io/os": "linux"}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    chosen = pod(
        {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": affinity,
            "priorityClassName": "",
        }
    )
    assert chosen["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu"}
    assert chosen["tolerations"] == [{"operator": "Exists"}]
    assert chosen["affinity"] == affinity
    assert "priorityClassName" not in chosen


def test_gpus() -> None:
    """It sees all by the variables of NVIDIA's runtime, with NVML alone, and reserves none."""
    assert environment()["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment()["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert container()["resources"] == {
        "requests": {"cpu": "50m", "memory": "128Mi"},
        "limits": {"memory": "2Gi"},
    }


def test_probes() -> None:
    """Readiness alone looks at data; none has the kubelet's default timeout of a second."""
    found = container()
    paths = [found[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert paths == ["/healthz", "/healthz", "/readyz"]
    assert {found[probe]["httpGet"]["port"] for probe in found if probe.endswith("Probe")} == {"probes"}
    assert {found[probe]["timeoutSeconds"] for probe in found if probe.endswith("Probe")} == {5}
    assert container({"livenessProbe": {"timeoutSeconds": 9}})["livenessProbe"]["timeoutSeconds"] == 9


@pytest.mark.parametrize(
    "values",
    [
        {},
        *({"privileges": {name: True}} for name in ("root", "pods", "processes", "kernelLog", "privileged")),
        HOST_NETWORK,
        TLS,
        MUTUAL_TLS,
        TOKEN,
    ],
    ids=str,
)
def test_the_agent_knows_its_variables(values: dict[str, Any]) -> None:
    """Its own reader of settings takes them, and finds the node, the port and the mounted files in them."""
    environ = environment({"cluster": "lab"}, values)
    config = load_config(flags={}, environ=environ).values
    assert (config.node, config.cluster) == ("node-1", "lab")
    known = {f"RANKWATCH_AGENT_{name.upper()}" for name in vars(config)}
    assert {name for name in environ if name.startswith("RANKWATCH_")} <= known
    mounts = {each["mountPath"] for each in container(values)["volumeMounts"]}
    assert {str(config.procfs), str(config.sysfs), str(config.directory)} <= mounts
    ports = {each["name"]: each["containerPort"] for each in container(values)["ports"]}
    assert config.address() == ("0.0.0.0", ports["metrics"])
    assert config.probe_address() is not None and config.probe_address()[1] == ports["probes"]


def test_the_network_of_the_pod_is_not_that_of_the_node() -> None:
    """What asks by ioctl sees only its own network namespace, so it runs in the node's alone."""
    without = load_config(flags={}, environ=environment()).values.enabled_collectors()
    within = load_config(flags={}, environ=environment(HOST_NETWORK)).values.enabled_collectors()
    assert set(within) - set(without) == {"ethtool"}
    assert pod(HOST_NETWORK)["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_probes_in_the_network_of_the_node() -> None:
    """The kubelet asks on loopback there: other machines reach the port of the metrics alone."""
    config = load_config(flags={}, environ=environment(HOST_NETWORK)).values
    assert config.probe_address() == ("127.0.0.1", 9478)
    assert container(HOST_NETWORK)["livenessProbe"]["httpGet"]["host"] == "127.0.0.1"
    assert "host" not in container()["livenessProbe"]["httpGet"]


def test_checkpoint_paths() -> None:
    """Each is mounted by itself, read-only, where the agent looks; the rest stays out of reach."""
    values = {"checkpointPaths": ["/data/checkpoints", "/mnt/scratch"]}
    config = load_config(flags={}, environ=environment(values)).values
    assert list(map(str, config.checkpoint_paths)) == values["checkpointPaths"]
    mounts = {each["mountPath"]: each for each in container(values)["volumeMounts"]}
    volumes = {each["name"]: each for each in pod(values)["volumes"]}
    for path in values["checkpointPaths"]:
        mount = mounts[f"{config.rootfs}{path}"]
        assert mount["readOnly"] is True
        assert volumes[mount["name"]]["hostPath"]["path"] == path


def test_listen() -> None:
    """Agent, container, Service and policy agree on address and port."""
    values = {"listen": {"address": "[::]", "port": 9999, "probePort": 9998}, "service": {"enabled": True}}
    config = load_config(flags={}, environ=environment(values)).values
    assert (config.address(), config.probe_address()) == (("::", 9999), ("::", 9998))
    assert [each["containerPort"] for each in container(values)["ports"]] == [9999, 9998]
    (rule,) = one("NetworkPolicy", values)["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 9999}]
    (port,) = one("Service", values)["spec"]["ports"]
    assert port["targetPort"] == container(values)["ports"][0]["name"]


def test_directories_of_the_node() -> None:
    """Another directory for black boxes, evidence that outlives the pod, a kubelet that lives elsewhere."""
    values = {
        "blackBoxes": {"directory": "/run/rankwatch"},
        "state": {"hostPath": "/var/lib/rankwatch"},
        "kubeletDirectory": "/var/lib/k0s/kubelet",
        "privileges": {"pods": True},
    }
    assert load_config(flags={}, environ=environment(values)).values.directory.as_posix() == "/run/rankwatch"
    paths = {each["name"]: each["hostPath"]["path"] for each in pod(values)["volumes"] if "hostPath" in each}
    assert paths["black-boxes"] == "/run/rankwatch"
    assert paths["state"] == "/var/lib/rankwatch"
    assert paths["pod-resources"] == "/var/lib/k0s/kubelet/pod-resources"
    config = load_config(flags={}, environ=environment(values)).values
    mounts = {each["name"]: each["mountPath"] for each in container(values)["volumeMounts"]}
    assert str(config.kubelet_socket.parent) == mounts["pod-resources"]


def test_a_setting_wins_over_what_the_chart_sets() -> None:
    """And is there once."""
    values = {"settings": {"disabled_collectors": ["slurm"], "log_format": "text"}}
    chosen = environment(HOST_NETWORK, values)
    assert chosen["RANKWATCH_AGENT_DISABLED_COLLECTORS"] == "slurm"
    assert environment(values)["RANKWATCH_AGENT_LOG_FORMAT"] == "text"
    names = [each["name"] for each in container(values)["env"]]
    assert len(names) == len(set(names))


def test_extras() -> None:
    """Labels, annotations, variables and volumes of one's own."""
    mount = {"name": "map", "mountPath": "/run/jobs", "readOnly": True}
    values = {
        "commonLabels": {"team": "ml"},
        "podLabels": {"tier": "node"},
        "podAnnotations": {"a": "b"},
        "daemonSetAnnotations": {"c": "d"},
        "extraEnv": [{"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "x=y"}],
        "extraVolumes": [{"name": "map", "hostPath": {"path": "/run/jobs"}}],
        "extraVolumeMounts": [mount],
        "settings": {"slurm_job_map": "/run/jobs"},
        "serviceAccount": {"annotations": {"e": "f"}},
    }
    found = one("DaemonSet", values)
    template = found["spec"]["template"]
    assert template["metadata"]["labels"].items() >= {"team": "ml", "tier": "node"}.items()
    assert template["metadata"]["annotations"] == {"a": "b"}
    assert found["metadata"]["annotations"] == {"c": "d"}
    assert environment(values)["OTEL_RESOURCE_ATTRIBUTES"] == "x=y"
    assert mount in container(values)["volumeMounts"]
    assert values["extraVolumes"][0] in template["spec"]["volumes"]
    assert one("ServiceAccount", values)["metadata"]["annotations"] == {"e": "f"}
    assert all(each["metadata"]["labels"]["team"] == "ml" for each in render(values))


def test_names_and_namespaces() -> None:
    """The release names the objects; the namespace is the release's unless another is named."""
    assert {each["metadata"]["name"] for each in render()} == {"rankwatch-agent"}
    assert {each["metadata"]["namespace"] for each in render()} == {NAMESPACE}
    values = {"fullnameOverride": "watch", "namespace": {"name": "obs", "create": True}}
    found = {each["kind"]: each["metadata"] for each in render(values)}
    created = found.pop("Namespace")
    assert created["name"] == "obs"
    assert created["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert {each["name"] for each in found.values()} == {"watch"}
    assert {each["namespace"] for each in found.values()} == {"obs"}
    assert "Namespace" not in {each["kind"] for each in render()}


def test_service_account() -> None:
    """Its token is never mounted; where none is created, the default of the namespace runs the pods."""
    assert pod()["serviceAccountName"] == one("ServiceAccount")["metadata"]["name"]
    assert one("ServiceAccount")["automountServiceAccountToken"] is False
    assert pod({"serviceAccount": {"create": False}})["serviceAccountName"] == "default"
    named = {"serviceAccount": {"create": False, "name": "watcher"}}
    assert pod(named)["serviceAccountName"] == "watcher"


def test_quota() -> None:
    """Room for one pod per node, for the priority class that asks for it and no other."""
    spec = one("ResourceQuota")["spec"]
    assert spec["hard"] == {"pods": "100000"}
    (scope,) = spec["scopeSelector"]["matchExpressions"]
    assert scope["values"] == [pod()["priorityClassName"]]
    for values in ({"priorityClassName": "high"}, {"resourceQuota": {"enabled": False}}):
        assert "ResourceQuota" not in {each["kind"] for each in render(values)}
