"""The black box: a reader gets what the writer wrote, and refuses or counts anything else."""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.records import GUARD_RECORDS, columns_of
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import BlackBoxError
from rankwatch.identity import Identity
from support.fuzzing import BUSY_MACHINE

CAPACITY = 256
IDENTITY = Identity(run="r", rank=2, world_size=4, local_rank=1, host="h", coordinates={"pp": (1, 2)})


def make(directory: Path, *, capacity: int = CAPACITY) -> Writer:
    writer = Writer(directory, IDENTITY, phases=("forward",), target_steps=50, capacity=capacity)
    writer.path.chmod(0o644)  # tests write to it
    return writer


def write(writer: Writer, count: int, first: int = 0) -> None:
    for value in range(first, first + count):
        writer.append(RecordKind.SCALAR, 1, 1.0, 1.0, layout.SCALAR, float(value), value)


def values(reader: Reader) -> list[int]:
    return [layout.SCALAR.unpack_from(each.payload)[1] for each in reader.poll().records()]


def test_header(tmp_path: Path) -> None:
    """Identity, target and clocks are read as they were written."""
    header = Reader(make(tmp_path).path).header
    assert (header.identity, header.target_steps, header.pid) == (IDENTITY, 50, os.getpid())
    assert header.wall(header.started_monotonic + 1.0) == header.started_wall + 1.0


@pytest.mark.parametrize(("written", "read"), [("#team", "#team"), ("{{ .x }}", ""), ("a@b.c, d@e.f", "")])
def test_contact_of_a_box(written: str, read: str, tmp_path: Path) -> None:
    """A reader checks it again: a box is written by whoever trains, and the contact is mailed to."""
    writer = Writer(tmp_path, Identity(run="r"), phases=(), contact=written)
    assert Reader(writer.path).header.contact == read


@pytest.mark.parametrize(
    ("before", "burst", "least"),
    [(0, 100, 100), (10, 1000, 1), (1000, 500, CAPACITY - 3 * GUARD_RECORDS)],
    ids=["in time", "overtaken", "late and always overtaken"],
)
def test_polls(tmp_path: Path, before: int, burst: int, least: int) -> None:
    """A poll returns what is left of the newest records, once and in order, also around the end of the ring.
    Records read plus records missed are those written."""
    writer = make(tmp_path)
    write(writer, before)
    reader = Reader(writer.path)
    read = len(values(reader))
    for first in range(before, before + 20 * burst, burst):
        write(writer, burst, first)
        rest = values(reader)
        assert rest == list(range(first + burst - len(rest), first + burst))
        assert least <= len(rest) < CAPACITY
        read += len(rest)
        assert read + reader.missed == first + burst


@pytest.mark.parametrize("count", range(CAPACITY - GUARD_RECORDS - 2, CAPACITY + 3 * GUARD_RECORDS, 7))
def test_full_ring(tmp_path: Path, count: int) -> None:
    """A first reader of a ring that is full, or nearly so, gets its newest records: only the oldest ones may
    be overwritten meanwhile. Records read plus records missed are those written."""
    writer = make(tmp_path)
    write(writer, count)
    reader = Reader(writer.path)
    read = [record for columns in reader.read_to_end() for record in columns.records()]
    numbers = [layout.SCALAR.unpack_from(each.payload)[1] for each in read]
    assert numbers == list(range(reader.missed, count))
    assert reader.missed <= max(0, count - CAPACITY + 2 * GUARD_RECORDS)


def test_threads(tmp_path: Path) -> None:
    """Threads that write at once lose no record, although there is no lock."""
    writer = make(tmp_path, capacity=8192)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(partial(write, writer, 1000), range(0, 4000, 1000)))
    assert sorted(values(Reader(writer.path))) == list(range(4000))


def test_empty_slot(tmp_path: Path) -> None:
    """A reader skips and counts a slot that stays empty. A thread may die before it fills its slot."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    write(writer, 2)
    writer.next_slot()
    write(writer, 2, 2)
    seen: list[int] = []
    for _ in range(5):
        seen += values(reader)
    assert seen == [0, 1, 2, 3]
    assert reader.missed == 1


def test_names(tmp_path: Path) -> None:
    """Long names are cut. Once the table is full, a name gets number 0, which reads as empty."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    long = writer.name_number("x" * 500)
    assert reader.name(long) == "x" * 63
    numbers = {writer.name_number(f"name{each}") for each in range(1000)}
    assert max(numbers) == layout.NAME_COUNT - 1
    assert 0 in numbers
    assert reader.name(0) == ""
    assert reader.name(10**6) == ""


@pytest.mark.process
def test_dead_writer(tmp_path: Path) -> None:
    """The kernel drops the writer's lock when it dies, so readers notice the death."""
    pid = os.fork()
    if pid == 0:
        make(tmp_path)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    reader = Reader(next(tmp_path.glob("r/*.blackbox")))
    assert not reader.writer_alive()


def test_replaced_box(tmp_path: Path) -> None:
    """After a new process has replaced the box, a reader still reads the old file and reports the change."""
    first = make(tmp_path)
    reader = Reader(first.path)
    assert not reader.replaced()
    write(first, 1)
    make(tmp_path)
    assert reader.replaced()
    assert values(reader) == [0]


def corrupt(offset: int, data: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return change


def resize(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def instead(create: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        create(path)

    return change


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("truncated", resize(0)),
        ("truncated", resize(100)),
        ("truncated", resize(layout.RING_OFFSET)),
        ("oversized", resize(1 << 22)),
        ("garbage", corrupt(0, b"NOTABOX!")),
        ("version", corrupt(8, struct.pack("<I", 99))),
        ("garbage", corrupt(16, struct.pack("<I", 128))),
        ("oversized", corrupt(24, struct.pack("<Q", 1 << 60))),
        ("oversized", corrupt(24, struct.pack("<Q", 0))),
        ("garbage", corrupt(64, struct.pack("<i", -5))),
        ("garbage", corrupt(80, struct.pack("<d", float("nan")))),
        ("garbage", corrupt(104, b"\0" * 128)),
        ("symlink", instead(lambda path: path.symlink_to("/etc/passwd"))),
        ("not_a_file", instead(Path.mkdir)),
        ("not_a_file", instead(os.mkfifo)),  # whose opening would wait for another process
    ],
)
def test_unusable_file(tmp_path: Path, reason: str, change: Callable[[Path], None]) -> None:
    """The reader refuses it with a reason of one word, and the message names the file."""
    path = make(tmp_path).path
    change(path)
    with pytest.raises(BlackBoxError, match=re.escape(str(path))) as caught:
        Reader(path)
    assert caught.value.reason == reason


def test_truncated_while_open(tmp_path: Path) -> None:
    """Truncation is an error. If the reader mapped the file, it would die of SIGBUS."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    os.truncate(writer.path, layout.RING_OFFSET + 10)
    with pytest.raises(BlackBoxError) as caught:
        reader.poll().records()
    assert caught.value.reason == "truncated"


@settings(BUSY_MACHINE, max_examples=150)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, layout.RING_OFFSET + CAPACITY * 64 - 1), st.binary(min_size=1, max_size=64)),
        max_size=12,
    ),
    size=st.none() | st.integers(0, 1 << 18),
)
def test_any_content(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], size: int | None
) -> None:
    """Whatever bytes a box holds, reading returns values or raises BlackBoxError, and names are valid
    text."""
    writer = make(tmp_path_factory.mktemp("fuzz"))
    write(writer, 200)
    for offset, data in changes:
        corrupt(offset, data)(writer.path)
    if size is not None:
        os.truncate(writer.path, size)
    try:
        with closing(Reader(writer.path)) as reader:
            for _ in range(5):
                for record in reader.poll().records():
                    reader.name(record.name).encode()
            reader.now()
            assert reader.missed >= 0
    except BlackBoxError as error:
        assert error.reason


@settings(BUSY_MACHINE, max_examples=60)
@given(
    sequences=st.lists(st.tuples(st.integers(0, CAPACITY - 1), st.integers(0, 2**64 - 1)), max_size=30),
    count=st.integers(0, 700),
)
def test_any_sequence_numbers(
    tmp_path_factory: pytest.TempPathFactory, sequences: list[tuple[int, int]], count: int
) -> None:
    """Whatever the sequence numbers, a poll ends and returns no more records than the ring holds."""
    writer = make(tmp_path_factory.mktemp("fuzz"))
    write(writer, count)
    for slot, number in sequences:
        at = layout.RING_OFFSET + slot * layout.RECORD_SIZE + 24
        corrupt(at, number.to_bytes(8, "little"))(writer.path)
    with closing(Reader(writer.path)) as reader:
        for _ in range(6):
            assert len(reader.poll().records()) <= CAPACITY


def test_unpackable_record(tmp_path: Path) -> None:
    """A record that cannot be packed counts as missed, and readers do not wait for its slot."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    with pytest.raises(struct.error):
        writer.append(RecordKind.SCALAR, 1, 1.0, 1.0, layout.SCALAR, 1.0, 2.5)
    write(writer, 1)
    assert values(reader) == [0]
    assert reader.missed == 1


def test_name_that_is_not_text(tmp_path: Path) -> None:
    """It uses up no number. Otherwise a wrong name in every step would fill the table."""
    writer = make(tmp_path)
    for _ in range(1000):
        with pytest.raises(AttributeError):
            writer.name_number(5)  # type: ignore[arg-type]
    assert writer.name_number("loss") == 2


@pytest.mark.parametrize(("start", "end"), [(-1.7e308, 1.7e308), (-1.0, 1.0), (0.0, 1e12)])
def test_impossible_times(tmp_path: Path, start: float, end: float) -> None:
    """Records with impossible times count as missed. An infinite difference would spoil every total."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    writer.append(RecordKind.SCALAR, 1, start, end, layout.SCALAR, 1.0, 1)
    assert reader.poll().records() == []
    assert reader.missed == 1


def test_leftover_temporary_file(tmp_path: Path) -> None:
    """A file left by a process with the same id is replaced. In a container every start has the same id."""
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / f".2.blackbox.{os.getpid()}").write_bytes(b"")
    assert make(tmp_path).path.exists()


@settings(BUSY_MACHINE, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 8, 9, 1 << 20]),
            st.integers(0, 0xFFFF),
            st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf, 1e10]),
            st.sampled_from([0.0, 1.0, 2.0, math.nan, math.inf, 1e10]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_columns(records: list[tuple[int, int, float, float]]) -> None:
    """Rows and columns hold the same valid records: a known kind, and possible times in their order."""
    raw = b"".join(
        layout.HEAD.pack(kind << 16 | name, start, end, 0) + bytes([number] * 32)
        for number, (kind, name, start, end) in enumerate(records)
    )
    expected = [
        (kind, name, start, end, bytes([number] * 32))
        for number, (kind, name, start, end) in enumerate(records)
        if kind in set(RecordKind) and 0.0 <= start <= end < 1e10
    ]
    columns = columns_of(raw)
    assert columns.records() == expected
    assert [layout.SCALAR.unpack_from(raw, at) for at in columns.payloads] == [
        layout.SCALAR.unpack_from(each[4]) for each in expected
    ]


def test_slot_filled_while_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is read as it was written, although a copy is not atomic: the first one of the last slot has
    a new number and an old payload."""
    writer = make(tmp_path)
    write(writer, 10)
    reader = Reader(writer.path)
    payload = layout.RING_OFFSET + 9 * layout.RECORD_SIZE + layout.PAYLOAD_OFFSET
    read = reader._pread

    def first(size: int, offset: int) -> bytes:
        raw = bytearray(read(size, offset))
        if offset <= payload < offset + size:
            monkeypatch.undo()
            layout.SCALAR.pack_into(raw, payload - offset, 0.0, -1)
        return bytes(raw)

    monkeypatch.setattr(reader, "_pread", first)
    assert values(reader) == list(range(10))


def test_overtaken_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It returns nothing that may be overwritten, even if the slot that it checks first stays empty, as where
    its thread has stalled or died."""
    writer = make(tmp_path)
    write(writer, 100)
    reader = Reader(writer.path)
    read_chunk = reader._read_chunk

    def overtaken(chunks: list[bytes]) -> bool:
        more = read_chunk(chunks)
        empty = CAPACITY - GUARD_RECORDS
        write(writer, empty - 100, 100)
        writer.next_slot()
        write(writer, CAPACITY + 99 - empty, empty + 1)
        return more

    monkeypatch.setattr(reader, "_read_chunk", overtaken)
    assert values(reader) == []
    assert reader.missed >= 100


def test_skip_reads_few_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that fell behind skips to the head of the largest ring without reading the ring.

    Anybody may write a box, and reading a large ring whole at every poll would cost the agent seconds.
    """
    writer = Writer(tmp_path, Identity(run="r"), phases=["p"], capacity=layout.MAX_CAPACITY)
    reader = Reader(writer.path)
    newest = 3 * layout.MAX_CAPACITY + 70_000
    for slot in range(layout.MAX_CAPACITY):
        number = newest - (newest - slot) % layout.MAX_CAPACITY
        layout.HEAD.pack_into(
            writer.target, layout.RING_OFFSET + slot * layout.RECORD_SIZE, 65537, 1.0, 1.0, number
        )
    read = 0
    pread = os.pread

    def counted(file: int, size: int, offset: int) -> bytes:
        nonlocal read
        read += size
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    count = len(reader.poll(1).tags)
    assert read < 1 << 20
    count += sum(len(part.tags) for part in reader.read_to_end())
    assert count + reader.missed == newest + 1
    assert count == layout.MAX_CAPACITY - 2 * GUARD_RECORDS
    reader.close()
