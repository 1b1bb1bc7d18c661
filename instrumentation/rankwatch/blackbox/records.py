"""What a reader returns, as plain values: header, now block and records, each checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress, count
from operator import le, ne
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.errors import BlackBoxError, IdentityError
from rankwatch.identity import MOST_ATTEMPTS, Identity, as_contact, as_traceparent

END_OF_TIME = 1e10
"""Seconds. No clock shows more (as Unix time it is the year 2286), and sums of such times do not overflow."""
SEQUENCE_OFFSET = 24
"""Offset of the sequence number in a slot."""
_WORDS = layout.RECORD_SIZE // 8
_PAYLOAD_SIZE = layout.RECORD_SIZE - layout.PAYLOAD_OFFSET
_FIRST_TAG = 1 << layout.NAME_BITS
_END_OF_TAGS = (max(layout.RecordKind) + 1) << layout.NAME_BITS
GUARD_RECORDS = 64
"""Slots in front of the writer that a reader does not trust. They may be overwritten while they are read."""


class Header(NamedTuple):
    """The fixed part of a black box."""

    identity: Identity
    pid: int
    """Process id in the writer's PID namespace. Other namespaces may use another number."""
    started_monotonic: float
    started_wall: float
    """The same moment on the wall clock, in seconds."""
    target_steps: int | None
    capacity: int
    """Number of records in the ring."""
    run_class: str = ""
    """Class of the run in printable ASCII; empty where it declares none."""
    contact: str = ""
    """Channel or mail address of the run; empty where it declares none."""
    checkpoint_interval_seconds: float | None = None
    """Longest time between two checkpoints that the run intends."""
    deadline_wall: float | None = None
    """Unix time by which the run is to be done."""
    process_started_wall: float | None = None
    """Unix time at which the process started, before it imported anything; None in older boxes."""
    requeues: int = 0
    """How often the scheduler has started the job before."""
    restarts: int = 0
    """How often the launcher has started the ranks since."""
    nvrx_job: str = ""
    """Job by which NVRx's launcher reports its restart cycles; empty below other launchers."""
    traceparent: str = ""
    """Position in a trace of whoever started the rank; empty where there is none."""
    lag_seconds: float = 0.0
    """By how much the file may lag behind the process; 0 where the process has mapped it."""

    def wall(self, monotonic: float) -> float:
        """Convert a moment on the writer's monotonic clock to Unix time."""
        return monotonic - self.started_monotonic + self.started_wall


class GroupNow(NamedTuple):
    """A process group of the rank, from the now block."""

    number: int
    """Number of the name of the group, as in records of collectives."""
    name: str
    members: str
    """Its global ranks in short form (see `rankwatch.members`); empty if they are unknown."""
    size: int
    enqueued: int
    """Collectives enqueued so far, without sends and receives."""
    oldest: float
    """Start of the oldest operation that is not complete, monotonic; 0 if there is none or it is unknown. A
    collective starts when it is enqueued, a send or receive when a thread begins to wait for it."""
    operation: str
    """Name of the operation enqueued last."""


class AllocatorNow(NamedTuple):
    """What torch's allocator of GPU memory held when the rank last looked."""

    allocated: int
    """Bytes that tensors held."""
    reserved: int
    """Bytes that the allocator held of the GPU."""
    peak: int
    """Most bytes that tensors had held."""
    retries: int
    """Times that it gave back all cached memory and tried again."""
    out_of_memory: int
    """Times that even this did not suffice."""


class NowBlock(NamedTuple):
    """What the rank was doing when the block was read. After its end this is the final state."""

    step: int
    step_began: float
    """Start of the open step on the monotonic clock; 0 if none is open."""
    step_ended: float
    steps_completed: int
    errors: int
    """Errors inside rankwatch that were kept from training."""
    loss: float
    checkpoint_step: int
    checkpoint_ended: float
    phases_began: Mapping[int, float]
    """Number of a phase's name -> when it last began. Phases that never began are left out."""
    gpu: str
    """UUID of the rank's GPU; empty while it is unknown."""
    allocator: AllocatorNow | None = None
    """None where the rank uses no GPU, or has not looked yet."""
    ended_by: str = ""
    """Lifecycle event that ended the run; empty until then."""
    target_steps: int = 0
    """Steps that the run is to reach, where it has learned them after its start; else 0."""
    device_marks_dropped: int = 0
    """Events on the GPU's compute stream that were dropped."""
    names_refused: int = 0
    """Times that a name found the table of names full, so that its record has no name."""
    capabilities: Mapping[Capability, Unseen | None] = {}
    """Capability -> why it is not visible; None where it is visible. Those that are unknown are left out."""
    cpu_wait_share: float | None = None
    """Part of its time in which the training thread was ready to run and had no CPU; None: not measured."""
    groups: tuple[GroupNow, ...] = ()
    """Process groups in which an operation was enqueued, in the order of their first operations."""


class RawRecord(NamedTuple):
    """One record of the ring. The payload is not decoded (see `layout`)."""

    kind: int
    name: int
    start: float
    end: float
    payload: bytes


class Columns(NamedTuple):
    """Item n of each column belongs to record n. Payloads are not decoded (see `layout`)."""

    tags: Sequence[int]
    """Kind and number of the name (see `layout.tag`)."""
    starts: Sequence[float]
    ends: Sequence[float]
    payloads: Sequence[int]
    """Offset of the payload in `raw`."""
    raw: bytes
    """Consecutive slots of the ring."""

    def records(self) -> list[RawRecord]:
        """Return the same records as rows."""
        bits, raw = layout.NAME_BITS, self.raw
        return [
            RawRecord(tag >> bits, tag & _FIRST_TAG - 1, start, end, raw[at : at + _PAYLOAD_SIZE])
            for tag, start, end, at in zip(self.tags, self.starts, self.ends, self.payloads, strict=True)
        ]


EMPTY = Columns((), (), (), (), b"")


def sequence_numbers(raw: bytes) -> list[int]:
    """Return the sequence number of each slot."""
    return memoryview(raw).cast("Q")[SEQUENCE_OFFSET // 8 :: _WORDS].tolist()


def count_in_order(numbers: Sequence[int], expected: int) -> int:
    """Return how many slots from the first on hold the numbers `expected`, `expected + 1`, and so on."""
    return next(compress(count(), map(ne, numbers, count(expected))), len(numbers))


def columns_of(raw: bytes) -> Columns:
    """Return the valid records of these slots."""
    words = memoryview(raw)
    tags, floats = words.cast("Q")[::_WORDS].tolist(), words.cast("d")
    starts, ends = floats[1::_WORDS].tolist(), floats[2::_WORDS].tolist()
    columns = Columns(tags, starts, ends, range(layout.PAYLOAD_OFFSET, len(raw), layout.RECORD_SIZE), raw)
    if (
        min(tags) >= _FIRST_TAG
        and max(tags) < _END_OF_TAGS
        and all(map(le, starts, ends))  # false for NaN, so the next two comparisons see none
        and min(starts) >= 0.0
        and max(ends) < END_OF_TIME
    ):
        return columns
    return _only_valid(columns)


def _only_valid(columns: Columns) -> Columns:
    tags, starts, ends, payloads, raw = columns
    valid = [
        _FIRST_TAG <= tag < _END_OF_TAGS and 0.0 <= start <= end < END_OF_TIME
        for tag, start, end in zip(tags, starts, ends, strict=True)
    ]
    kept = (list(compress(tags, valid)), list(compress(starts, valid)), list(compress(ends, valid)))
    return Columns(*kept, list(compress(payloads, valid)), raw)


class _Fixed(NamedTuple):
    """The fields of `layout.FIXED`, in its order."""

    magic: bytes
    version: int
    header_size: int
    record_size: int
    names: int
    capacity: int
    now_offset: int
    names_offset: int
    ring_offset: int
    size: int
    rank: int
    world_size: int
    local_rank: int
    pid: int
    monotonic: float
    wall: float
    target_steps: float
    run: bytes
    host: bytes
    coordinates: int


def parse_header(path: Path, raw: bytes, actual_size: int) -> Header:
    """Parse the first HEADER_SIZE bytes of a file of `actual_size` bytes.

    Raises BlackBoxError with a `reason` if this version cannot read them as a black box.
    """
    try:
        return _header(raw, actual_size)
    except _UnusableError as error:
        raise BlackBoxError(f"{path} is not a usable black box: {error.why}", reason=error.reason) from error


class _UnusableError(Exception):
    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason, self.why = reason, why


def _header(raw: bytes, actual_size: int) -> Header:
    if len(raw) < layout.HEADER_SIZE:
        raise _UnusableError("truncated", f"it has only {len(raw)} bytes")
    fixed = _Fixed(*layout.FIXED.unpack_from(raw))
    _check(fixed, actual_size)
    run_class, interval, short_name = layout.DECLARED.unpack_from(raw, layout.DECLARED_OFFSET)
    attempt, traceparent, most_attempts = layout.STARTED_BY.unpack_from(raw, layout.STARTED_BY_OFFSET)
    deadline, process_started, requeues, restarts = layout.PLAN.unpack_from(raw, layout.PLAN_OFFSET)
    (contact,) = layout.CONTACT.unpack_from(raw, layout.CONTACT_OFFSET)
    (lag,) = layout.LAG.unpack_from(raw, layout.LAG_OFFSET)
    (nvrx_job,) = layout.LAUNCHER.unpack_from(raw, layout.LAUNCHER_OFFSET)
    target = fixed.target_steps
    return Header(
        identity=_identity(
            fixed, raw, _printable(short_name), min(attempt, MOST_ATTEMPTS), min(most_attempts, MOST_ATTEMPTS)
        ),
        pid=fixed.pid,
        started_monotonic=fixed.monotonic,
        started_wall=fixed.wall,
        target_steps=int(target) if 0 < target < 1e15 else None,
        run_class=_printable(run_class),
        contact=as_contact(_printable(contact)),
        checkpoint_interval_seconds=interval if 0.0 < interval < END_OF_TIME else None,
        capacity=fixed.capacity,
        traceparent=as_traceparent(_printable(traceparent)),
        deadline_wall=deadline if 0.0 < deadline < END_OF_TIME else None,
        process_started_wall=process_started if 0.0 < process_started <= fixed.wall else None,
        requeues=min(requeues, MOST_ATTEMPTS),
        restarts=min(restarts, MOST_ATTEMPTS),
        nvrx_job=_printable(nvrx_job),
        lag_seconds=lag if 0.0 < lag <= layout.LAG_SECONDS else 0.0,
    )


def _check(fixed: _Fixed, actual_size: int) -> None:
    if fixed.magic != layout.MAGIC:
        raise _UnusableError("garbage", "its magic is wrong")
    if fixed.version != layout.VERSION:
        known = f"this reader knows {layout.VERSION}"
        raise _UnusableError("version", f"its format version is {fixed.version}, {known}")
    expected = (layout.HEADER_SIZE, layout.RECORD_SIZE, layout.NAME_COUNT,
                layout.NOW_OFFSET, layout.NAMES_OFFSET, layout.RING_OFFSET)  # fmt: skip
    if expected != (fixed.header_size, fixed.record_size, fixed.names,
                    fixed.now_offset, fixed.names_offset, fixed.ring_offset):  # fmt: skip
        raise _UnusableError("garbage", "its sizes or offsets do not belong to its version")
    if not 2 * GUARD_RECORDS < fixed.capacity <= layout.MAX_CAPACITY:
        raise _UnusableError("oversized", f"its ring has {fixed.capacity} records")
    sizes = f"it has {actual_size} bytes, according to its header {fixed.size}"
    if fixed.size != layout.RING_OFFSET + fixed.capacity * layout.RECORD_SIZE or actual_size < fixed.size:
        raise _UnusableError("truncated", sizes)
    if actual_size > fixed.size:
        raise _UnusableError("oversized", sizes)
    if not (0.0 <= fixed.monotonic < END_OF_TIME and 0.0 <= fixed.wall < END_OF_TIME):
        raise _UnusableError("garbage", "its clocks are impossible")


def _identity(fixed: _Fixed, raw: bytes, short_name: str, attempt: int, most_attempts: int) -> Identity:
    coordinates = {}
    for index in range(min(fixed.coordinates, layout.MAX_COORDINATES)):
        at = layout.FIXED.size + index * layout.COORDINATE.size
        name, position, extent = layout.COORDINATE.unpack_from(raw, at)
        coordinates[_text(name)] = (position, extent)
    try:
        identity = Identity(
            run=_text(fixed.run),
            rank=fixed.rank,
            world_size=fixed.world_size,
            local_rank=fixed.local_rank,
            host=_text(fixed.host),
            short_name=short_name,
            attempt=attempt,
            most_attempts=most_attempts,
            coordinates=coordinates,
        ).checked()
    except IdentityError as error:
        raise _UnusableError("garbage", str(error)) from error
    if not identity.run:
        raise _UnusableError("garbage", "it has no run id")
    return identity


def _printable(raw: bytes) -> str:
    text = _text(raw)
    return text if text.isascii() and text.isprintable() else ""


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
