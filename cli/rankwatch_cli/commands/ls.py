"""`rankwatch ls`: the runs of this node, the newest first."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankwatch.processes import python
from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.turns import Turns
from rankwatch_cli.output import show, show_json
from rankwatch_cli.runs import READ_SECONDS, RUN_SHARE, RunSeen, find_runs, runs_directory

_START_SECONDS = 30.0
"""For Python and NumPy on a busy node."""
_END_SECONDS = 1.0
_LONGEST_LINE = 4096
_NONE = "-"
_HEAD = ("RUN", "OWNER", "NAME", "STATE", "STEP", "LEFT", "AGE", "RANKS", "VERDICT")
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def main(arguments: Sequence[str]) -> int:
    """List the runs; returns 0, also without any."""
    parser = SentenceParser(
        prog="rankwatch ls",
        description="List the runs that are recorded on this node: name, state, step, time left, age, ranks, "
        "verdict.",
        epilog="OWNER is a user id, and stands there if the runs have several. NAME is of the script or\n"
        "the job. LEFT is the time until the target steps are reached, at the pace since the start. AGE\n"
        "counts from the start. RANKS are those that live, those with a black box here, and those of the\n"
        "whole run. VERDICT is what `rankwatch diagnose run RUN` finds, in a word; it needs the extra\n"
        "[diagnosis].",
    )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="of the black boxes; default $RANKWATCH_DIR"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=READ_SECONDS,
        metavar="N",
        help="time for reading the runs, and as much for their verdicts, in which users take turns; what is "
        f"left out is counted, or has no verdict (default {READ_SECONDS:g})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    given = parser.parse_args(arguments)
    if not 0.0 < given.seconds < 1e6:
        raise UserError(f"--seconds is {given.seconds}, expected a number above 0")
    base = runs_directory(given.directory)
    runs = find_runs(base, given.seconds)
    verdicts = _verdicts(runs, given.seconds)
    now = time.time()
    if given.json:
        show_json([_as_json(each, verdicts.get(each.directory), now) for each in runs])
    elif runs:
        rows = [_HEAD, *(_row(each, verdicts.get(each.directory), now) for each in runs)]
        if len({each.owner for each in runs}) == 1:
            rows = [(run, *row) for run, _, *row in rows]
        show(*_table(rows))
    else:
        show(f"no run is recorded in {base}; RANKWATCH_DIR names another directory")
    return 0


def _verdicts(runs: Sequence[RunSeen], seconds: float) -> dict[Path, str]:
    """Return verdicts in a word by directory of the run, as far as the time and the installed extras reach.

    Users take turns, the newest run of each first. The other runs show none.
    """
    found: dict[Path, str] = {}
    if not runs:
        return found
    with _Judge() as judge:
        started = runs if judge.start() else ()
        for run in Turns(started, owner=lambda run: run.owner, spent=time.monotonic, most=seconds):
            word = judge.word(run.directory, RUN_SHARE * seconds)
            if word:
                found[run.directory] = word
    return found


class _Judge:
    """A process that judges one run after the other. One that takes too long costs its own verdict alone."""

    def __enter__(self) -> _Judge:
        self._process: subprocess.Popen[bytes] | None = None
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start(self) -> bool:
        """Start the process; False where it cannot run, because an extra is missing."""
        self._process = subprocess.Popen(
            python("-m", "rankwatch_diagnosis.run"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        return self._line(_START_SECONDS) is not None

    def word(self, directory: Path, seconds: float) -> str | None:
        """Return the verdict about the run in a directory; None where there is none in this time."""
        if self._process is None and not self.start():
            return None
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(os.fspath(directory))}\n".encode())
        except BrokenPipeError:
            return None
        return self._line(seconds)

    def _line(self, seconds: float) -> str | None:
        """Return the next line of the process. Without one in this time it is ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        ends, line = time.monotonic() + seconds, b""
        readable = select.poll()
        readable.register(self._process.stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            part = b""
            if readable.poll(1e3 * max(0.0, ends - time.monotonic())):
                part = self._process.stdout.read(_LONGEST_LINE) or b""
            if not part:
                self._end()
                return None
            line += part
        return line.decode().strip()

    def _end(self) -> None:
        """End the process; one that waits in the kernel is left to itself."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _as_json(run: RunSeen, verdict: str | None, now: float) -> dict[str, object]:
    found = {name: value for name, value in vars(run).items() if value is not None}
    return {
        **found,
        "directory": str(run.directory),
        "state": run.state.value,
        "age_seconds": round(max(0.0, now - run.started), 3),
        **({"verdict": verdict} if verdict else {}),
    }


def _row(run: RunSeen, verdict: str | None, now: float) -> tuple[str, ...]:
    target = f"/{run.target_steps}" if run.target_steps else ""
    return (
        _one_cell(run.run),
        str(run.owner),
        _one_cell(run.short_name) or _NONE,
        run.state.value,
        _NONE if run.step < 0 else f"{run.step}{target}",
        _NONE if run.seconds_left is None else _age(run.seconds_left),
        _age(max(0.0, now - run.started)),
        f"{run.living}/{run.ranks}/{run.world_size}",
        verdict or _NONE,
    )


def _one_cell(name: str) -> str:
    """Return the name without what looks like the gap between two cells or, further on, like another row."""
    return name.replace("  ", "??")


def _age(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
