"""Every setting of the agent, with its default and the schedules of its collectors.

Flags win over the environment, the environment over the TOML file, the file over the defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from rankwatch.conventions import environment
from rankwatch.settings import Effective, Setting, build, expect, read_environment, read_file, read_flags
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.source import COLLECTORS, source_of

ENVIRONMENT_PREFIX = "RANKWATCH_AGENT_"
"""`RANKWATCH_AGENT_LISTEN` sets `listen`, and so on; `RANKWATCH_AGENT_CONFIG` names the TOML file."""
CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"

# Kubernetes sets such variables in every pod where a Service is called rankwatch-agent.
_SERVICE_LINK = re.compile(ENVIRONMENT_PREFIX + r"(SERVICE_(HOST|PORT)|PORT)(_\w+)?")

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
"""Fields for what NVML does not measure on GPUs older than Hopper."""


def _node_name() -> str:
    return os.uname().nodename


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The agent's settings; raises FieldError for the first that cannot be used."""

    listen: str = "0.0.0.0:9477"
    """HOST:PORT to serve on; port 0 takes a free one; an IPv6 host goes in brackets."""
    probe_listen: str = ""
    """HOST:PORT of a listener for the probes alone, in plain HTTP; empty leaves them to listen only."""
    address_file: Path | None = None
    """File that receives HOST:PORT once the agent listens, written atomically."""
    max_requests: int = 16
    """Most requests answered at the same time; one more gets status 503."""
    request_timeout_seconds: float = 10.0
    """Longest life of a connection in seconds."""
    directory: Path = environment.DEFAULT_DIRECTORY
    """Directory of the ranks' black boxes."""
    state_directory: str = "/var/lib/rankwatch"
    """Directory where the agent keeps its state across restarts, such as counts; empty keeps nothing."""
    node: str = field(default_factory=_node_name)
    """Value of the label node; by default the host name."""
    cluster: str = ""
    """Value of the label cluster; empty leaves the label out."""
    collectors: tuple[str, ...] = tuple(COLLECTORS)
    """Collectors to run."""
    disabled_collectors: tuple[str, ...] = ()
    """Collectors not to run, even where collectors names them."""
    intervals_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds between the starts of two runs of a collector, where not its default."""
    deadlines_seconds: Mapping[str, float] = field(default_factory=dict)
    """Longest run of a collector in seconds, where not its default."""
    checkpoint_paths: tuple[Path, ...] = ()
    """Absolute paths of checkpoints on the host; the disk collector watches each."""
    checkpoint_bytes_per_second: float = 0.0
    """Bytes per second at which each saved checkpoint is read again and verified; 0 verifies none."""
    checkpoint_path_map: tuple[str, ...] = ()
    """FROM=TO for paths that are others on the host than in the training process; the first that fits."""
    network_include: tuple[str, ...] = ()
    """Names (globs) of network interfaces to watch; empty watches all that have hardware."""
    network_exclude: tuple[str, ...] = ("lo",)
    """Names (globs) of network interfaces not to watch."""
    rdma_include: tuple[str, ...] = ()
    """Names (globs) of RDMA devices to watch; empty watches all."""
    rdma_exclude: tuple[str, ...] = ()
    """Names (globs) of RDMA devices not to watch."""
    nvml_library: Path | None = None
    """Path of libnvidia-ml.so.1 outside the library path, as below the GPU operator's driver root."""
    nvlink_per_link: bool = False
    """Also export state, bytes and errors of each NVLink, up to 200 series per GPU."""
    xid_table: Path | None = None
    """TOML file that corrects severity, action or meaning of XID codes."""
    kernel_log: Path = Path("/dev/kmsg")
    """The kernel log."""
    dcgm_endpoint: str = ""
    """URL of a dcgm-exporter on this node (http://localhost:9400/metrics); empty relays none."""
    dcgm_fields: tuple[str, ...] = DCGM_FIELDS
    """DCGM fields to relay where NVML does not measure the same."""
    nccl_ras_address: tuple[str, ...] = ("auto",)
    """NCCL RAS services to ask, HOST:PORT as in NCCL_RAS_ADDR; auto is localhost:28028, empty asks none."""
    stall_seconds: float = 30.0
    """Least seconds without progress before a run is an incident, however short its learnt timeout."""
    evidence_directory: str = "/var/lib/rankwatch/evidence"
    """Directory of the evidence bundles, created where its parent exists; empty keeps no evidence."""
    evidence_bundles: int = 20
    """Evidence bundles to keep; the oldest are removed."""
    evidence_bytes: int = 256 << 20
    """Largest size of one evidence bundle in bytes."""
    dump_directory: Path | None = None
    """Directory of TORCH_FR_DUMP_TEMP_FILE; dumps written during an incident go into its bundle."""
    kubelet_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """Socket of the kubelet's pod resources API, which maps GPUs to pods."""
    slurm_job_map: Path | None = None
    """Directory with one file per GPU, named by its number; each line is the id of a SLURM job on it."""
    otlp_endpoint: str = ""
    """URL of an OTLP/HTTP endpoint (http://collector:4318/v1/metrics); empty exports nothing."""
    otlp_interval_seconds: float = 30.0
    """Seconds between two exports over OTLP."""
    otlp_timeout_seconds: float = 10.0
    """Longest time of one export in seconds, including retries."""
    otlp_headers_file: Path | None = None
    """File of NAME=VALUE lines, sent as headers with every export."""
    traces_endpoint: str = ""
    """URL of an OTLP/HTTP endpoint for traces (http://collector:4318/v1/traces); empty sends none."""
    traces_file: Path | None = None
    """File that receives traces, a line of OTLP's JSON for each batch; the file before it ends in .1."""
    traces_file_bytes: int = 256 << 20
    """Largest size of traces_file and the file before it together."""
    traces_one_in: int = 500
    """One step in so many becomes a trace without any other reason; 0 leaves only those with a reason."""
    traces_heartbeat_seconds: float = 600.0
    """Seconds between two spans that show a running attempt."""
    preemption_cloud: Literal["", "aws", "gcp", "azure"] = ""
    """Cloud whose metadata server is asked for notices of preemption: aws, gcp or azure; empty asks none."""
    nvrx_directory: Path | None = None
    """Directory to which NVRx's launcher reports its restart cycles (--ft-cycle-info-dir)."""
    price_table: Path | None = None
    """TOML file with prices of GPUs and budgets of runs; read again when it changes."""
    cost_charge: Literal["rank", "node"] = "rank"
    """GPUs that a run is charged for: rank, those of its ranks; node, all of the node."""
    mlflow_endpoint: str = ""
    """URL of the MLflow server that is told about the runs which it tracks; empty tells nobody."""
    mlflow_headers_file: Path | None = None
    """File of NAME=VALUE lines, sent as headers with every request to MLflow."""
    dashboard_url: str = ""
    """Address of the Grafana with rankwatch's dashboards, for the link in MLflow; empty leaves it out."""
    tls_certificate: Path | None = None
    """PEM file of the server's certificate chain; read again when it changes."""
    tls_key: Path | None = None
    """PEM file of the server's private key; read again when it changes."""
    tls_client_ca: Path | None = None
    """PEM file of the authorities that sign client certificates; a client without one is refused."""
    bearer_token_file: Path | None = None
    """File with the bearer token that /metrics requires; read again when it changes."""
    procfs: Path = Path("/proc")
    """Path where the host's /proc is mounted."""
    sysfs: Path = Path("/sys")
    """Path where the host's /sys is mounted."""
    rootfs: Path = Path("/")
    """Path where the host's root is mounted; checkpoints and checkpoint_paths are below it."""
    retention_seconds: float = 3600.0
    """Seconds after the end of a run until it is forgotten and its black boxes are removed."""
    max_runs: int = 100
    """Most runs exported at the same time; of each user the newest living ones come first."""
    max_names: int = 64
    """Most distinct names of scalars, work units and process groups exported for one rank."""
    plateau_steps: int = 0
    """Steps over which the loss of a rank must improve, about a fifth of a run; 0 looks for no plateau."""
    step_window_seconds: float = 300.0
    """Window of the means over recent steps; must hold several steps, and be that of the rules."""
    max_single_ranks: int = 512
    """Ranks of the largest run of which the recent means of each rank are exported; of larger runs, those of
    ranks that may stand out, and medians by node."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message in the log: debug, info, warning or error."""
    log_format: Literal["text", "json"] = "text"
    """Format of the log: text or json."""

    def __post_init__(self) -> None:
        self._check_addresses()
        self._check_collectors()
        for name, least in _LEAST.items():
            expect(self, name, getattr(self, name) >= least, f"a whole number of at least {least}")
        for name in _SECONDS:
            expect(self, name, 0 < getattr(self, name) < float("inf"), "a number of seconds above 0")
        expect(self, "node", bool(self.node), "a name")
        absolute = all(path.is_absolute() for path in self.checkpoint_paths)
        expect(self, "checkpoint_paths", absolute, "absolute paths")
        rate = self.checkpoint_bytes_per_second
        expect(self, "checkpoint_bytes_per_second", 0 <= rate < float("inf"), "a number of at least 0")
        mapped = all(each.startswith("/") and "=/" in each for each in self.checkpoint_path_map)
        expect(self, "checkpoint_path_map", mapped, "pairs of absolute paths, FROM=TO")
        for name in ("dcgm_endpoint", "otlp_endpoint", "traces_endpoint", "mlflow_endpoint", "dashboard_url"):
            known = not getattr(self, name) or getattr(self, name).startswith(("http://", "https://"))
            expect(self, name, known, "a URL that begins with http:// or https://")
        for name, path in (("otlp_endpoint", "/v1/metrics"), ("traces_endpoint", "/v1/traces")):
            # As OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, and unlike OTEL_EXPORTER_OTLP_ENDPOINT, they are whole.
            address = getattr(self, name)
            whole = not address or _is_whole(address)
            expect(self, name, whole, f"the whole address, such as http://collector:4318{path}")
        paired = (self.tls_key is None) == (self.tls_certificate is None)
        expect(self, "tls_key", paired, "a key with tls_certificate")
        expect(self, "tls_client_ca", self.tls_client_ca is None or bool(self.tls_key), "tls_certificate too")

    def address(self) -> tuple[str, int]:
        """Return host and port to listen on."""
        return _split_address(self.listen)

    def probe_address(self) -> tuple[str, int] | None:
        """Return host and port of the listener for probes; None where there is none."""
        return _split_address(self.probe_listen) if self.probe_listen else None

    def state_path(self) -> Path | None:
        """Return state_directory; None where nothing is kept."""
        return Path(self.state_directory) if self.state_directory else None

    def schedule(self, collector: str) -> Schedule:
        """Return interval and deadline of a collector."""
        default = source_of(collector).schedule
        return Schedule(
            self.intervals_seconds.get(collector, default.interval_seconds),
            self.deadlines_seconds.get(collector, default.deadline_seconds),
        )

    def enabled_collectors(self) -> tuple[str, ...]:
        """Return the names of the collectors to run, in the order of COLLECTORS."""
        chosen = set(self.collectors) - set(self.disabled_collectors)
        return tuple(name for name in COLLECTORS if name in chosen)

    def _check_addresses(self) -> None:
        for name in ("listen", "probe_listen"):
            text = getattr(self, name)
            known = _is_address(text) or (name == "probe_listen" and not text)
            expect(self, name, known, "HOST:PORT with a port from 0 to 65535")

    def _check_collectors(self) -> None:
        known = f"names out of {', '.join(COLLECTORS)}"
        for name in ("collectors", "disabled_collectors", "intervals_seconds", "deadlines_seconds"):
            expect(self, name, set(getattr(self, name)) <= set(COLLECTORS), known)
        expect(self, "collectors", bool(self.enabled_collectors()), "at least one that is not disabled")
        for name in ("intervals_seconds", "deadlines_seconds"):
            inside = all(0 < seconds < float("inf") for seconds in getattr(self, name).values())
            expect(self, name, inside, "numbers of seconds above 0")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    bare = host.startswith("[") == host.endswith("]") and (":" not in host or host.startswith("["))
    return bool(host) and bare and port.isascii() and port.isdigit() and int(port) <= 65535


def _split_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


_LEAST = {
    **dict.fromkeys(("max_requests", "max_runs", "max_names", "max_single_ranks", "evidence_bundles"), 1),
    **dict.fromkeys(("plateau_steps", "traces_one_in"), 0),
    **dict.fromkeys(("traces_file_bytes", "evidence_bytes"), 1 << 20),
}
_SECONDS = (
    *("request_timeout_seconds", "retention_seconds", "stall_seconds", "step_window_seconds"),
    *("otlp_interval_seconds", "otlp_timeout_seconds", "traces_heartbeat_seconds"),
)


def load_config(
    *, flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None
) -> Effective[AgentConfig]:
    """Return the settings in force. `flags` maps field names to the values given. Raises SettingError."""
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    given = {} if file is None else read_file(AgentConfig, file)
    # The training process uses this variable as well; the agent's own wins over it.
    if environ.get(environment.DIRECTORY):
        origin = f"environment {environment.DIRECTORY}"
        given["directory"] = Setting(Path(environ[environment.DIRECTORY]), origin)
    ours = {
        variable: text
        for variable, text in environ.items()
        if variable != CONFIG_VARIABLE and not _SERVICE_LINK.fullmatch(variable)
    }
    given |= read_environment(AgentConfig, ENVIRONMENT_PREFIX, ours)
    return build(AgentConfig, given | read_flags(AgentConfig, flags))


def _is_whole(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.path) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return False
