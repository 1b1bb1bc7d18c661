"""The traces of real jobs under PyTorch's profiler: the slow rank is named, and in a healthy job nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_cli.main import main
from rankwatch_diagnosis.operations.reading import read_operations
from rankwatch_diagnosis.straggler.engine import diagnose
from support.jobs.forked_ranks import shared_ranks
from support.paths import SUPPORT

pytestmark = pytest.mark.process

JOB = SUPPORT / "jobs" / "profiled_ddp.py"
RANKS, SLOW_RANK = 4, 2
SLOWER_LAYERS, SLOWER_BATCHES = 0.12, 0.055
"""Seconds that the slow rank adds to a step, by the job's constants. A busy machine makes the step itself
longer."""
MOST_BY_THE_MACHINE = 1.08


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traces")
    log = directory / "log"
    statuses = shared_ranks().run((str(JOB), str(directory), str(SLOW_RANK)), {}, ranks=RANKS, log=log)
    assert statuses == [0] * RANKS, log.read_text()
    return directory


def verdict(directory: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["diagnose", "trace", str(directory), "--json", *flags]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def missing(evidence: Any) -> list[str]:
    """Sentences on what was not recorded; a busy machine may make a job look bound by communication."""
    return [each for each in evidence.get("not_shown", ()) if "annotated" in each or "record_shapes" in each]


@pytest.mark.parametrize(
    ("name", "phase", "seconds"),
    [
        ("compute", SlowPhase.COMPUTE, SLOWER_LAYERS),
        ("loading", SlowPhase.DATA_LOADING, SLOWER_BATCHES),
        ("unshaped", SlowPhase.COMPUTE, SLOWER_LAYERS),
    ],
)
def test_slow_rank(
    traces: Path, capsys: pytest.CaptureFixture[str], name: str, phase: SlowPhase, seconds: float
) -> None:
    """A rank whose layers or batches take longer is named with the phase and cost, with and without steps.

    Waits begin in one thread and end in another, so a wrong reading would miss most of the cost.
    """
    found = verdict(traces / name, capsys)
    assert (found["cause"], found["phase"], found["ranks"]) == (Cause.SLOW_RANK, phase, [SLOW_RANK])
    cost = found["evidence"]["step_seconds"] * (1.0 - 1.0 / found["slowdown"])
    assert cost == pytest.approx(seconds, rel=0.35)


def test_healthy_job(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is named, and collectives have their sizes.

    On a busy machine the scheduler does make a rank slower by some percent for a few steps.
    """
    found = verdict(traces / "healthy", capsys)
    assert found["ranks"] == [] or found["slowdown"] < MOST_BY_THE_MACHINE
    evidence = found["evidence"]
    assert not missing(evidence)
    (reduced,) = evidence["collectives"]
    assert (reduced["operation"], reduced["runs_per_step"]) == ("all_reduce", 1.0)
    assert reduced["bytes_per_step"] == 2 * 4 * (64 * 64 + 64)


def test_what_is_missing(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the profiler was not told to record is said."""
    steps, sizes = missing(verdict(traces / "unshaped", capsys)["evidence"])
    assert steps.startswith("no ProfilerStep is annotated")
    assert sizes.endswith("record_shapes was off")


def test_table(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table of operations can be kept, and gives the same verdict."""
    kept = tmp_path / "a.csv.gz"
    found = verdict(traces / "compute", capsys, "--table", str(kept))
    table = read_operations(kept).table
    assert diagnose(table).slowdown == pytest.approx(found["slowdown"])
