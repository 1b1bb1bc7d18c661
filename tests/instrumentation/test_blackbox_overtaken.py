"""The reader while the writer writes: what was half written, or written over, is never told."""

from __future__ import annotations

from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.header import GUARD_RECORDS
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity

CAPACITY = 256


def make(directory: Path) -> Writer:
    return Writer(directory, Identity(run="r"), phases=("forward",), capacity=CAPACITY)


def write(writer: Writer, numbers: range) -> None:
    for number in numbers:
        writer.append(RecordKind.SCALAR, 1, float(number), float(number), layout.SCALAR, 0.0, number)


def values(reader: Reader) -> list[int]:
    return [layout.SCALAR.unpack_from(each.payload)[1] for each in reader.poll().records()]


class FilledWhileCopied(Reader):
    """Its first copy of a slot holds the payload from before the writer came, and the number from after."""

    def __init__(self, path: Path, slot: int) -> None:
        super().__init__(path)
        self.payload = layout.RING_OFFSET + slot * layout.RECORD_SIZE + layout.PAYLOAD_OFFSET
        self.copied = False

    def _pread(self, size: int, offset: int) -> bytes:
        raw = bytearray(super()._pread(size, offset))
        if offset <= self.payload < offset + size and not self.copied:
            self.copied = True
            raw[self.payload - offset : self.payload - offset + layout.SCALAR.size] = layout.SCALAR.pack(
                0.0, -1
            )
        return bytes(raw)


def test_a_record_that_is_written_while_its_slot_is_copied_is_told_as_it_was_written(tmp_path: Path) -> None:
    """A copy is no single step: the number may be new in it and the payload that of a lap before."""
    writer = make(tmp_path)
    write(writer, range(10))
    assert values(FilledWhileCopied(writer.path, 9)) == list(range(10))


class Overtaken(Reader):
    """The writer writes on while it reads."""

    def __init__(self, path: Path, writer: Writer) -> None:
        super().__init__(path)
        self.writer = writer

    def _read_chunk(self, chunks: list[bytes]) -> bool:
        more = super()._read_chunk(chunks)
        write(self.writer, range(100, CAPACITY - GUARD_RECORDS))
        self.writer.next_slot()  # by a thread that stalls, or dies, before it fills it
        write(self.writer, range(CAPACITY - GUARD_RECORDS + 1, CAPACITY + 100))
        return more


def test_a_slot_that_nobody_fills_does_not_hide_that_the_reader_was_overtaken(tmp_path: Path) -> None:
    """Of all slots the one that shows it may be the one in which a thread has stalled."""
    writer = make(tmp_path)
    write(writer, range(100))
    reader = Overtaken(writer.path, writer)
    assert values(reader) == []
    assert reader.missed >= 100
