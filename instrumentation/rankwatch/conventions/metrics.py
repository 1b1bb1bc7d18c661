"""Every metric of the agent, by the table in metrics.txt, and the labels they carry.

Agent, rules, dashboards and references read it; a training process does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from rankwatch.conventions.vocabulary import LOSS, OTHER


class Kind(StrEnum):
    """Prometheus metric type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"
    """A gauge that is always 1 and carries its content in labels."""


class Label(StrEnum):
    """A Prometheus label name."""

    INSTANCE = "instance"
    """Address of an agent as Prometheus scrapes it; only in series that Prometheus itself makes."""
    CLUSTER = "cluster"
    """Cluster the node belongs to; absent unless the agent is told one."""
    NODE = "node"
    """Name of the machine the agent runs on; on every series of the agent."""
    RUN = "run"
    """Identity of a training run, the same on all of its ranks."""
    RUN_NAME = "run_name"
    """Short name of a run for people: that of its script or job. Not unique; empty where it is unknown."""
    RUN_CLASS = "run_class"
    """Class of a run, as RANKWATCH_RUN_CLASS gives it; empty where none is given."""
    CONTACT = "contact"
    """Channel or mail address of a run, as RANKWATCH_CONTACT gives it; empty where none is given."""
    OWNER = "owner"
    """Of a run, the user id that owns its black boxes, by the kernel. Of an alert, who acts on it."""
    TRACKER_URL = "tracker_url"
    """Page of a run in its experiment tracker, http or https; empty where it has none."""
    RANK = "rank"
    """Global rank, 0 <= rank < world size."""
    LOCAL_RANK = "local_rank"
    WORLD_SIZE = "world_size"
    STAGE = "stage"
    """Pipeline-parallel coordinate; ranks of one stage do the same work."""
    DATA_PARALLEL = "data_parallel"
    """Data-parallel coordinate, empty where the rank states none; ranks of one replica work on the same
    microbatches. Not `replica`: Thanos and pairs of Prometheus tell themselves apart by that name."""
    SHOWN = "shown"
    HALF = "half"
    """lower or upper: the half of the ranks on a node, by the value itself, whose median stands for it."""
    EXCESS = "excess"
    """Whole percents by which ranks exceed the median rank of their stage, rounded down."""
    FILE = "file"
    """A file of a checkpoint, by its path within it."""
    TENSOR = "tensor"
    """Name of a tensor of a checkpoint; empty where none is meant alone."""
    DAMAGE = "damage"
    """Damage to a file of a checkpoint: flipped, truncated, missing, ..."""
    CHECKPOINT_STAGE = "checkpoint_stage"
    """Stage of a checkpoint operation: serialize, write, fsync, ..."""
    HOST = "host"
    """Host name as the training process sees it (in a container: the container's)."""
    PID = "pid"
    """Process id as the training process sees it."""
    STATE = "state"
    PHASE = "phase"
    """Phase of a step; in recorded series of slow ranks a `SlowPhase`."""
    UNIT = "unit"
    """Unit of work: samples, tokens."""
    NAME = "name"
    """Name of a scalar: loss, gradient_norm, learning_rate."""
    CAPABILITY = "capability"
    """Something of a training loop that can be recorded: a `Capability`."""
    ATTEMPT = "attempt"
    """Number of an attempt of a run, from 0."""
    MESSAGE = "message"
    """Beginning of a message, printable; only in series of which a run has one at a time."""
    EXCEPTION = "exception"
    """Type of the exception that ended a rank."""
    OPERATION = "operation"
    """A collective (all_reduce) or a checkpoint operation (save, verify, load, upload)."""
    OUTCOME = "outcome"
    GROUP = "group"
    """Process group, by the name PyTorch gives it."""
    MEMBERS = "members"
    """Global ranks of a process group in short form: 0-3, 0-12/4. Groups of one mesh dimension share a
    name."""
    LEVEL = "level"
    """Of a fingerprint: 0 for the newest one, and each further level keeps every eighth of the one before."""
    CAUSE = "cause"
    """A `Cause`, in recorded series; a `StartCause` in the counter of started attempts."""
    SIZE_CLASS = "size_class"
    """Size of a collective: small (below 64 KiB), medium (below 1 MiB), large."""
    COLLECTOR = "collector"
    REASON = "reason"
    VERSION = "version"
    DEVICE = "device"
    """Network interface, RDMA device or block device, by the kernel's name."""
    MODE = "mode"
    RESOURCE = "resource"
    PATH = "path"
    SEVERITY = "severity"
    GPU = "gpu"
    """UUID of a GPU, as NVML gives it: GPU-..."""
    MIG = "mig"
    """UUID of a MIG instance: MIG-...; empty where the whole GPU is meant. Where the UUID is not known,
    `gpu_instance N` or the name a scheduler gives the instance."""
    INDEX = "index"
    """NVML's number of a GPU; it may change at a reboot, the UUID does not."""
    PCI_BUS_ID = "pci_bus_id"
    """Domain, bus, device and function in the kernel's form: 0000:3b:00.0."""
    MODEL = "model"
    GPU_MODEL = "gpu_model"
    """Model of a GPU that is charged, as NVML names it; cpu for ranks without one."""
    DTYPE = "dtype"
    """Type of numbers that a peak is of: tf32, fp16, bf16, fp8."""
    CURRENCY = "currency"
    """Three letters of ISO 4217: EUR."""
    BASIS = "basis"
    """Meaning of a price: list, contracted, amortised."""
    ARCHITECTURE = "architecture"
    SERIAL = "serial"
    DRIVER_VERSION = "driver_version"
    NVML_VERSION = "nvml_version"
    CUDA_VERSION = "cuda_version"
    FEATURE = "feature"
    """Something a GPU may be able to tell: power, memory_temperature, ..."""
    SENSOR = "sensor"
    CLOCK = "clock"
    DIRECTION = "direction"
    """transmit or receive, as seen from the device."""
    KIND = "kind"
    SCOPE = "scope"
    LINK = "link"
    """Number of an NVLink of a GPU."""
    FAN = "fan"
    VBIOS_VERSION = "vbios_version"
    INFOROM_VERSION = "inforom_version"
    AVAILABILITY = "availability"
    """How many spare rows a bank of device memory has left."""
    ACTION = "action"
    """Thing to do about a fault."""
    PROFILE = "profile"
    """Profile of a MIG instance: 1g.10gb, ..."""
    GPU_INSTANCE = "gpu_instance"
    COMPUTE_INSTANCE = "compute_instance"
    XID = "xid"
    """Code of an error the NVIDIA driver reported."""
    SUBCODE = "subcode"
    """Part of NVLink that an error of code 144 to 150 is of."""
    MODULE = "module"
    """A module of the Linux kernel."""
    SERVICE = "service"
    TYPE = "type"
    SXID = "sxid"
    """Code of an error of an NVSwitch."""
    MEANING = "meaning"
    EVENT = "event"
    DRIVER = "driver"
    """Kernel module behind a device."""
    NUMA_NODE = "numa_node"
    RDMA_DEVICE = "rdma_device"
    """RDMA device of a network interface: mlx5_0; empty where it has none."""
    NETWORK_DEVICE = "network_device"
    """Network interface of an RDMA port; empty where it has none."""
    PORT = "port"
    """Number of a port of an RDMA device."""
    COUNTER = "counter"
    """A hardware counter by the kernel's or the driver's own name."""
    PRIORITY = "priority"
    LINK_LAYER = "link_layer"
    BOARD = "board"
    FIRMWARE_VERSION = "firmware_version"
    HCA_TYPE = "hca_type"
    DISTANCE = "distance"
    POD_NAMESPACE = "pod_namespace"
    """Not `namespace`, which the scrape of a pod already carries; likewise the next two."""
    POD_NAME = "pod_name"
    POD_CONTAINER = "pod_container"
    SLURM_JOB = "slurm_job"
    SOURCE = "source"
    ADDRESS = "address"
    """HOST:PORT of a service that the agent asks."""
    COMMUNICATOR = "communicator"
    """Communicator of NCCL, by its hash."""
    COMMUNICATOR_RANK = "communicator_rank"
    """Rank in a communicator; in the largest one mostly the global rank."""
    TERM = "term"
    """Term that a sum of squares is of: local, work, forward, backward, or the sum of two of them."""
    FIELD = "field"
    """A field of DCGM by its name."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric: the only place its name, type, unit, labels and help are written."""

    name: str
    """Full exposition name, with `_total` on counters."""
    kind: Kind
    unit: str
    """Base unit (`seconds`, `bytes`), or `1` for pure numbers."""
    labels: tuple[Label, ...]
    """Labels beyond `cluster` and `node`."""
    help: str

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series."""
        suffixes = ("_bucket", "_sum", "_count") if self.kind is Kind.HISTOGRAM else ("",)
        return tuple(self.name + each for each in suffixes)


_HEAD = re.compile(r"(rankwatch_\w+)(?:{(\S+)})? (\w+) (\w+)")


def parse_table(text: str) -> Iterator[tuple[str, Metric]]:
    """Yield the section and the declaration of each metric of a table.

    Raises ValueError for a line that declares none, or a type or label that is not known.
    """
    section = ""
    for block in re.split(r"\n(?=\S)", text.strip()):
        head, *lines = block.splitlines()
        if head.startswith("["):
            section = head[1 : head.index("]")]
        elif match := _HEAD.fullmatch(head):
            name, labels, kind, unit = match.groups()
            names = tuple(Label(each) for each in labels.split(",")) if labels else ()
            help_text = " ".join(each.strip() for each in lines if each)
            yield section, Metric(name=name, kind=Kind(kind), unit=unit, labels=names, help=help_text)
        elif not head.startswith("#"):
            raise ValueError(f"this line declares no metric: {head}")


def metric(name: str) -> Metric:
    """Return the declaration of a metric; raises KeyError for a name that is not declared."""
    return _BY_NAME[name]


_TABLE = tuple(parse_table(Path(__file__).with_name("metrics.txt").read_text()))
METRICS: tuple[Metric, ...] = tuple(each for _, each in _TABLE)
_BY_NAME = {each.name: each for each in METRICS}


def section(name: str) -> tuple[Metric, ...]:
    """Return the metrics of a section of the table, such as `gpu`."""
    return tuple(each for section_name, each in _TABLE if section_name == name)


OF_RUNNING_RANKS: Mapping[str, str] = MappingProxyType(
    {
        "rankwatch_rank_info": "",
        "rankwatch_steps_total": "",
        "rankwatch_step_seconds_total": "",
        "rankwatch_step_local_seconds_total": "",
        "rankwatch_step_phase_seconds_total": OTHER,
        "rankwatch_progress_timestamp_seconds": "",
    }
)
"""Metrics that every rank in state running has; of some a label value without which there is none."""

OF_RANKS_THAT_HAD_THEM: Mapping[str, str] = MappingProxyType(
    {
        "rankwatch_scalar_nonfinite_total": LOSS,
        "rankwatch_loss_deviation": "",
        "rankwatch_checkpoint_operations_total": "save",
        "rankwatch_late_step_seconds_total": "",
        "rankwatch_step_variation_total": "local",
    }
)
"""Metrics that not every run has, but which must not vanish from a running rank that had them."""

TOGETHER = ("work", "microbatches")
"""Reasons that may explain why a rank's own time varies: label `reason`."""
OUTSTANDING = "outstanding"
"""Label `shown`: of this large run only ranks that may stand out are exported. Empty for all other runs."""
