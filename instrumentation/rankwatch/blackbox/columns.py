"""Records as columns. Thousands of records are read per second, too many for an object each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count
from operator import le, ne
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.records import RawRecord

END_OF_TIME = 1e10
"""Seconds. No clock shows more (as Unix time it is the year 2286), and sums of such times do not overflow."""
SEQUENCE_OFFSET = 24
"""Offset of the sequence number in a slot."""
_WORDS = layout.RECORD_SIZE // 8
_PAYLOAD_SIZE = layout.RECORD_SIZE - layout.PAYLOAD_OFFSET
_FIRST_TAG = 1 << layout.NAME_BITS
_END_OF_TAGS = (max(layout.RecordKind) + 1) << layout.NAME_BITS


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
