"""What a user names is opened without waiting for a writer that never comes."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.reading import diagnose
from rankwatch_diagnosis.opening import open_bytes
from rankwatch_diagnosis.operations.reading import read_operations


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


def test_line_limit(tmp_path: Path) -> None:
    """Few packed bytes may be gigabytes, so a line without an end is refused early."""
    path = tmp_path / "table.csv.gz"
    header = b"step,rank,operation,kind,start_seconds,duration_seconds\n"
    path.write_bytes(gzip.compress(header + b"9" * (20 << 20)))
    with pytest.raises(UserError, match="a line is longer than 8 MiB"):
        read_operations(path)
