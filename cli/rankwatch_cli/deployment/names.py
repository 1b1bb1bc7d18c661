"""Names, paths and ids that several manifests share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Fields = Mapping[str, Any]
"""An object of Kubernetes, or a part of one."""

AGENT = "rankwatch-agent"
"""Name of the DaemonSet, its container and all that belongs to it."""
USER_ID = 65532
"""User and group of the container, as in the container file: no user of the node has it."""
PORT_NAME = "metrics"
BLACK_BOXES = "/dev/shm/rankwatch"
"""The same path on the node, in the agent and in the trainer, so that runbooks hold in all three."""
HOST_ROOT = "/host/root"
STATE = "/var/lib/rankwatch"
"""Parent of the setting evidence_directory's default; the agent makes that itself, for itself alone."""
TLS_SECRET = "rankwatch-agent-tls"
SCRAPE_TLS_SECRET = "rankwatch-scrape-tls"
TOKEN_SECRET = "rankwatch-agent-token"
TLS_FOLDER = "/etc/rankwatch/tls"
TOKEN_FOLDER = "/etc/rankwatch/token"

SELECTOR: Mapping[str, str] = MappingProxyType({"app.kubernetes.io/name": AGENT})
LABELS: Mapping[str, str] = MappingProxyType({**SELECTOR, "app.kubernetes.io/part-of": "rankwatch"})


def metadata(name: str, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Fields:
    """Metadata with the labels that all our objects carry, and those given."""
    place = {} if namespace is None else {"namespace": namespace}
    return {"name": name, **place, "labels": {**LABELS, **(labels or {})}}


def setting(name: str, value: str) -> Fields:
    """An environment variable of the container that sets a field of AgentConfig."""
    return {"name": f"RANKWATCH_AGENT_{name.upper()}", "value": value}


def host_volume(name: str, path: str, kind: str) -> Fields:
    """A file or directory of the node. `kind`: Directory, DirectoryOrCreate, CharDevice."""
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def read_only(volume: str, path: str) -> Fields:
    """A mount that nothing can be written to."""
    return {"name": volume, "mountPath": path, "readOnly": True}
