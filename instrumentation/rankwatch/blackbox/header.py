"""The fixed part of a black box, read and checked."""

from __future__ import annotations

from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.columns import END_OF_TIME
from rankwatch.blackbox.records import Header
from rankwatch.errors import BlackBoxError, IdentityError
from rankwatch.identity import Identity

GUARD_RECORDS = 64
"""Slots in front of the writer that a reader does not trust: they may be overwritten while read."""


def parse_header(path: Path, raw: bytes, actual_size: int) -> Header:
    """The first HEADER_SIZE bytes of a file of this size; raises BlackBoxError, with a countable `reason`,
    where they are not those of a black box that this version can read."""

    def refuse(reason: str, why: str) -> BlackBoxError:
        return BlackBoxError(f"{path} is no usable black box: {why}", reason=reason)

    if len(raw) < layout.HEADER_SIZE:
        raise refuse("truncated", f"only {len(raw)} bytes")
    (magic, version, header, record, names, capacity, now, names_at, ring, size,
     rank, world, local, pid, monotonic, wall, target, run, host, count,
    ) = layout.FIXED.unpack_from(raw)  # fmt: skip
    if magic != layout.MAGIC:
        raise refuse("garbage", "wrong magic")
    if version != layout.VERSION:
        raise refuse("version", f"format version {version}, this reader knows {layout.VERSION}")
    expected = (layout.HEADER_SIZE, layout.RECORD_SIZE, layout.NAME_COUNT,
                layout.NOW_OFFSET, layout.NAMES_OFFSET, layout.RING_OFFSET)  # fmt: skip
    if (header, record, names, now, names_at, ring) != expected:
        raise refuse("garbage", "its sizes or offsets are not those of its version")
    if not 2 * GUARD_RECORDS < capacity <= layout.MAX_CAPACITY:
        raise refuse("oversized", f"a ring of {capacity} records")
    if size != layout.RING_OFFSET + capacity * layout.RECORD_SIZE or actual_size < size:
        raise refuse("truncated", f"{actual_size} bytes, its header says {size}")
    if actual_size > size:
        raise refuse("oversized", f"{actual_size} bytes, its header says {size}")
    if not (0.0 <= monotonic < END_OF_TIME and 0.0 <= wall < END_OF_TIME):
        raise refuse("garbage", "clocks that cannot be")
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
            coordinates=coordinates,
        )
    except IdentityError as error:
        raise refuse("garbage", str(error)) from error
    if not identity.run:
        raise refuse("garbage", "no run id")
    return Header(
        identity=identity,
        pid=pid,
        started_monotonic=monotonic,
        started_wall=wall,
        target_steps=int(target) if 0 < target < 1e15 else None,
        capacity=capacity,
    )


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
