"""What a cluster may want different in the manifests; everything else is fixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from rankwatch import __version__
from rankwatch.settings import field_names
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import UserError

IMAGE_NAME = "rankwatch-agent"

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_IMAGE = re.compile(
    r"[^\s:@]+(:[0-9]+/[^\s:@]+)?(:(?!latest$)[\w.-]{1,128}|(:[\w.-]{1,128})?@sha256:[0-9a-f]{64})"
)
_LISTEN = re.compile(r"(?:0\.0\.0\.0|\[::\]):([1-9][0-9]{0,4})", re.ASCII)
_PLACED = (
    "listen",
    "address_file",
    "directory",
    "node",
    "cluster",
    "checkpoint_paths",
    "procfs",
    "sysfs",
    "rootfs",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    "bearer_token_file",
)
"""Settings that follow from mounts, probes and tiers: setting them apart would break these."""
_UNMOUNTED = (
    "nvml_library",
    "xid_table",
    "kernel_log",
    "dump_directory",
    "kubelet_socket",
    "slurm_job_map",
    "otlp_headers_file",
)
"""Settings that name a file the pod does not have: the agent would refuse it, or find nothing."""


def default_image() -> str:
    """The image of this version; a registry is the cluster's own to name."""
    return f"{IMAGE_NAME}:{__version__}"


@dataclass(frozen=True, kw_only=True)
class Values:
    """Raises UserError naming the value that cannot be used."""

    namespace: str = "rankwatch"
    """Namespace of the agent."""
    monitoring_namespace: str = "monitoring"
    """Namespace of Prometheus: the only one whose pods may reach the agent."""
    image: str = field(default_factory=default_image)
    """Reference with a tag or digest; never `latest`, which names another program every week."""
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets of the namespace with which the kubelet pulls the image."""
    cluster: str = ""
    """Value of the label cluster; empty leaves the label out."""
    listen: str = "0.0.0.0:9477"
    """Address in the pod, which the kubelet and Prometheus must reach: all of IPv4, or [::] for IPv6 too."""
    tiers: tuple[str, ...] = ()
    """Switches, by the names in `rankwatch_cli.deployment.tiers`."""
    tolerations: tuple[str, ...] = ("nvidia.com/gpu",)
    """Keys of taints to tolerate, whatever their value and effect."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes to run on; without any, every Linux node: the agent idles where no GPU is."""
    checkpoint_paths: tuple[str, ...] = ()
    """Directories of the node whose file systems are watched, mounted read-only."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings of the agent, by field name."""
    monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which the Prometheus operator picks PodMonitor and PrometheusRule."""

    def __post_init__(self) -> None:
        for name in ("namespace", "monitoring_namespace"):
            _expect(name, getattr(self, name), _DNS_LABEL.fullmatch(getattr(self, name)), "a DNS label")
        known = _IMAGE.fullmatch(self.image)
        _expect("image", self.image, known, "a reference with a digest or a tag other than latest")
        free = _LISTEN.fullmatch(self.listen) and self.port() <= 65535
        _expect("listen", self.listen, free, "0.0.0.0:PORT or [::]:PORT")
        _each("image_pull_secret", self.image_pull_secrets, _usable_name, "names of Secrets")
        _each("toleration", self.tolerations, lambda key: bool(_LABEL_KEY.fullmatch(key)), "keys of taints")
        for name in ("node_selector", "monitor_labels"):
            labels = getattr(self, name)
            _each(name, labels, lambda key: bool(_LABEL_KEY.fullmatch(key)), "names of labels")
            _each(name, labels.values(), lambda text: bool(_LABEL_VALUE.fullmatch(text)), "values of labels")
        _each("checkpoint_path", self.checkpoint_paths, _usable_path, "absolute paths without .. and commas")
        self._check_settings()

    def port(self) -> int:
        """The port to listen on."""
        return int(self.listen.rpartition(":")[2])

    def _check_settings(self) -> None:
        for holds, expected in (
            (field_names(AgentConfig).__contains__, "names of settings"),
            (lambda name: name not in _PLACED, "settings that the manifests leave free"),
            (lambda name: name not in _UNMOUNTED, "settings without a file (an overlay can mount it)"),
        ):
            _each("set", self.settings, holds, expected)


def _each(name: str, values: Iterable[str], holds: Callable[[str], bool], expected: str) -> None:
    for value in values:
        _expect(name, value, holds(value), expected)


def _expect(name: str, value: str, holds: object, expected: str) -> None:
    if not holds:
        raise UserError(f"could not use {name} = {value!r}: expected {expected}")


def _usable_name(text: str) -> bool:
    return all(_DNS_LABEL.fullmatch(part) for part in text.split("."))


def _usable_path(text: str) -> bool:
    path = PurePosixPath(text)
    return path.is_absolute() and path != PurePosixPath("/") and ".." not in path.parts and "," not in text
