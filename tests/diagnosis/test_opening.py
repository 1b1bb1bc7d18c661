"""What a user names is opened without waiting for a writer that never comes."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.detection import diagnose
from rankwatch_diagnosis.opening import open_bytes
from rankwatch_diagnosis.operations.reading import read_operations
from rankwatch_profiler_traces.reading import read_trace


def test_pipe_without_writer(tmp_path: Path) -> None:
    """Both commands report an empty file instead of blocking for ever."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with open_bytes(pipe) as file:
        assert file.read() == b""
    with pytest.raises(UserError, match="is empty"):
        diagnose(pipe)
    with pytest.raises(UserError, match=r"could not read|is empty"):
        read_operations(pipe)


def test_pipe_with_writer(tmp_path: Path) -> None:
    """As in `rankwatch diagnose loss <(grep loss train.log)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # opens without a reader
    os.write(writer, b"step 1 loss 2.0\n")
    with open_bytes(pipe) as file:
        os.close(writer)
        assert file.read() == b"step 1 loss 2.0\n"


HEADER = b"step,rank,operation,kind,start_seconds,duration_seconds,loss\n"


def test_line_limit(tmp_path: Path) -> None:
    """A line without an end is refused early."""
    path = tmp_path / "table.csv"
    path.write_bytes(HEADER + b"9" * (20 << 20))
    with pytest.raises(UserError, match="a line is longer than 8 MiB"):
        read_operations(path)


@pytest.mark.parametrize("byte", [b"\n", b"0", b"{"])
def test_small_file_that_unpacks_to_much(tmp_path: Path, byte: bytes) -> None:
    """Few packed bytes may be gigabytes, for hours. Whatever reads a gzip refuses one that nobody packs."""
    path = tmp_path / "0.json.gz"
    members = (gzip.compress(each, mtime=0) for each in (HEADER, byte * (24 << 20)))
    path.write_bytes(b"".join(members))
    reason = "unpacks to more than 100 times its size"
    for read in (read_operations, diagnose):
        named = path.rename(path.with_name("0.csv.gz"))
        with pytest.raises(UserError, match=reason):
            read(named)
        named.rename(path)
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + byte * (24 << 20)))
    assert reason in read_trace(path).error


def test_repeated_lines_are_read(tmp_path: Path) -> None:
    """A small log may be as monotonous as it likes."""
    path = tmp_path / "loss.csv.gz"
    path.write_bytes(gzip.compress(b"step,loss\n1,2.0\n" + b"\n" * 500_000))
    assert diagnose(path).counts.losses == 1
