"""What an H200 recorded: four ranks with NCCL 2.28 and torch 2.11, which shared it by NCCL_HOSTID.

`tests/gpu/acceptance.sh` made the files (docs/testing.md). Paths in the dumps are replaced by others of the
same length. In the runs rank 2 does half as much again; in the hangs, the rank that is expected has slept, or
has called another size or operation.
"""

from __future__ import annotations

import json
import tarfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_agent.sources.nccl_ras.json_form import parse_json
from rankwatch_cli.main import main
from rankwatch_diagnosis.hang.verdict import State
from rankwatch_diagnosis.run.boxes import read_boxes
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.step_rows import rows_by_rank
from support.paths import SUPPORT

pytestmark = pytest.mark.process  # dumps are read in a process with limits


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked files."""
    directory = tmp_path_factory.mktemp("h200")
    with tarfile.open(SUPPORT / "recorded" / "h200.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The verdict of a command."""
    main(["diagnose", *arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("name", "state", "rank"),
    [("ring", State.HANG, 2), ("size", State.DESYNC, 1), ("operation", State.DESYNC, 1)],
)
def test_hang(recorded: Path, capsys: pytest.CaptureFixture[str], name: str, state: State, rank: int) -> None:
    """The rank is named, and no other: also where NCCL has let its broadcast end among all-reduces."""
    found = diagnosed(capsys, "hang", str(recorded / "hang" / name))
    assert (found["state"], found["ranks"]) == (state, [rank])


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("fsdp", SlowPhase.COMPUTE),
        ("tensor", SlowPhase.COMPUTE),
        ("host-phase", SlowPhase.COMPUTE),
        ("host-between", SlowPhase.OTHER),
        ("host-loader", SlowPhase.DATA_LOADING),
    ],
)
def test_slow_rank(recorded: Path, capsys: pytest.CaptureFixture[str], name: str, phase: SlowPhase) -> None:
    """It is named with its phase, also where its host keeps the GPU idle."""
    found = diagnosed(capsys, "run", str(recorded / "runs" / name))["straggler"]
    assert (found["cause"], found["ranks"], found["phase"]) == (Cause.SLOW_RANK, [2], phase)


@pytest.mark.parametrize("name", ["fsdp", "tensor"])
def test_own_time(recorded: Path, name: str) -> None:
    """It is the compute that each rank has timed on its stream by events of its own."""
    boxes = read_boxes(find_run(recorded / "runs" / name).boxes, copied=None)
    for rank, rows in rows_by_rank(boxes).items():
        own: dict[int, float] = defaultdict(float)
        for row in rows:
            own[row.step] += row.seconds if row.kind != "communication" else 0.0
        report = json.loads((recorded / "own" / f"{name}.{rank}.json").read_text())
        assert median(own.values()) * 1e3 == pytest.approx(report["own_ms"], rel=0.01)


def test_ras(recorded: Path) -> None:
    """NCCL's RAS counts launches of a communicator of four ranks."""
    (communicator,) = parse_json(bytearray((recorded / "ras.json").read_bytes())).communicators
    assert communicator.size == 4
    assert communicator.launches
