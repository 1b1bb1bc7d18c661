"""Each tier gives exactly the privilege it names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rankwatch_cli.deployment.manifests import agent_manifests
from rankwatch_cli.deployment.tiers import TIERS
from rankwatch_cli.deployment.values import Values
from support.deploy.manifests import container, pod

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
GIVEN: Mapping[str, tuple[set[str], set[str]]] = {
    "nvidia-runtime": ({"runtime nvidia"}, set()),
    "host-network": ({"hostNetwork"}, set()),
    "root": (AS_ROOT, NOT_AS_ROOT),
    "pods": (AS_ROOT | {"read /var/lib/kubelet/pod-resources"}, NOT_AS_ROOT),
    "processes": ({"hostPID"}, set()),
    "kernel-log": (AS_ROOT | {"read /dev/kmsg", "capability SYSLOG"}, NOT_AS_ROOT),
    "privileged": (
        AS_ROOT | {"read /dev/kmsg", "capability SYSLOG", "privileged", "may escalate"},
        NOT_AS_ROOT,
    ),
    "tls": ({"read secret rankwatch-agent-tls"}, set()),
    "mutual-tls": ({"read secret rankwatch-agent-tls"}, set()),
    "token": ({"read secret rankwatch-agent-token"}, set()),
}
"""Tier -> what it adds to the base, what it replaces there."""


def privileges(spec: Mapping[str, Any], of: Mapping[str, Any]) -> Iterator[str]:
    """Everything in a pod that lets a container do more than one without any rights."""
    security = {**spec["securityContext"], **of["securityContext"]}
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
    for mount in of["volumeMounts"]:
        volume = volumes[mount["name"]]
        if "emptyDir" in volume:  # its own
            continue
        what = (
            volume["hostPath"]["path"] if "hostPath" in volume else f"secret {volume['secret']['secretName']}"
        )
        yield f"{'read' if mount.get('readOnly') else 'write'} {what}"


def test_without_a_tier_the_agent_may_read_proc_and_sys_and_look_after_black_boxes() -> None:
    """No root, no capability, no token, no namespace of the node, a read-only root file system."""
    assert set(privileges(pod(), container())) == BASE


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_gives_what_it_says_and_nothing_more(tier: str) -> None:
    """Compared as a whole with the base."""
    added, replaced = GIVEN[tier]
    assert set(privileges(pod(tier), container(tier))) == BASE - replaced | added


def test_root_opens_the_directory_whoever_made_it_and_sees_nothing_else() -> None:
    """The init container is the same whatever the tiers."""
    for tiers in ((), tuple(TIERS)):
        spec = pod(*tiers)
        (opener,) = spec["initContainers"]
        own = {**spec, "hostNetwork": None, "hostPID": None}
        own.pop("runtimeClassName", None)
        given = {"user 0", "group 0", "capability FOWNER", "write /dev/shm/rankwatch"}
        assert set(privileges(own, opener)) == given
        assert opener["command"] == ["chmod", "1777", "/dev/shm/rankwatch"]


def test_every_choice_of_tiers_makes_a_pod_that_a_cluster_takes() -> None:
    """What schemas cannot say: one way to probe, volumes and mounts that belong together."""
    names = tuple(TIERS)
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(names, n) for n in range(len(names) + 1)
    ):
        spec, agent = pod(*chosen), container(*chosen)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert len({"httpGet", "tcpSocket", "exec", "grpc"} & set(agent[probe])) == 1, chosen
        volumes = [each["name"] for each in spec["volumes"]]
        mounted = {
            mount["name"] for each in (agent, *spec["initContainers"]) for mount in each["volumeMounts"]
        }
        assert sorted(volumes) == sorted(mounted), chosen
        security = agent["securityContext"]
        assert not (security.get("privileged") and security.get("allowPrivilegeEscalation") is False), chosen
        assert spec["securityContext"]["runAsNonRoot"] is (spec["securityContext"]["runAsUser"] != 0), chosen


def test_no_role_is_given_to_the_account() -> None:
    """Nothing of what is installed speaks to the API server."""
    kinds = {each.object["kind"] for each in agent_manifests(Values(tiers=tuple(TIERS)))}
    assert kinds == {"Namespace", "ServiceAccount", "ResourceQuota", "NetworkPolicy", "DaemonSet"}
