"""Fake ranks and incidents, real black boxes, and fake py-spy programs for tests of incidents."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rankwatch.blackbox.reader import Reader
from rankwatch.conventions.states import IncidentKind, RankState
from rankwatch.untrusted.children import Limits
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.metrics_history import MetricsHistory
from rankwatch_agent.incidents.writer import BundleWriter
from rankwatch_agent.training.conditions import RankCondition, RunCondition
from support.agent.process import DEADLINE_SECONDS

NO_DIAGNOSIS = ("/bin/sh", "-c", """echo '{"state": "stalled", "hang": {"state": "hang", "ranks": [1]}}'""")
"""A fake diagnosis that names rank 1 for every bundle."""


def condition(
    number: int = 0,
    *,
    state: RankState = RankState.RUNNING,
    progress: float = 100.0,
    timeout: float | None = 10.0,
    path: Path | None = None,
    pid: int = 1,
    started: float | None = None,
    owner: int | None = None,
) -> RankCondition:
    """Returns the condition of a rank. Its last progress and its start are moments."""
    box = path or Path(f"/nowhere/job/{number}.blackbox")
    phase = ("forward", progress)
    owner = os.geteuid() if owner is None else owner
    return RankCondition(number, box, state, progress, timeout, phase, pid, started=started, owner=owner)


def run_of(ranks: Sequence[RankCondition], *, run: str = "job", moment: float = 100.0) -> RunCondition:
    """Returns the condition of a run at a moment."""
    return RunCondition(run=run, moment=moment, ranks=tuple(ranks), suspected_since=None)


def incident(
    ranks: Sequence[RankCondition],
    *,
    run: str = "job",
    kind: IncidentKind = IncidentKind.STALL,
    moment: float = 200.0,
    number: int = 1,
) -> Incident:
    """Returns an incident opened at a moment."""
    return Incident(number, run, kind, moment, 100.0, run_of(ranks, run=run, moment=moment))


def boxed(path: Path, **how: object) -> RankCondition:
    """Returns the condition of a rank with a real black box."""
    with closing(Reader(path)) as reader:
        header = reader.header
        made = condition(header.identity.rank, path=path, pid=header.pid)
        return made._replace(**{"last_progress": header.started_monotonic, **how})


def writer(**how: object) -> BundleWriter:
    """Returns a bundle writer with long deadlines. Tests of hung parts set their own."""
    settings = {
        "history": MetricsHistory(),
        "node": "n1",
        "max_bytes": 64 << 20,
        "diagnosis": NO_DIAGNOSIS,
        "recorder_seconds": DEADLINE_SECONDS,
        "stack_seconds": DEADLINE_SECONDS,
        "verdict_limits": Limits(
            seconds=DEADLINE_SECONDS, cpu_seconds=600, memory_bytes=1 << 30, output_bytes=1 << 20
        ),
        "environ": {"PATH": "/nowhere"},
        **how,
    }
    return BundleWriter(**settings)  # type: ignore[arg-type]  # of all settings at once


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """Mounts a small file system."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
