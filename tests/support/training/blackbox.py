"""Reading a black box in tests."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.records import Header, NowBlock, RawRecord


class Read(NamedTuple):
    """A record with its payload decoded."""

    kind: RecordKind
    name: str
    start: float
    end: float
    payload: tuple[float, ...]


_FORMS = {
    kind: getattr(layout, "DEVICE" if kind is RecordKind.DEVICE_PHASE else kind.name)
    for kind in RecordKind
    if kind is not RecordKind.PHASE
}


def box(directory: Path) -> Path:
    """The one black box below a directory."""
    (path,) = directory.glob(f"*/*{layout.SUFFIX}")
    return path


def read(path: Path) -> list[Read]:
    """All records of a black box; steps without their places."""
    with closing(Reader(path)) as reader:
        return [
            Read(RecordKind(each.kind), reader.name(each.name), each.start, each.end, _payload(each))
            for each in reader.poll().records()
        ]


def now(path: Path) -> NowBlock:
    """The newest state of a rank in its black box."""
    with closing(Reader(path)) as reader:
        return reader.now()


def header(path: Path) -> Header:
    """What a rank has written into its black box as it began."""
    with closing(Reader(path)) as reader:
        return reader.header


def name_of(path: Path, number: float) -> str:
    """The name that a payload gives by its number."""
    with closing(Reader(path)) as reader:
        return reader.name(int(number))


def _payload(record: RawRecord) -> tuple[float, ...]:
    if record.kind == RecordKind.PHASE:
        return ()
    found = _FORMS[RecordKind(record.kind)].unpack_from(record.payload)
    if record.kind == RecordKind.STEP:
        return (found[0], found[1] & ((1 << layout.STEP_PLACE_BITS) - 1))
    return found


def of_kind(path: Path, kind: RecordKind) -> list[Read]:
    """The records of one kind."""
    return [each for each in read(path) if each.kind == kind]
