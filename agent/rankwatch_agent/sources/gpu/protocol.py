"""What the agent and its NVML worker say to each other: one msgpack message per request and per reply.

A message is preceded by its length, 4 bytes, big-endian. The worker answers each request once, in order.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_MESSAGE_BYTES = 4 << 20
"""A longer message is refused: a full reply for 16 GPUs has about 140 kB."""


class Sample(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One sample of a metric that `rankwatch.conventions` declares."""

    metric: str
    labels: tuple[str, ...]
    """Values of the labels in declared order."""
    value: float


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: its identity, whether it answers, and what it told."""

    uuid: str
    pci_bus_id: str
    """In the kernel's form: 0000:3b:00.0."""
    index: int
    minor_number: int
    model: str
    up: bool
    """False once it was seen and then lost; its samples are then only those of its identity."""
    lost_reason: str = ""
    mig_uuids: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    """Processes with a compute context on it, by their ids on the host."""
    samples: tuple[Sample, ...] = ()
    unsupported: tuple[str, ...] = ()
    """Features the driver says this GPU has not."""
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
    """Samples of the node as a whole: versions of the driver, rejected values."""
    xids: tuple[XidEvent, ...] = ()
    """XID errors since the last answer."""
    warnings: tuple[str, ...] = ()
    """Sentences for the log: what failed on which GPU without costing the others."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's answer where the driver as a whole cannot be used."""

    message: str
    absent: bool = False
    """True where there is no driver at all (no library), False where it is there and fails."""
    xids: tuple[XidEvent, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    """GPUs seen before, all of them lost: the driver itself answers and shows none."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of the two is set."""

    reading: Reading | None = None
    failure: Failure | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`collect`: read everything once. End of input means: shut the driver down in order and exit."""

    what: Literal["collect"] = "collect"
