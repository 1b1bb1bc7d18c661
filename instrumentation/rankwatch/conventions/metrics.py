"""The metrics of the agent, all of them, in one place.

`cluster` (when the agent is told one) and `node` are on every series and not repeated in the
declarations. Base units only: seconds and bytes.
"""

from __future__ import annotations

from rankwatch.conventions.checkpoints import CHECKPOINTS
from rankwatch.conventions.collectives import COLLECTIVES, NCCL_RAS
from rankwatch.conventions.cost import COST
from rankwatch.conventions.declaration import Metric
from rankwatch.conventions.fabric import AFFINITY, LINKS, RDMA
from rankwatch.conventions.goodput import GOODPUT
from rankwatch.conventions.gpus import ATTRIBUTION, DCGM, GPUS
from rankwatch.conventions.incidents import INCIDENTS
from rankwatch.conventions.life import LIFE
from rankwatch.conventions.machines import DISK, HOST, KERNEL_LOG, MOUNTS, NETWORK, PROCESSES, XIDS
from rankwatch.conventions.node_sums import NODE_SUMS
from rankwatch.conventions.recent import RECENT
from rankwatch.conventions.replicas import REPLICAS
from rankwatch.conventions.runs import MEMORY, RANKS, RUNS, SCALARS, STEPS, VARIATION
from rankwatch.conventions.telemetry import AGENT, BLACK_BOXES, OTLP, TRACKERS

METRICS: tuple[Metric, ...] = (
    *RUNS,
    *LIFE,
    *RANKS,
    *MEMORY,
    *STEPS,
    *VARIATION,
    *RECENT,
    *NODE_SUMS,
    *SCALARS,
    *REPLICAS,
    *CHECKPOINTS,
    *GOODPUT,
    *COST,
    *COLLECTIVES,
    *NCCL_RAS,
    *INCIDENTS,
    *BLACK_BOXES,
    *AGENT,
    *OTLP,
    *TRACKERS,
    *HOST,
    *NETWORK,
    *DISK,
    *PROCESSES,
    *MOUNTS,
    *LINKS,
    *RDMA,
    *AFFINITY,
    *GPUS,
    *XIDS,
    *KERNEL_LOG,
    *ATTRIBUTION,
    *DCGM,
)

_BY_NAME = {each.name: each for each in METRICS}


def metric(name: str) -> Metric:
    """The declaration of a metric; raises KeyError for a name that is not declared."""
    return _BY_NAME[name]
