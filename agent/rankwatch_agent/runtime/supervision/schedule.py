"""When collectors run: default intervals and deadlines, and a schedule that does not drift."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Schedule(NamedTuple):
    """Time between the starts of two runs, and the longest a run may take, in seconds."""

    interval_seconds: float
    deadline_seconds: float


DEFAULT_SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        # The ring of a black box must be read before it is overwritten: this one runs often.
        "ranks": Schedule(1.0, 10.0),
        # Each pull copies the ring of a flight recorder inside the training process.
        "collectives": Schedule(60.0, 30.0),
        # A question that goes to all processes of the job and waits ten seconds for those that are silent.
        "nccl_ras": Schedule(60.0, 20.0),
        "incidents": Schedule(1.0, 5.0),
        # While it writes a bundle it waits for ranks that hang, for py-spy, and for the diagnosis.
        "evidence": Schedule(1.0, 300.0),
        "host": Schedule(5.0, 5.0),
        "network": Schedule(5.0, 5.0),
        "tcp": Schedule(5.0, 5.0),
        "rdma": Schedule(5.0, 5.0),
        # Asks each network driver for thousands of statistics, under a lock of the kernel.
        "ethtool": Schedule(10.0, 5.0),
        # A checkpoint path is often a network file system under load: seldom, and with patience.
        "disk": Schedule(15.0, 10.0),
        # Hundreds of driver calls, which a sick GPU makes slow; GPM averages over the whole interval.
        "gpu": Schedule(10.0, 8.0),
        "gpu_driver": Schedule(5.0, 5.0),
        "kernel_log": Schedule(5.0, 5.0),
        "xid": Schedule(5.0, 5.0),
        # dcgm-exporter itself collects each 30 s unless told otherwise.
        "dcgm": Schedule(15.0, 5.0),
        "affinity": Schedule(60.0, 10.0),
        # What a scheduler decides changes with each job, not each second.
        "pods": Schedule(30.0, 10.0),
        "slurm": Schedule(30.0, 10.0),
    }
)
"""Every kind of collector by its name. Prometheus commonly scrapes each 15 s; faster only pays for ranks."""


def next_start(first: float, interval: float, now: float) -> float:
    """The first moment after `now` on the grid `first + k * interval`.

    A run that took longer than its interval therefore skips starts instead of catching up, and the
    grid never shifts.
    """
    return first + (math.floor((now - first) / interval) + 1) * interval


def stale_after(interval: float, deadline: float) -> float:
    """Age in seconds past which a result is no longer shown: three runs missed, or one that was late."""
    return max(3 * interval, deadline + interval)
