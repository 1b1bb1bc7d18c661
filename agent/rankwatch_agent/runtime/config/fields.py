"""Every setting of the agent, with its default; the docstrings are also the --help texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from rankwatch.conventions import environment
from rankwatch_agent.runtime.config.error import ConfigError
from rankwatch_agent.runtime.supervision.schedule import DEFAULT_SCHEDULES, Schedule

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
DCGM_FIELDS = (
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_PROF_SM_OCCUPANCY",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
    "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "DCGM_FI_PROF_NVLINK_RX_BYTES",
)
"""What NVML alone cannot tell of GPUs older than Hopper."""


def _node_name() -> str:
    return os.uname().nodename


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The agent's settings; raises ConfigError naming the field that cannot be used."""

    listen: str = "0.0.0.0:9477"
    """HOST:PORT to serve on; port 0 takes a free one; an IPv6 host stands in brackets."""
    address_file: Path | None = None
    """File that receives HOST:PORT once the agent listens, written atomically."""
    max_requests: int = 16
    """Requests answered at the same time; one more gets status 503."""
    request_timeout_seconds: float = 10.0
    """Longest life of a connection in seconds."""
    directory: Path = environment.DEFAULT_DIRECTORY
    """Directory of the black boxes."""
    node: str = field(default_factory=_node_name)
    """Value of the label node; the host name unless given."""
    cluster: str = ""
    """Value of the label cluster; empty leaves the label out."""
    collectors: tuple[str, ...] = tuple(DEFAULT_SCHEDULES)
    """Collectors to run."""
    disabled_collectors: tuple[str, ...] = ()
    """Collectors not to run, taken away from collectors."""
    intervals_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds between the starts of two runs, by collector, where not the default."""
    deadlines_seconds: Mapping[str, float] = field(default_factory=dict)
    """Longest run in seconds, by collector, where not the default."""
    checkpoint_paths: tuple[Path, ...] = ()
    """Absolute paths that hold checkpoints, as the host sees them; the disk collector watches each."""
    network_include: tuple[str, ...] = ()
    """Names (globs) of interfaces to watch; where empty, those with hardware behind them."""
    network_exclude: tuple[str, ...] = ("lo",)
    """Names (globs) of interfaces not to watch."""
    rdma_include: tuple[str, ...] = ()
    """Names (globs) of RDMA devices to watch; where empty, all."""
    rdma_exclude: tuple[str, ...] = ()
    """Names (globs) of RDMA devices not to watch."""
    nvml_library: Path | None = None
    """libnvidia-ml.so.1 where it lies outside the library path, as below the GPU operator's driver root."""
    xid_table: Path | None = None
    """TOML file that corrects severity, action or meaning of XID codes."""
    kernel_log: Path = Path("/dev/kmsg")
    """The kernel's log."""
    dcgm_endpoint: str = ""
    """URL of a dcgm-exporter on this node (http://localhost:9400/metrics); empty relays nothing."""
    dcgm_fields: tuple[str, ...] = DCGM_FIELDS
    """Fields of DCGM to relay where NVML does not give the same."""
    nccl_ras_address: tuple[str, ...] = ("auto",)
    """RAS services of NCCL, HOST:PORT as in NCCL_RAS_ADDR; auto is localhost:28028, empty asks none."""
    stall_seconds: float = 30.0
    """Seconds without progress below which no run is an incident, however short its learnt timeout."""
    evidence_directory: str = "/var/lib/rankwatch/evidence"
    """Directory of the evidence bundles, made where its parent exists; empty keeps no evidence."""
    evidence_bundles: int = 20
    """Bundles kept; the oldest are removed."""
    evidence_bytes: int = 256 << 20
    """Most bytes of one bundle."""
    dump_directory: Path | None = None
    """Directory of TORCH_FR_DUMP_TEMP_FILE; dumps that appear during an incident join its bundle."""
    kubelet_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """Socket on which the kubelet tells which pod was given which GPU."""
    slurm_job_map: Path | None = None
    """Directory of one file per GPU (its number), each line the id of a SLURM job that was given it."""
    otlp_endpoint: str = ""
    """URL of an OTLP/HTTP endpoint (http://collector:4318/v1/metrics); empty exports nothing."""
    otlp_interval_seconds: float = 30.0
    """Seconds between two exports over OTLP."""
    otlp_timeout_seconds: float = 10.0
    """Longest time one export may take, retries among it."""
    otlp_headers_file: Path | None = None
    """File of NAME=VALUE lines sent as headers with every export."""
    tls_certificate: Path | None = None
    """PEM file of the certificate (chain) to serve with; read again when it changes."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""
    tls_client_ca: Path | None = None
    """PEM file of the authorities whose client certificates are accepted; none other may connect."""
    bearer_token_file: Path | None = None
    """File that holds the token /metrics asks for; read again when it changes."""
    procfs: Path = Path("/proc")
    """Where the host's /proc is mounted."""
    sysfs: Path = Path("/sys")
    """Where the host's /sys is mounted."""
    rootfs: Path = Path("/")
    """Where the host's root is mounted; checkpoint_paths are looked up below it."""
    retention_seconds: float = 3600.0
    """Seconds after its end at which a run is forgotten and its black boxes are removed."""
    max_runs: int = 100
    """Runs exported at the same time; the most recent ones win."""
    max_names: int = 64
    """Distinct names of scalars, work units and process groups exported for one rank."""
    log_level: str = "info"
    """Least severe message in the log: debug, info, warning or error."""
    log_format: str = "text"
    """Form of the log: text or json."""

    def __post_init__(self) -> None:
        self._check_address()
        self._check_collectors()
        for name in ("max_requests", "max_runs", "max_names", "evidence_bundles"):
            self._expect(name, getattr(self, name) >= 1, "a whole number of at least 1")
        for name in (
            "request_timeout_seconds",
            "retention_seconds",
            "stall_seconds",
            "otlp_interval_seconds",
            "otlp_timeout_seconds",
        ):
            self._expect(name, 0 < getattr(self, name) < float("inf"), "a number of seconds above 0")
        self._expect("node", bool(self.node), "a name")
        self._expect("evidence_bytes", self.evidence_bytes >= 1 << 20, "a whole number of at least 1048576")
        self._expect("collectors", bool(self.enabled_collectors()), "at least one that is not disabled")
        for path in self.checkpoint_paths:
            self._expect("checkpoint_paths", path.is_absolute(), "absolute paths")
        for name in ("dcgm_endpoint", "otlp_endpoint"):
            known = not getattr(self, name) or getattr(self, name).startswith(("http://", "https://"))
            self._expect(name, known, "a URL that begins with http:// or https://")
        self._expect(
            "tls_key", (self.tls_key is None) == (self.tls_certificate is None), "a key with tls_certificate"
        )
        self._expect(
            "tls_client_ca", self.tls_client_ca is None or self.tls_key is not None, "tls_certificate too"
        )
        self._expect("log_level", self.log_level in LOG_LEVELS, f"one of {', '.join(LOG_LEVELS)}")
        self._expect("log_format", self.log_format in LOG_FORMATS, f"one of {', '.join(LOG_FORMATS)}")

    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def schedule(self, collector: str) -> Schedule:
        """Interval and deadline of a collector, after the settings."""
        default = DEFAULT_SCHEDULES[collector]
        return Schedule(
            self.intervals_seconds.get(collector, default.interval_seconds),
            self.deadlines_seconds.get(collector, default.deadline_seconds),
        )

    def enabled_collectors(self) -> tuple[str, ...]:
        """Names of the collectors to run, in their fixed order."""
        return tuple(
            name
            for name in DEFAULT_SCHEDULES
            if name in self.collectors and name not in self.disabled_collectors
        )

    def _check_address(self) -> None:
        host, _, port = self.listen.rpartition(":")
        bare = host.startswith("[") == host.endswith("]") and (":" not in host or host.startswith("["))
        known = bool(host) and bare and port.isascii() and port.isdigit() and int(port) <= 65535
        self._expect("listen", known, "HOST:PORT with a port from 0 to 65535")

    def _check_collectors(self) -> None:
        known = f"names out of {', '.join(DEFAULT_SCHEDULES)}"
        for name in ("collectors", "disabled_collectors", "intervals_seconds", "deadlines_seconds"):
            self._expect(name, set(getattr(self, name)) <= set(DEFAULT_SCHEDULES), known)
        for name in ("intervals_seconds", "deadlines_seconds"):
            inside = all(0 < seconds < float("inf") for seconds in getattr(self, name).values())
            self._expect(name, inside, "numbers of seconds above 0")

    def _expect(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigError(name, getattr(self, name), expected)


FIELD_NAMES: tuple[str, ...] = tuple(each.name for each in fields(AgentConfig))
"""Names of all settings, in the order of the help."""
