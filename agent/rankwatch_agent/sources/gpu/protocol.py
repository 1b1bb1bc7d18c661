"""The protocol between the agent and its NVML worker: one msgpack message per request and per answer.

The length precedes each message: 4 bytes, big-endian. The worker answers each request once, in order.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_MESSAGE_BYTES = 4 << 20
"""A longer message is refused. A full answer for 16 GPUs has about 140 kB."""


class Sample(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One sample of a metric that `rankwatch.conventions` declares."""

    metric: str
    labels: tuple[str, ...]
    """Values of the labels in declared order."""
    value: float


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: its identity, whether it is up, and its samples."""

    uuid: str
    pci_bus_id: str
    """In the kernel's form: 0000:3b:00.0."""
    index: int
    minor_number: int
    model: str
    up: bool
    """False for a GPU that was seen and then lost; only the samples of its identity are left."""
    lost_reason: str = ""
    mig_uuids: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    """Processes with a compute context on it, by their ids on the host."""
    samples: tuple[Sample, ...] = ()
    unsupported: tuple[str, ...] = ()
    """Features that this GPU lacks, according to the driver."""
    supported: tuple[str, ...] = ()


class XidEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An XID error that NVML delivered."""

    uuid: str
    xid: int
    timestamp_seconds: float
    """Unix time at which the worker received it."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's answer to `collect`."""

    gpus: tuple[Gpu, ...]
    samples: tuple[Sample, ...] = ()
    """Samples of the whole node: versions of the driver, supported features, rejected values."""
    xids: tuple[XidEvent, ...] = ()
    """XID errors since the last answer."""
    warnings: tuple[str, ...] = ()
    """For the log: what failed on which GPU, where everything else was read."""
    unidentified: int = 0
    """GPUs that do not even give their UUID: they were lost before the worker started."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's answer where the whole driver cannot be used."""

    message: str
    absent: bool = False
    """True where there is no driver (no library, no module), False where it is there and fails."""
    xids: tuple[XidEvent, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    """GPUs seen before, all of them lost; the driver itself answers and shows none."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of the two is set."""

    reading: Reading | None = None
    failure: Failure | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`collect`: read everything once. At the end of input the worker shuts the driver down and exits."""

    what: Literal["collect"] = "collect"
