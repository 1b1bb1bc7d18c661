"""Following the kernel log, or a file or FIFO of the same form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.kernel_log_lines import KernelLogReader, KernelRecord, parse_record

MANY = 1000


def line(sequence: int, text: str = "hello") -> str:
    return f"6,{sequence},{sequence * 1000},-;{text}\n"


def texts(reader: KernelLogReader, max_lines: int = MANY) -> list[str]:
    return [record.text for record in reader.read(max_lines)]


def test_parse_record() -> None:
    """Escaped newlines become spaces. Other bytes stay escaped, so that a log keeps its lines."""
    raw = b"6,1234,5678901,-,caller=T12;NVRM: one\\x0aNVRM: two \\x1b[31m"
    assert parse_record(raw) == KernelRecord(1234, 5.678901, "NVRM: one NVRM: two \\x1b[31m")


@pytest.mark.parametrize("raw", [b"", b" SUBSYSTEM=pci", b"6,1,2;no flags", b"x,1,2,-;text", b"6,1,2,-"])
def test_lines_that_are_no_record(raw: bytes) -> None:
    """Among them continuation lines."""
    assert parse_record(raw) is None


@settings(deadline=None)  # a busy machine is no fault of the parser
@given(st.binary(max_size=200))
def test_parser_survives_any_bytes(raw: bytes) -> None:
    """It returns a record or None."""
    parse_record(raw)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kmsg"


def test_file_is_followed(log: Path) -> None:
    """A partial line waits for its end."""
    log.write_text(line(1, "a") + " SUBSYSTEM=pci\n" + line(2, "b") + "6,3,3")
    reader = KernelLogReader(log)
    assert [texts(reader), texts(reader)] == [["a", "b"], []]
    with log.open("a") as file:
        file.write("000,-;c\n" + line(4, "d"))
    assert texts(reader) == ["c", "d"]
    assert reader.missed == 0


def test_replaced_or_truncated_file(log: Path) -> None:
    """Its sequence may restart, which is no gap."""
    log.write_text(line(7, "old") + line(8, "older"))
    reader = KernelLogReader(log)
    texts(reader)
    log.write_text(line(1, "truncated"))
    assert texts(reader) == ["truncated"]
    new = log.with_name("next")
    new.write_text(line(100, "replaced") + line(101, "more"))
    new.replace(log)
    assert texts(reader) == ["replaced", "more"]
    assert reader.missed == 0


def test_fifo(log: Path) -> None:
    """With and without a writer."""
    os.mkfifo(log)
    reader = KernelLogReader(log)
    assert texts(reader) == []
    for number in (1, 2):
        with log.open("w") as writer:
            writer.write(line(number, f"record {number}"))
            writer.flush()
            assert [texts(reader), texts(reader)] == [[f"record {number}"], []]


def test_missed_records(log: Path) -> None:
    """By the gap in the sequence. Records from before the start do not count."""
    log.write_text(line(500) + line(501) + line(510))
    reader = KernelLogReader(log)
    texts(reader)
    assert reader.missed == 8


def test_max_lines(log: Path) -> None:
    """The next run reads the rest; only then has the reader caught up."""
    count = 10_000
    log.write_text("".join(line(number) for number in range(count)))
    reader = KernelLogReader(log)
    first = texts(reader, 100)
    assert 100 <= len(first) < count
    assert not reader.caught_up
    assert len(first) + len(texts(reader, count)) == count
    texts(reader)
    assert reader.caught_up


def test_line_without_end(log: Path) -> None:
    """It costs neither memory nor the next line, and the reader returns although the line goes on."""
    endless = KernelLogReader(Path("/dev/zero"))
    assert (endless.read(10), endless.caught_up) == ([], False)
    endless.close()
    log.write_bytes(b"6,1,1,-;" + b"x" * (1 << 20) + b"\n" + line(2, "next").encode())
    first, second = KernelLogReader(log).read(MANY)
    assert (len(first.text) < 1 << 15, second.text) == (True, "next")


def test_missing_log(log: Path) -> None:
    """Most containers have none. One that appears later is read."""
    reader = KernelLogReader(log)
    with pytest.raises(NotApplicable):
        reader.read(MANY)
    log.write_text(line(1, "now"))
    assert texts(reader) == ["now"]
    log.unlink()
    with pytest.raises(NotApplicable):
        reader.read(MANY)


def test_no_permission(log: Path) -> None:
    """A privilege that was never granted is no failure, one that was revoked is. The message names it."""
    log.write_text(line(1))
    log.chmod(0)
    granted, user = log.with_name("granted"), os.geteuid()
    nobody = user or 65534  # root reads every file
    try:
        os.seteuid(nobody)
        with pytest.raises(NotApplicable, match="CAP_SYSLOG"):
            KernelLogReader(log).read(MANY)
        os.seteuid(user)
        reader = KernelLogReader(granted)
        granted.write_text(line(1))
        reader.read(MANY)
        log.replace(granted)
        os.seteuid(nobody)
        with pytest.raises(CollectError, match="Permission denied"):
            reader.read(MANY)
    finally:
        os.seteuid(user)


def test_directory_in_place_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match="Is a directory"):
        KernelLogReader(tmp_path).read(MANY)


def test_real_device() -> None:
    """The sequence has no gaps, also after the device is opened again."""
    device = Path("/dev/kmsg")
    if not os.access(device, os.R_OK):
        pytest.skip("/dev/kmsg is not readable here")
    reader = KernelLogReader(device)
    records: list[KernelRecord] = []
    try:
        while not reader.caught_up:
            records += reader.read(MANY)
    except CollectError as error:
        pytest.skip(f"/dev/kmsg is not readable here: {error}")
    numbers = [record.sequence for record in records]
    assert numbers == sorted(set(numbers))
    reader.close()
    assert all(record.sequence > numbers[-1] for record in reader.read(MANY))
    reader.close()
