"""Records that were read at once, column by column: no object for each, where thousands a second are read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count
from operator import le, ne
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.records import RawRecord

END_OF_TIME = 1e10
"""Seconds. No clock of a machine says more (as Unix time: the year 2286), and no sum of them overflows."""
SEQUENCE_OFFSET = 24
"""Of a slot: where its sequence number lies."""
_WORDS = layout.RECORD_SIZE // 8
_PAYLOAD_SIZE = layout.RECORD_SIZE - layout.PAYLOAD_OFFSET
_FIRST_TAG = 1 << layout.NAME_BITS
_END_OF_TAGS = (max(layout.RecordKind) + 1) << layout.NAME_BITS


class Columns(NamedTuple):
    """The n-th item of each column is of the n-th record; the payload is decoded by whoever wants it."""

    tags: Sequence[int]
    """Kind and number of the name, see `layout.tag`."""
    starts: Sequence[float]
    ends: Sequence[float]
    payloads: Sequence[int]
    """Where in `raw` the payload begins."""
    raw: bytes
    """Slots of the ring, one after another."""

    def records(self) -> list[RawRecord]:
        """The same, row by row."""
        bits, raw = layout.NAME_BITS, self.raw
        return [
            RawRecord(tag >> bits, tag & _FIRST_TAG - 1, start, end, raw[at : at + _PAYLOAD_SIZE])
            for tag, start, end, at in zip(self.tags, self.starts, self.ends, self.payloads, strict=True)
        ]


NOTHING = Columns((), (), (), (), b"")


def sequence_numbers(raw: bytes) -> list[int]:
    """What the slots say which records they hold."""
    return memoryview(raw).cast("Q")[SEQUENCE_OFFSET // 8 :: _WORDS].tolist()


def count_in_order(numbers: Sequence[int], expected: int) -> int:
    """How many of the slots with these numbers, from the first on, hold the records expected there."""
    return next(compress(count(), map(ne, numbers, count(expected))), len(numbers))


def columns_of(raw: bytes) -> Columns:
    """The records of these slots, without those that make no sense."""
    words = memoryview(raw)
    tags, floats = words.cast("Q")[::_WORDS].tolist(), words.cast("d")
    starts, ends = floats[1::_WORDS].tolist(), floats[2::_WORDS].tolist()
    columns = Columns(tags, starts, ends, range(layout.PAYLOAD_OFFSET, len(raw), layout.RECORD_SIZE), raw)
    if (
        min(tags) >= _FIRST_TAG
        and max(tags) < _END_OF_TAGS
        and all(map(le, starts, ends))  # false for what is no number, so that the next two hold
        and min(starts) >= 0.0
        and max(ends) < END_OF_TIME
    ):
        return columns
    return _without_nonsense(columns)


def _without_nonsense(columns: Columns) -> Columns:
    tags, starts, ends, payloads, raw = columns
    good = [
        _FIRST_TAG <= tag < _END_OF_TAGS and 0.0 <= start <= end < END_OF_TIME
        for tag, start, end in zip(tags, starts, ends, strict=True)
    ]
    kept = (list(compress(tags, good)), list(compress(starts, good)), list(compress(ends, good)))
    return Columns(*kept, list(compress(payloads, good)), raw)
