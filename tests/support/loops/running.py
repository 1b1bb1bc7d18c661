"""Runs one of the training loops bare, with explicit hooks, or below `rankwatch run`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from support.agent.process import clean_environment
from support.jobs.forked_ranks import ForkedRanks
from support.jobs.torchrun import CRASH_OF_GLOO

from .recorded import Recorded, recorded

HERE = Path(__file__).parent
_SECONDS = 300.0


class Loop(NamedTuple):
    """A training script of this folder."""

    name: str
    title: str
    ranks: int = 2
    package: str = ""
    """A package that it needs beside torch."""


LOOPS: Mapping[str, Loop] = {
    each.name: each
    for each in (
        Loop("nanogpt", "nanoGPT"),
        Loop("hf_trainer", "Hugging Face Trainer", package="transformers"),
        Loop("lightning_fit", "Lightning fit", package="lightning"),
        Loop("accelerate_loop", "Accelerate", package="accelerate"),
        Loop("fsdp2", "FSDP2 with accumulation"),
        Loop("gan", "GAN, two optimizers", ranks=1),
        Loop("scaled_fp16", "fp16, scaler that skips", ranks=1),
    )
}


class Way(StrEnum):
    """How rankwatch takes part."""

    BARE = "bare"
    EXPLICIT = "explicit"
    ZERO_CODE = "zero_code"


class Witnessed(NamedTuple):
    """What one rank's own stopwatch says; see `witness`."""

    steps: int
    skipped: int
    losses: list[float]
    intervals: list[tuple[str, float, float]]
    step_ends: list[tuple[float, float]]
    """Of each step: the moment, and the CPU seconds of the process until then."""
    weights: str
    random_state: str


class Outcome(NamedTuple):
    """One run of a loop."""

    status: int
    stdout: str
    stderr: str
    witnessed: list[Witnessed]
    """By rank."""
    boxes: list[Recorded]
    """By rank; empty where nothing was recorded."""


def run_loop(
    loop: Loop,
    way: Way,
    directory: Path,
    *,
    steps: int = 24,
    pause_ms: float = 8.0,
    server: ForkedRanks | None = None,
) -> Outcome:
    """Run it to its end, with everything that it writes below `directory`.

    Once more if a thread of gloo crashes the process at its exit: that happens without rankwatch, too.
    server: forks the ranks instead of torchrun, and runs in this way itself.
    """
    results, boxes = directory / "results", directory / "boxes"
    results.mkdir(parents=True)
    script = str(HERE / f"{loop.name}.py")
    variables = {
        "LOOP_RESULTS": str(results),
        "LOOP_STEPS": str(steps),
        "LOOP_PAUSE_MS": str(pause_ms),
        "LOOP_HOOKS": "explicit" if way is Way.EXPLICIT else "",
        "RANKWATCH_DIR": str(boxes),
        "RANKWATCH_RUN": "run",
        "RANKWATCH_SUMMARY": "0",
    }
    if server:
        done = run_forked(server, [script], variables, directory / "log", ranks=loop.ranks)
    else:
        command = torchrun(script, ranks=loop.ranks)
        done = run_command(zero_code(command) if way is Way.ZERO_CODE else command, variables)
    if CRASH_OF_GLOO in done.stderr and directory.name != "again":
        return run_loop(loop, way, directory / "again", steps=steps, pause_ms=pause_ms, server=server)
    files = sorted(results.glob("rank*.json"))
    return Outcome(
        done.returncode,
        done.stdout,
        done.stderr,
        [_witnessed(json.loads(each.read_text())) for each in files],
        [recorded(each) for each in sorted(boxes.glob("*/*.blackbox"))],
    )


def run_forked(
    server: ForkedRanks, arguments: Sequence[str], variables: Mapping[str, str], log: Path, *, ranks: int = 1
) -> subprocess.CompletedProcess[str]:
    """Fork the ranks. The status is that of the first that fails; all output is in `stderr`."""
    statuses = server.run(arguments, variables, ranks=ranks, log=log)
    return subprocess.CompletedProcess(arguments, next(filter(None, statuses), 0), "", log.read_text())


def torchrun(*arguments: str, ranks: int = 1) -> list[str]:
    """The command of a job on this machine."""
    head = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*head, f"--nproc-per-node={ranks}", *arguments]


def zero_code(command: Sequence[str], *options: str) -> list[str]:
    """The same command, recorded without a line of code."""
    return [sys.executable, "-m", "rankwatch_cli", "run", *options, "--", *command]


def run_command(
    command: Sequence[str], variables: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it without settings of rankwatch but these, each rank with one thread."""
    env = {**clean_environment(), "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **(variables or {})}
    return subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS, check=False
    )


def _witnessed(document: dict[str, object]) -> Witnessed:
    fields = {name: document[name] for name in Witnessed._fields}
    fields["losses"] = [float.fromhex(each) for each in document["losses"]]  # type: ignore[attr-defined]
    return Witnessed(**fields)  # type: ignore[arg-type]
