"""The fixed part of a black box, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rankwatch.attempts import MOST_ATTEMPTS, as_traceparent
from rankwatch.blackbox import layout
from rankwatch.blackbox.columns import END_OF_TIME
from rankwatch.blackbox.records import Header
from rankwatch.errors import BlackBoxError, IdentityError
from rankwatch.identity import Identity, as_contact

GUARD_RECORDS = 64
"""Slots in front of the writer that a reader does not trust. They may be overwritten while they are read."""


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
        )
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
