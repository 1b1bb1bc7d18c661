"""Runs jobs with frameworks, without rankwatch, by hand and without a line, and reads what was recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwatch.automatic.launching import recording_environment
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import NowBlock
from rankwatch.checkpoint_paths import SUFFIX, read_checkpoints
from support.jobs.torchrun import CRASH_OF_GLOO, torchrun
from support.training.blackbox import Read, now, read

RANKS = 2
PLAIN, HAND, ZERO = "plain", "hand", "zero"
SCRIPTS = Path(__file__).parent
AGAIN = "again"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that has ended."""

    folder: Path
    errors: str
    mode: str = ZERO

    def box(self, rank: int) -> Path:
        """The black box of a rank."""
        return self.folder / "boxes" / "job" / f"{rank}.blackbox"

    def wrote(self, rank: int) -> Any:
        """What the script itself has noted."""
        return json.loads((self.folder / f"{rank}.json").read_text())

    def records(self, rank: int) -> list[Read]:
        """All records of a rank."""
        return read(self.box(rank))

    def now(self, rank: int) -> NowBlock:
        """The final state of a rank."""
        return now(self.box(rank))

    def steps(self, rank: int) -> list[int]:
        """Numbers of the recorded steps that no exception has ended."""
        found = [each.payload for each in self.records(rank) if each.kind == RecordKind.STEP]
        return [int(number) for number, failed in found if not failed]

    def scalars(self, rank: int, name: str) -> list[tuple[int, float]]:
        """Step and value of each record of a scalar."""
        return [(int(step), value) for value, step in self._payloads(rank, RecordKind.SCALAR, name)]

    def work(self, rank: int, unit: str) -> list[tuple[int, float]]:
        """Step and amount of each record of work."""
        return [(int(step), amount) for amount, step in self._payloads(rank, RecordKind.WORK, unit)]

    def phases(self, rank: int, name: str) -> list[Read]:
        """Records of a phase."""
        return [each for each in self.records(rank) if each.kind == RecordKind.PHASE and each.name == name]

    def checkpoints(self, rank: int, operation: str) -> list[tuple[int, bool]]:
        """Step and success of each operation."""
        found = self._payloads(rank, RecordKind.CHECKPOINT, operation)
        return [(int(step), not failed) for _, step, stage, failed, *_ in found if not stage]

    def _payloads(self, rank: int, kind: RecordKind, name: str) -> list[tuple[float, ...]]:
        return [each.payload for each in self.records(rank) if (each.kind, each.name) == (kind, name)]

    def places(self, rank: int, operation: str) -> list[str]:
        """Names of the files and folders of all checkpoints that are noted, the oldest first."""
        noted = read_checkpoints(self.box(rank).with_suffix(SUFFIX))
        return [Path(each.path).name for each in reversed(noted) if each.operation == operation]

    def seconds_of_steps(self, rank: int, phase: str) -> float:
        """Time of a phase inside steps."""
        steps = [each for each in self.records(rank) if each.kind == RecordKind.STEP]
        return sum(
            each.end - each.start
            for each in self.phases(rank, phase)
            if any(step.start <= each.start and each.end <= step.end for step in steps)
        )


def run(script: str, folder: Path, mode: str, *arguments: str, ranks: int = RANKS) -> Job:
    """Run a script of this folder under torchrun, once for each rank. It gets a folder, `plain` or
    `hand`, and the arguments. Once more if a thread of gloo crashes a process at its exit."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {"RANKWATCH_DISABLE": "1"} if mode == PLAIN else {}
    if mode == ZERO:
        environ = {"PYTHONPATH": recording_environment(os.environ)["PYTHONPATH"]}
    done = torchrun(
        str(SCRIPTS / script),
        str(folder),
        HAND if mode == HAND else PLAIN,
        *arguments,
        ranks=ranks,
        directory=folder / "boxes",
        HF_HUB_OFFLINE="1",
        **environ,
    )
    if done.returncode and CRASH_OF_GLOO in done.stderr and folder.name != AGAIN:
        return run(script, folder / AGAIN, mode, *arguments, ranks=ranks)
    assert done.returncode == 0, done.stderr[-6000:]
    return Job(folder=folder, errors=done.stderr, mode=mode)


def run_cases(script: str, folder: Path, *cases: str) -> dict[str, tuple[Job, Any]]:
    """Run cases of a script of this folder without a line, each in a fork of one process that has imported
    the framework. Gives each case's job, and what the case returned."""
    environ = recording_environment({**os.environ, "PYTHONPATH": str(SCRIPTS.parents[1])})
    environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(SCRIPTS / script), str(folder), *cases]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    found = {}
    for case in cases:
        job = Job(folder=folder / case, errors=(folder / case / "errors").read_text())
        answer = folder / case / "answer.json"
        found[case] = (job, json.loads(answer.read_text()) if answer.exists() else None)
    return found
