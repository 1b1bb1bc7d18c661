"""`rankwatch profile RUN`: has the slowest of a rank's next steps recorded by PyTorch's profiler."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankwatch import profiling
from rankwatch.blackbox.reader import Reader
from rankwatch.conventions import environment
from rankwatch.errors import BlackBoxError
from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.output import note, show
from rankwatch_cli.runs import boxes_of, named_run

_MOST_RANKS = 4
"""Asked at once where the diagnosis names them. More would slow the run down."""
_POLL_SECONDS = 0.5
_QUIET_SECONDS = 5.0
"""Without a further trace, after which those that came are all."""


def main(arguments: Sequence[str]) -> int:
    """Ask the ranks; returns 0, and 1 if `--wait` is over without a trace. Raises UserError."""
    parser = SentenceParser(
        prog="rankwatch profile",
        description="Have the slowest of the next steps of a rank recorded by torch.profiler. The run must\n"
        "have been started with `rankwatch run --profile-on-slow N`. Traces appear beside the black box.",
        epilog="A rank looks for the request within 10 s, profiles up to 20 steps, and keeps the traces of\n"
        "the N slowest. It serves requests of its own user, of root, of the owner of the directory\n"
        f"of the black boxes, and of the users in ${environment.PROFILE_REQUESTS_FROM}.",
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="name of a run of this node (default: the newest)"
    )
    parser.add_argument(
        "--rank",
        type=int,
        action="append",
        metavar="R",
        help="a rank of this node, may be repeated (default: those that `rankwatch diagnose run` names)",
    )
    parser.add_argument(
        "--wait", type=float, metavar="SECONDS", help="wait for the traces, and print where they are"
    )
    given = parser.parse_args(arguments)
    if given.wait is not None and not 0 < given.wait < float("inf"):
        raise UserError(f"--wait is {given.wait}, expected seconds above 0")
    folder = named_run(given.run, announce=True)
    boxes = _chosen(folder, given.rank)
    before = {rank: {*profiling.traces_beside(box)} for rank, box in boxes.items()}
    for rank, box in boxes.items():
        _ask(folder, rank, box)
    if given.wait is None:
        return 0
    return _wait(boxes, before, given.wait)


def _chosen(folder: Path, ranks: Sequence[int] | None) -> Mapping[int, Path]:
    """Rank -> black box of the living ranks to ask. Raises UserError."""
    boxes = boxes_of(folder)
    name = folder.name
    if ranks is None:
        from rankwatch_diagnosis.run.engine import diagnose_run

        verdict = diagnose_run(folder)
        ranks = [rank for rank in verdict.ranks if rank in boxes][:_MOST_RANKS]
        if not ranks:
            raise UserError(f"nothing names a rank of run {name} here ({verdict.why}): give --rank")
    for rank in ranks:
        if rank not in boxes:
            raise UserError(f"rank {rank} of run {name} has no black box on this node")
        if _has_ended(boxes[rank]):
            raise UserError(f"rank {rank} of run {name} is not running")
    return {rank: boxes[rank] for rank in ranks}


def _has_ended(box: Path) -> bool:
    try:
        reader = Reader(box)
    except (OSError, BlackBoxError) as error:
        raise UserError(f"could not read {box}: {error}") from None
    try:
        return bool(reader.now().ended_by) or not reader.writer_alive()
    finally:
        reader.close()


def _ask(folder: Path, rank: int, box: Path) -> None:
    try:
        profiling.request(folder.parent, folder.name, rank)
        trusted = {0, box.lstat().st_uid, folder.parent.stat().st_uid}
    except OSError as error:
        raise UserError(f"could not leave a request in {folder.parent}: {error.strerror}") from None
    show(f"asked rank {rank} of run {folder.name}; traces: {box.with_suffix(profiling.SUFFIX)}")
    if os.geteuid() not in trusted:
        needed = f"{environment.PROFILE_REQUESTS_FROM}={os.geteuid()}"
        note(f"rank {rank} is another user's: it answers only if its run has {needed}")


def _wait(boxes: Mapping[int, Path], before: Mapping[int, set[Path]], seconds: float) -> int:
    """Print each trace as it appears, until there are no more."""
    ends, last = time.monotonic() + seconds, float("inf")
    seen = {rank: set(each) for rank, each in before.items()}
    while time.monotonic() < min(ends, last + _QUIET_SECONDS):
        for rank, box in boxes.items():
            for trace in profiling.traces_beside(box):
                if trace not in seen[rank]:
                    seen[rank].add(trace)
                    last = time.monotonic()
                    show(str(trace))
        time.sleep(_POLL_SECONDS)
    if seen == before:
        note("no trace has appeared; was the run started with --profile-on-slow?")
        return 1
    return 0
