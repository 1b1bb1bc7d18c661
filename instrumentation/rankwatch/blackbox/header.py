"""The fixed part of a black box, read and checked."""

from __future__ import annotations

from pathlib import Path

from rankwatch.attempts import as_traceparent
from rankwatch.blackbox import layout
from rankwatch.blackbox.columns import END_OF_TIME
from rankwatch.blackbox.records import Header
from rankwatch.errors import BlackBoxError, IdentityError
from rankwatch.identity import Identity

GUARD_RECORDS = 64
"""Slots in front of the writer that a reader does not trust. They may be overwritten while they are read."""


def parse_header(path: Path, raw: bytes, actual_size: int) -> Header:
    """Parse the first HEADER_SIZE bytes of a file of `actual_size` bytes.

    Raises BlackBoxError with a `reason` if this version cannot read them as a black box.
    """

    def refuse(reason: str, why: str) -> BlackBoxError:
        return BlackBoxError(f"{path} is not a usable black box: {why}", reason=reason)

    if len(raw) < layout.HEADER_SIZE:
        raise refuse("truncated", f"it has only {len(raw)} bytes")
    (magic, version, header, record, names, capacity, now, names_at, ring, size,
     rank, world, local, pid, monotonic, wall, target, run, host, count,
    ) = layout.FIXED.unpack_from(raw)  # fmt: skip
    if magic != layout.MAGIC:
        raise refuse("garbage", "its magic is wrong")
    if version != layout.VERSION:
        raise refuse("version", f"its format version is {version}, this reader knows {layout.VERSION}")
    expected = (layout.HEADER_SIZE, layout.RECORD_SIZE, layout.NAME_COUNT,
                layout.NOW_OFFSET, layout.NAMES_OFFSET, layout.RING_OFFSET)  # fmt: skip
    if (header, record, names, now, names_at, ring) != expected:
        raise refuse("garbage", "its sizes or offsets do not belong to its version")
    if not 2 * GUARD_RECORDS < capacity <= layout.MAX_CAPACITY:
        raise refuse("oversized", f"its ring has {capacity} records")
    if size != layout.RING_OFFSET + capacity * layout.RECORD_SIZE or actual_size < size:
        raise refuse("truncated", f"it has {actual_size} bytes, according to its header {size}")
    if actual_size > size:
        raise refuse("oversized", f"it has {actual_size} bytes, according to its header {size}")
    if not (0.0 <= monotonic < END_OF_TIME and 0.0 <= wall < END_OF_TIME):
        raise refuse("garbage", "its clocks are impossible")
    run_class, interval, short_name = layout.DECLARED.unpack_from(raw, layout.DECLARED_OFFSET)
    attempt, traceparent = layout.STARTED_BY.unpack_from(raw, layout.STARTED_BY_OFFSET)
    coordinates = {}
    for index in range(min(count, layout.MAX_COORDINATES)):
        at = layout.FIXED.size + index * layout.COORDINATE.size
        name, position, extent = layout.COORDINATE.unpack_from(raw, at)
        coordinates[_text(name)] = (position, extent)
    try:
        identity = Identity(
            run=_text(run),
            rank=rank,
            world_size=world,
            local_rank=local,
            host=_text(host),
            short_name=_printable(short_name),
            attempt=attempt,
            coordinates=coordinates,
        )
    except IdentityError as error:
        raise refuse("garbage", str(error)) from error
    if not identity.run:
        raise refuse("garbage", "it has no run id")
    return Header(
        identity=identity,
        pid=pid,
        started_monotonic=monotonic,
        started_wall=wall,
        target_steps=int(target) if 0 < target < 1e15 else None,
        run_class=_printable(run_class),
        checkpoint_interval_seconds=interval if 0.0 < interval < END_OF_TIME else None,
        capacity=capacity,
        traceparent=as_traceparent(_printable(traceparent)),
    )


def _printable(raw: bytes) -> str:
    text = _text(raw)
    return text if text.isascii() and text.isprintable() else ""


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
