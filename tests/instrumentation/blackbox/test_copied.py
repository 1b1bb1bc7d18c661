"""Memory that is copied into a box: readers see the same, and nobody who cuts the file ends the training."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from rankwatch.blackbox import copied, layout
from rankwatch.blackbox.capturing import may_ask
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.records import Columns
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import BlackBoxError
from rankwatch.identity import Identity
from rankwatch.logs.lines import LineWriter, Source, read_lines_at
from rankwatch.untrusted.folders import Folder
from support.agent.process import until
from support.processes.users import ALICE, run_as
from support.training.blackbox import header, now

SECONDS = 60.0
"""Deadline of what takes a tenth of a second."""


def write(writer: Writer, count: int, first: int = 0) -> None:
    for value in range(first, first + count):
        writer.append(RecordKind.SCALAR, 1, 1.0, 1.0, layout.SCALAR, float(value), value)


def numbers(columns: Iterable[Columns]) -> list[int]:
    """The values of the scalars that `write` has written."""
    return [layout.SCALAR.unpack_from(each.payload)[1] for part in columns for each in part.records()]


def values(path: Path) -> list[int]:
    with closing(Reader(path)) as reader:
        return numbers(reader.read_to_end())


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Its thread copies nothing: the tests do."""
    monkeypatch.setattr(copied, "_PAUSE_SECONDS", 1e6)
    return Writer(tmp_path, Identity(run="job"), phases=("forward",), capacity=1000, copied=True)


def copy(writer: Writer) -> None:
    assert writer._copies is not None
    writer._copies.copy()


def test_what_readers_see(writer: Writer) -> None:
    """Header, names, now block and records are those of the memory, also after the ring has come round."""
    reader = Reader(writer.path)
    assert reader.header.lag_seconds == layout.LAG_SECONDS
    writer.integers[Now.STEP] = 7
    seen: list[int] = []
    for first in range(0, 5000, 100):
        write(writer, 100, first)
        copy(writer)
        seen += numbers([reader.poll()])
    assert seen == list(range(5000))
    assert reader.missed == 0
    assert reader.now().step == 7
    assert reader.name(1) == "forward"


@pytest.mark.parametrize("seed", range(20))
def test_any_pace(writer: Writer, seed: int) -> None:
    """The file is as the memory after each copy, as long as the ring does not come round between two of them;
    after that it takes a second at most."""
    chance = random.Random(seed)
    for _ in range(60):
        write(writer, chance.choice((0, 1, 63, 64, 65, chance.randrange(800))))
        copy(writer)
        assert writer.path.read_bytes() == bytes(writer.target)
    for _ in range(20):
        write(writer, chance.randrange(5000))
        for _ in range(copied._ALL_EACH):
            copy(writer)
        assert writer.path.read_bytes() == bytes(writer.target)


def test_overtaken(writer: Writer) -> None:
    """A writer that is faster than the copies loses records, which the reader counts."""
    reader = Reader(writer.path)
    for first in range(0, 15000, 5000):
        write(writer, 5000, first)
        copy(writer)
        reader.poll()
    assert 10000 < reader.missed < 15000


def test_end(writer: Writer) -> None:
    """The end of a run is in the file when `unlock` returns; what is written later is not."""
    write(writer, 1)
    writer.unlock()
    write(writer, 1, 1)
    assert values(writer.path) == [0]


def test_cut(writer: Writer) -> None:
    """Whoever has the file open meanwhile reads that it was cut. The next copy brings all of it back."""
    write(writer, 10)
    copy(writer)
    reader = Reader(writer.path)
    writer.path.chmod(0o644)
    os.truncate(writer.path, 5000)
    with pytest.raises(BlackBoxError) as caught:
        reader.poll()
    assert caught.value.reason == "truncated"
    write(writer, 10, 10)
    copy(writer)
    assert values(writer.path) == list(range(20))


@pytest.mark.parametrize("copies", [copied._ALL_EACH, 0])
def test_cut_during_a_copy(writer: Writer, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write behind the cut gives the file its old size again, so the size tells nothing. It is whole
    after a second, and when the run ends."""
    copy(writer)
    write_to = os.pwrite

    def cut_before(file: int, part: bytes, at: int) -> int:
        monkeypatch.undo()
        os.truncate(writer.path, 0)
        return write_to(file, part, at)

    writer.path.chmod(0o644)
    monkeypatch.setattr("os.pwrite", cut_before)
    write(writer, 1000)
    copy(writer)
    assert not Path(writer.path).read_bytes().startswith(layout.MAGIC)
    for _ in range(copies):
        copy(writer)
    if not copies:
        writer.unlock()
    assert writer.path.read_bytes() == bytes(writer.target)


def test_capture(writer: Writer) -> None:
    """A capture is announced in the file before anybody can ask: the thread would be too late."""
    writer.integers[Now.CAPTURING] = 1
    assert writer.wait_for_questions()
    with may_ask(writer.path, os.geteuid()) as free:
        assert not free


def test_descriptor_that_was_closed(writer: Writer, tmp_path: Path) -> None:
    """A program that closes all descriptors, as daemons do, gets the same numbers for its own files. Nothing
    is written to them."""
    assert writer._copies is not None
    os.close(writer._copies._file)
    theirs = os.open(tmp_path / "checkpoint", os.O_RDWR | os.O_CREAT)
    os.dup2(theirs, writer._copies._file)
    with pytest.raises(OSError, match="another file"):
        copy(writer)
    writer.unlock()
    assert (tmp_path / "checkpoint").read_bytes() == b""


def test_file_system_that_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that outlives the box writes nothing into the file that has the box's number by then."""
    stalled, go_on = threading.Event(), threading.Event()
    write = os.pwrite

    def stalling(file: int, part: bytes, at: int) -> int:
        if b"box" in part and at == layout.RING_OFFSET:
            stalled.set()
            go_on.wait(SECONDS)
        return write(file, part, at)

    monkeypatch.setattr("os.pwrite", stalling)
    monkeypatch.setattr(layout, "LAG_SECONDS", 0.01)
    size = layout.RING_OFFSET + (64 << 10)
    file = os.open(tmp_path / "box", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, size)
    copies = copied.CopiedFile(file, size, part_bytes=4096, ring_offset=layout.RING_OFFSET)
    for at in range(layout.RING_OFFSET, size, 4096):
        copies.memory[at : at + 3] = b"box"
    assert stalled.wait(SECONDS)
    copies.close()
    os.close(file)
    later = [os.open(tmp_path / f"{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
    assert file in later
    go_on.set()
    copies._thread.join(SECONDS)
    assert not copies._thread.is_alive()
    assert [os.fstat(each).st_size for each in later] == [0] * 8
    assert (tmp_path / "box").read_bytes().count(b"box") == 16
    for each in later:
        os.close(each)


def test_thread(tmp_path: Path) -> None:
    """It brings box and lines up to date by itself, and repairs what was cut."""
    writer = Writer(tmp_path, Identity(run="job"), phases=(), capacity=256, copied=True)
    note = LineWriter(Folder.open(tmp_path), "0.lines", copied=True)

    def holds(steps: list[int]) -> bool:
        try:
            lines = [each.step for each in read_lines_at(tmp_path / "0.lines")]
            return values(writer.path) == lines == steps
        except BlackBoxError:  # it is cut
            return False

    for steps in ([0], [0, 1]):
        write(writer, 1, steps[-1])
        note.write("text", source=Source.LOG, severity=9, step=steps[-1])
        until(partial(holds, steps), "the copies")
        for path in (writer.path, tmp_path / "0.lines"):
            path.chmod(0o644)
            os.truncate(path, 0)
        until(partial(holds, steps), "whole files")
    writer.unlock()
    note.close()


@pytest.mark.process
def test_forked_child(writer: Writer) -> None:
    """It is not the rank: what it writes reaches no file."""
    child = os.fork()
    if child == 0:
        writer.detach()
        write(writer, 5)
        writer.wait_for_questions()
        os._exit(0)
    os.waitpid(child, 0)
    copy(writer)
    assert values(writer.path) == []


TRAINER = """
import os, sys, threading, rankwatch
os.setuid(int(sys.argv[1]))
run = rankwatch.start(run="job", collectives=False, flight_recorder=False)
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), over.set())).start()
print("ready", flush=True)
with run:
    while not over.is_set():
        with run.step():
            with run.phase("forward"):
                print("a line", file=sys.stderr)
print(type(run).__name__, flush=True)
"""
CUT = """
refused = 0
for _ in range(1000):
    for name in ("0.blackbox", "0.lines"):
        path = directory / "job" / name
        if arguments[0] == "copied":
            path.chmod(0o644)
        try:
            path.open("wb").close()
        except PermissionError:
            refused += 1
assert refused == (0 if arguments[0] == "copied" else 2000), refused
"""


@pytest.mark.process
@pytest.mark.parametrize("mode", ["mapped", "copied"])
def test_cut_by_the_same_user(node_directory: Path, mode: str) -> None:
    """The training goes on: `: > 0.blackbox` is refused to the own user, and where another tenant with the
    same user id may change the mode of the file before, nothing is mapped. SIGBUS would end it."""
    variables = {"RANKWATCH_DIR": str(node_directory), "RANKWATCH_BOX_WRITES": mode}
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(ALICE)],
        env={**os.environ, **variables, "RANKWATCH_LOG_LINES": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as training:
        try:
            assert training.stdout is not None
            assert training.stdout.readline() == "ready\n"
            run_as(ALICE, node_directory, CUT, mode)
            stdout, _ = training.communicate("\n", timeout=SECONDS)
        finally:
            training.kill()
    assert (training.returncode, stdout) == (0, "Run\n")
    path = node_directory / "job" / "0.blackbox"
    assert (now(path).ended_by, header(path).lag_seconds) == ("finished", 1.0 * (mode == "copied"))
    assert len(read_lines_at(node_directory / "job" / "0.lines")) == 200
