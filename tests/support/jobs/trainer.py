"""The reference trainer as the processes of a small job, and what it writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rankwatch
from rankwatch_trainer.checkpoints import CheckpointStore
from support.jobs.forked_ranks import shared_ranks
from support.servers.prometheus import poll, reserved_port

TINY = ("--layers", "2", "--width", "32", "--context", "32", "--corpus-bytes", "200000")
"""A model on the CPU that takes a few milliseconds per step."""
EMULATED = (
    *("--device", "emulated", "--layers", "2", "--corpus-bytes", "200000"),
    *("--layer-forward-seconds", "0.001", "--layer-backward-seconds", "0.001"),
)
RANKS = 2
DEADLINE_SECONDS = 240
"""Longest time that a job of these tests may take on a busy machine."""


@dataclass(frozen=True)
class StartedRank:
    """One rank of a job, forked from a process that has imported torch."""

    pid: int
    _log: Path

    @property
    def printed(self) -> str:
        """Everything on stdout and stderr so far."""
        return self._log.read_text()

    def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        poll(lambda: shared_ranks().status(self.pid) is not None, DEADLINE_SECONDS, "end of a rank")
        status = shared_ranks().status(self.pid)
        assert status is not None
        return status


@contextmanager
def started_ranks(
    directory: Path, arguments: Sequence[str], environment: Mapping[str, str] = {}
) -> Iterator[list[StartedRank]]:
    """Start the two ranks of a job as torchrun does, but without their start-up time. Their logs go to the
    directory. A warning of Python ends them. At the end of the block those that still run are killed."""
    ranks = []
    with reserved_port() as port:
        for rank in range(RANKS):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            own = {**os.environ, "RANKWATCH_DISABLE": "1", "PYTHONWARNINGS": "error"}
            environ = {**own, **place, **rendezvous, **environment}
            log = directory / f"{port}-{rank}.log"
            log.touch()
            pid = shared_ranks().fork(("-m", "rankwatch_trainer", *arguments), environ, log=log)
            ranks.append(StartedRank(pid, log))
        try:
            yield ranks
        finally:
            shared_ranks().kill(each.pid for each in ranks)


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
