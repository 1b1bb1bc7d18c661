"""The default may do next to nothing, and each switch adds exactly what it must."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from support.deploy.chart import MUTUAL_TLS, TLS, TOKEN, container, merged, pod, render

pytestmark = pytest.mark.process

BASE = {
    "user 65532",
    "group 65532",
    "must not be root",
    "read /proc",
    "read /sys",
    "write /dev/shm/rankwatch",
}
AS_ROOT = {"user 0", "group 0"}
NOT_AS_ROOT = {"user 65532", "group 65532", "must not be root"}
KERNEL_LOG = AS_ROOT | {"read /dev/kmsg", "capability SYSLOG"}
BLACK_BOXES = AS_ROOT | {f"capability {each}" for each in ("DAC_OVERRIDE", "FOWNER", "CHOWN")}
USER_FILES = AS_ROOT | {f"capability {each}" for each in ("SETUID", "SETGID", "KILL")}


def privilege(name: str) -> dict[str, Any]:
    return {"privileges": {name: True}}


SWITCHES: Mapping[str, tuple[Mapping[str, Any], set[str], set[str]]] = {
    "runtime class": ({"runtimeClassName": "nvidia"}, {"runtime nvidia"}, set()),
    "host network": (privilege("hostNetwork"), {"hostNetwork"}, set()),
    "root": (privilege("root"), AS_ROOT, NOT_AS_ROOT),
    "black boxes": (privilege("blackBoxes"), BLACK_BOXES, NOT_AS_ROOT),
    "user files": (privilege("userFiles"), USER_FILES, NOT_AS_ROOT),
    "stacks": (privilege("stacks"), AS_ROOT | {"hostPID", "capability SYS_PTRACE"}, NOT_AS_ROOT),
    "pods": (privilege("pods"), AS_ROOT | {"read /var/lib/kubelet/pod-resources"}, NOT_AS_ROOT),
    "processes": (privilege("processes"), {"hostPID"}, set()),
    "kernel log": (privilege("kernelLog"), KERNEL_LOG, NOT_AS_ROOT),
    "privileged": (privilege("privileged"), KERNEL_LOG | {"privileged", "may escalate"}, NOT_AS_ROOT),
    "tls": (TLS, {"read secret rankwatch-agent-tls"}, set()),
    "mutual tls": (MUTUAL_TLS, {"read secret rankwatch-agent-tls"}, set()),
    "token": (TOKEN, {"read secret rankwatch-agent-token"}, set()),
    "checkpoints": ({"checkpointPaths": ["/data"]}, {"read /data"}, set()),
    "state": ({"state": {"hostPath": "/var/lib/rankwatch"}}, {"write /var/lib/rankwatch"}, set()),
    "user": ({"podSecurityContext": {"runAsUser": 1000}}, {"user 1000"}, {"user 65532"}),
}
"""Switch -> its values, what it adds to the base, what it replaces there."""
EVERYTHING = merged(*(values for name, (values, _, _) in SWITCHES.items() if name != "user"))


def granted(spec: Mapping[str, Any], to: Mapping[str, Any]) -> Iterator[str]:
    """Everything in a pod that lets a container do more than one without any rights."""
    security = {**spec["securityContext"], **to["securityContext"]}
    yield f"user {security['runAsUser']}"
    yield f"group {security['runAsGroup']}"
    flags = {
        "must not be root": security.get("runAsNonRoot"),
        "privileged": security.get("privileged"),
        "may escalate": security.get("allowPrivilegeEscalation", True),
        "writable root file system": not security.get("readOnlyRootFilesystem"),
        "default capabilities": security["capabilities"].get("drop") != ["ALL"],
        "no seccomp": security.get("seccompProfile") != {"type": "RuntimeDefault"},
        "token": spec.get("automountServiceAccountToken", True),
        "shared processes": spec.get("shareProcessNamespace"),
        **{name: spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")},
    }
    yield from (name for name, given in flags.items() if given)
    yield from (f"capability {each}" for each in security["capabilities"].get("add", ()))
    if "runtimeClassName" in spec:
        yield f"runtime {spec['runtimeClassName']}"
    volumes = {each["name"]: each for each in spec["volumes"]}
    for mount in to["volumeMounts"]:
        volume = volumes[mount["name"]]
        if "emptyDir" in volume:  # its own
            continue
        what = (
            volume["hostPath"]["path"] if "hostPath" in volume else f"secret {volume['secret']['secretName']}"
        )
        yield f"{'read' if mount.get('readOnly') else 'write'} {what}"


def test_default() -> None:
    """No root, no capability, no token, no namespace of the node, a read-only root file system."""
    assert set(granted(pod(), container())) == BASE


@pytest.mark.parametrize("switch", SWITCHES)
def test_switch(switch: str) -> None:
    """It grants what it says and nothing more."""
    values, added, replaced = SWITCHES[switch]
    assert set(granted(pod(values), container(values))) == BASE - replaced | added


def test_everything_at_once() -> None:
    """Switches add up."""
    added = set().union(*(added for name, (_, added, _) in SWITCHES.items() if name != "user"))
    assert set(granted(pod(EVERYTHING), container(EVERYTHING))) == BASE - NOT_AS_ROOT | added


@pytest.mark.parametrize("left_out", SWITCHES)
def test_pods_a_cluster_takes(left_out: str) -> None:
    """What schemas cannot say: one way to probe, volumes and mounts that belong together."""
    for values in (
        SWITCHES[left_out][0],
        merged(*(each for name, (each, _, _) in SWITCHES.items() if name not in (left_out, "user"))),
    ):
        spec, agent = pod(values), container(values)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert len({"httpGet", "tcpSocket", "exec", "grpc"} & set(agent[probe])) == 1
        mounted = {
            mount["name"] for each in (agent, *spec["initContainers"]) for mount in each["volumeMounts"]
        }
        assert sorted(each["name"] for each in spec["volumes"]) == sorted(mounted)
        names = [each["name"] for each in agent["env"]]
        assert len(names) == len(set(names))
        security = agent["securityContext"]
        assert not (security.get("privileged") and security.get("allowPrivilegeEscalation") is False)
        assert spec["securityContext"]["runAsNonRoot"] is (spec["securityContext"]["runAsUser"] != 0)


def test_init_container() -> None:
    """Root, to open the directory of the black boxes whoever made it; it sees nothing else."""
    needed = {*AS_ROOT, "capability CHOWN", "capability FOWNER", "write /dev/shm/rankwatch"}
    for values, more in (({}, set()), (EVERYTHING, {"write /var/lib/rankwatch"})):
        spec = pod(values)
        (opener,) = spec["initContainers"]
        own = {**spec, "hostNetwork": None, "hostPID": None}
        own.pop("runtimeClassName", None)
        assert set(granted(own, opener)) == needed | more


def test_state_on_the_node_belongs_to_the_agent() -> None:
    """The kubelet makes the directory for root, so the init container hands it over."""
    values = {**SWITCHES["state"][0], "podSecurityContext": {"runAsUser": 1000}}
    (opener,) = pod(values)["initContainers"]
    assert "chown 1000:65532 /var/lib/rankwatch\nchmod 0700 /var/lib/rankwatch\n" in opener["command"][2]


def test_a_security_context_wins() -> None:
    """For SELinux and for clusters with rules of their own."""
    values = {
        "podSecurityContext": {"seLinuxOptions": {"type": "spc_t"}},
        "securityContext": {"readOnlyRootFilesystem": False},
    }
    assert pod(values)["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert pod(values)["securityContext"]["runAsUser"] == 65532
    assert container(values)["securityContext"]["readOnlyRootFilesystem"] is False


def test_no_role() -> None:
    """Nothing that is installed speaks to the API server."""
    kinds = {each["kind"] for each in render(EVERYTHING)}
    assert kinds == {"ServiceAccount", "ResourceQuota", "NetworkPolicy", "DaemonSet"}
