"""Training programs that know nothing of rankwatch, run with and without zero-code recording."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from rankwatch.automatic.launching import recording_environment
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from support.jobs.forked_ranks import shared_ranks
from support.training.blackbox import now

_PRELUDE = """
import os, sys, time, warnings
import torch
warnings.simplefilter("ignore")
torch.manual_seed(0)
RANK, HERE = int(os.environ["RANK"]), sys.argv[1]
if "RECORDED" in os.environ:
    from rankwatch.automatic import recording
    def step(number=None):
        recording.opened().begin_step(number)
        recording.opened().end_step()
else:
    def step(number=None): ...
"""
"""`step` stands for a step of training, so that a program can do without one."""


class Saved(NamedTuple):
    """A checkpoint operation or a stage of one, from a black box."""

    operation: str
    stage: str
    step: int
    bytes: int
    failed: bool
    start: float
    end: float
    blocked_seconds: float


def run_program(
    code: str, folder: Path, *, recorded: bool = True, ranks: int = 1, status: Sequence[int] | None = None
) -> list[Path]:
    """Run a program on some ranks until all have ended; return their black boxes, rank 0 first.

    status: how each rank must end; well, if it is not given.

    The program may use `torch`, RANK, HERE (`folder`) and `step()`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "program.py"
    script.write_text(_PRELUDE + textwrap.dedent(code))
    boxes, log = folder / "boxes", folder / "log"
    environ = {**os.environ, "RANKWATCH_DIR": str(boxes), "RANKWATCH_RUN": "program"}
    if recorded:
        environ = recording_environment({**environ, "RECORDED": "1"})
    job = [str(script), str(folder)]
    codes = shared_ranks(recorded=recorded).run(job, environ, ranks=ranks, log=log)
    assert codes == (list(status) if status else [0] * ranks), log.read_text()
    return sorted(boxes.glob("program/*.blackbox"), key=lambda each: int(each.stem))


def saved(box: Path) -> list[Saved]:
    """The checkpoint operations of a black box, each after its stages."""
    found = []
    with closing(Reader(box)) as reader:
        for each in reader.poll().records():
            if each.kind == RecordKind.CHECKPOINT:
                size, step, stage, failed, blocked = layout.CHECKPOINT.unpack_from(each.payload)
                names = reader.name(each.name), reader.name(int(stage)) if stage else ""
                span = each.start, each.end
                found.append(Saved(*names, int(step), int(size), bool(failed), *span, blocked))
    return found


def operations(box: Path) -> list[Saved]:
    """The operations without their stages."""
    return [each for each in saved(box) if not each.stage]


def errors(box: Path) -> int:
    """Failures inside rankwatch that a black box counts."""
    return now(box).errors
