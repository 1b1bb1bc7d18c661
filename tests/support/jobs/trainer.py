"""The reference trainer as the processes of a small job, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import rankwatch
from rankwatch_trainer.checkpoints.store import CheckpointStore
from support.servers.prometheus import reserved_port

TINY = ("--layers", "2", "--width", "32", "--context", "32", "--corpus-bytes", "200000")
"""A model on the CPU that takes a few milliseconds per step."""
EMULATED = (
    *("--device", "emulated", "--layers", "2", "--corpus-bytes", "200000"),
    *("--layer-forward-seconds", "0.001", "--layer-backward-seconds", "0.001"),
)
DEADLINE_SECONDS = 240
"""Longest time that a job of these tests may take on a busy machine."""


@contextmanager
def started_ranks(
    count: int, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes of a job as torchrun does, but without its start-up time. At the end of the block
    those that still run are killed."""
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        yield [
            stack.enter_context(_started_rank(rank, count, port, arguments, environment or {}))
            for rank in range(count)
        ]


@contextmanager
def _started_rank(
    rank: int, count: int, port: int, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    quiet = {"RANKWATCH_DISABLE": "1", "PYTHONWARNINGS": "error"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rankwatch_trainer", *arguments],
        env={**os.environ, **place, **rendezvous, **quiet, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def end_record(output: str) -> dict[str, Any]:
    """The end record in the output of rank 0. It must be the only line of JSON."""
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    record: dict[str, Any] = json.loads(line)
    assert record["record"] == "end"
    return record


def read_history(path: Path) -> dict[str, list[Any]]:
    """The columns step, seconds and loss of a history file."""
    columns: dict[str, list[Any]] = json.loads(path.read_text())
    return columns


def plain_store(directory: Path, keep: int = 2) -> CheckpointStore:
    """A store without faults and without instrumentation."""
    return CheckpointStore(directory, rankwatch.DisabledRun(), keep=keep, write_file=Path.write_bytes)


def flip_a_byte(path: Path) -> None:
    """Damage a file as a failing disk does."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
