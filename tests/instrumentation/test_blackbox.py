"""The black box: what is written is read, and whatever else a file holds is refused or counted."""

from __future__ import annotations

import math
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch.blackbox import layout
from rankwatch.blackbox.columns import columns_of
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import BlackBoxError
from rankwatch.identity import Identity
from support.fuzzing import BUSY_MACHINE

CAPACITY = 256


def make(directory: Path, *, capacity: int = CAPACITY) -> Writer:
    identity = Identity(run="r", rank=2, world_size=4, local_rank=1, host="h", coordinates={"pp": (1, 2)})
    return Writer(directory, identity, phases=("forward",), target_steps=50, capacity=capacity)


def write(writer: Writer, count: int, first: int = 0) -> None:
    for value in range(first, first + count):
        writer.append(RecordKind.SCALAR, 1, 1.0, 1.0, layout.SCALAR, float(value), value)


def values(reader: Reader) -> list[int]:
    return [layout.SCALAR.unpack_from(each.payload)[1] for each in reader.poll().records()]


def test_the_header_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Identity, target and clocks."""
    reader = Reader(make(tmp_path).path)
    header = reader.header
    assert header.identity == Identity(
        run="r", rank=2, world_size=4, local_rank=1, host="h", coordinates={"pp": (1, 2)}
    )
    assert header.target_steps == 50
    assert header.pid == os.getpid()
    assert header.wall(header.started_monotonic + 1.0) == header.started_wall + 1.0


def test_a_reader_gets_every_record_once_and_in_order(tmp_path: Path) -> None:
    """Poll after poll, also around the end of the ring."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    seen: list[int] = []
    for first in range(0, 2000, 100):
        write(writer, 100, first)
        seen += values(reader)
    assert seen == list(range(2000))
    assert reader.missed == 0


def test_what_was_overwritten_is_counted_as_missed(tmp_path: Path) -> None:
    """Read plus missed is what was written."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    write(writer, 10)
    assert len(values(reader)) == 10
    write(writer, 1000, 10)
    assert values(reader) == []
    rest = values(reader)
    assert rest == list(range(1010 - len(rest), 1010))
    assert reader.missed == 1000 - len(rest)
    assert 0 < len(rest) < CAPACITY


def test_records_of_several_threads_all_arrive(tmp_path: Path) -> None:
    """Slots are handed out without a lock."""
    writer = make(tmp_path, capacity=8192)
    threads = [threading.Thread(target=write, args=(writer, 1000, 1000 * each)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(values(Reader(writer.path))) == list(range(4000))


def test_a_slot_that_stays_empty_is_passed_over_and_counted(tmp_path: Path) -> None:
    """A thread may die between taking a slot and filling it."""
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


def test_names_come_back_and_the_table_never_overflows(tmp_path: Path) -> None:
    """Beyond the table a name is number 0, which reads as nothing; long ones are cut."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    long = writer.name_number("x" * 500)
    assert reader.name(long) == "x" * 63
    numbers = {writer.name_number(f"name{each}") for each in range(1000)}
    assert max(numbers) == layout.NAME_COUNT - 1
    assert 0 in numbers
    assert reader.name(0) == ""
    assert reader.name(10**6) == ""


def test_the_writers_death_is_seen_by_its_lock(tmp_path: Path) -> None:
    """The kernel drops the lock; a child that was forked does not hold it."""
    pid = os.fork()
    if pid == 0:
        make(tmp_path)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    reader = Reader(next(tmp_path.glob("r/*.blackbox")))
    assert not reader.writer_alive()


def test_a_new_process_replaces_the_box(tmp_path: Path) -> None:
    """The old reader still reads its own file and says that it was replaced."""
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


def replace_by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


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
        ("symlink", replace_by_link),
        ("not_a_file", replace_by_directory),
    ],
)
def test_a_file_that_is_no_usable_box_is_refused_with_a_reason(
    tmp_path: Path, reason: str, change: Callable[[Path], None]
) -> None:
    """One exception, one countable word, and the file in the message."""
    path = make(tmp_path).path
    change(path)
    with pytest.raises(BlackBoxError) as caught:
        Reader(path)
    assert caught.value.reason == reason
    assert str(path) in str(caught.value)


def test_a_fifo_does_not_hang_the_reader(tmp_path: Path) -> None:
    """Opening never waits for another process."""
    path = tmp_path / "0.blackbox"
    os.mkfifo(path)
    with pytest.raises(BlackBoxError):
        Reader(path)


def test_a_box_that_is_cut_short_while_it_is_read_is_an_error_and_no_crash(tmp_path: Path) -> None:
    """A mapped file would end the reader by SIGBUS."""
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
def test_no_file_makes_the_reader_raise_anything_else(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], size: int | None
) -> None:
    """Whatever bytes a box holds, reading gives values or BlackBoxError, and names are text."""
    writer = make(tmp_path_factory.mktemp("fuzz"))
    write(writer, 200)
    for offset, data in changes:
        corrupt(offset, data)(writer.path)
    if size is not None:
        os.truncate(writer.path, size)
    reader = None
    try:
        reader = Reader(writer.path)
        for _ in range(5):
            for record in reader.poll().records():
                reader.name(record.name).encode()
        reader.now()
        assert reader.missed >= 0
    except BlackBoxError as error:
        assert error.reason
    finally:
        if reader is not None:
            reader.close()


@settings(BUSY_MACHINE, max_examples=60)
@given(
    sequences=st.lists(st.tuples(st.integers(0, CAPACITY - 1), st.integers(0, 2**64 - 1)), max_size=30),
    count=st.integers(0, 700),
)
def test_no_sequence_numbers_make_the_reader_spin_or_go_back(
    tmp_path_factory: pytest.TempPathFactory, sequences: list[tuple[int, int]], count: int
) -> None:
    """A poll always ends, and never hands out more than the ring holds."""
    writer = make(tmp_path_factory.mktemp("fuzz"))
    write(writer, count)
    for slot, number in sequences:
        at = layout.RING_OFFSET + slot * layout.RECORD_SIZE + 24
        corrupt(at, number.to_bytes(8, "little"))(writer.path)
    reader = Reader(writer.path)
    for _ in range(6):
        assert len(reader.poll().records()) <= CAPACITY
    reader.close()


def test_a_record_that_cannot_be_packed_leaves_no_gap_to_wait_for(tmp_path: Path) -> None:
    """The records behind it are read at once; it counts as missed."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    with pytest.raises(struct.error):
        writer.append(RecordKind.SCALAR, 1, 1.0, 1.0, layout.SCALAR, 1.0, 2.5)
    write(writer, 1)
    assert values(reader) == [0]
    assert reader.missed == 1


def test_what_is_no_text_uses_up_no_name(tmp_path: Path) -> None:
    """A number given as a name in every step would fill the table."""
    writer = make(tmp_path)
    for _ in range(1000):
        with pytest.raises(AttributeError):
            writer.name_number(5)  # type: ignore[arg-type]
    assert writer.name_number("loss") == 2


@pytest.mark.parametrize(("start", "end"), [(-1.7e308, 1.7e308), (-1.0, 1.0), (0.0, 1e12)])
def test_times_that_no_clock_shows_are_missed(tmp_path: Path, start: float, end: float) -> None:
    """Their difference would be infinite, and every total with it."""
    writer = make(tmp_path)
    reader = Reader(writer.path)
    writer.append(RecordKind.SCALAR, 1, start, end, layout.SCALAR, 1.0, 1)
    assert reader.poll().records() == []
    assert reader.missed == 1


def test_a_file_left_by_a_process_of_the_same_id_is_no_obstacle(tmp_path: Path) -> None:
    """In a container every start has the same process id."""
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
def test_only_records_that_make_sense_are_told_and_row_by_row_as_column_by_column(
    records: list[tuple[int, int, float, float]],
) -> None:
    """A kind that there is, and times that a clock may show, in their order."""
    raw = b"".join(
        layout.HEAD.pack(kind << 16 | name, start, end, 0) + bytes([number] * 32)
        for number, (kind, name, start, end) in enumerate(records)
    )
    expected = [
        (kind, name, start, end, bytes([number] * 32))
        for number, (kind, name, start, end) in enumerate(records)
        if 1 <= kind <= 8 and 0.0 <= start <= end < 1e10
    ]
    columns = columns_of(raw)
    assert columns.records() == expected
    assert [layout.SCALAR.unpack_from(raw, at) for at in columns.payloads] == [
        layout.SCALAR.unpack_from(each[4]) for each in expected
    ]
