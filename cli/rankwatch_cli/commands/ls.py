"""`rankwatch ls`: the runs of this node, the newest first."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.turns import take_turns
from rankwatch_cli.output import show, show_json
from rankwatch_cli.runs import RunSeen, find_runs, runs_directory

_VERDICT_SECONDS = 10.0
"""Time spent on verdicts: users take turns, the newest run of each first. The other runs show none."""
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
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    given = parser.parse_args(arguments)
    base = runs_directory(given.directory)
    runs = find_runs(base)
    verdicts = _verdicts(runs)
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


def _verdicts(runs: Sequence[RunSeen]) -> dict[Path, str]:
    """Directory of a run -> its verdict in a word, as far as the time and the installed extras reach."""
    try:
        from rankwatch_diagnosis.run.engine import diagnose_run
        from rankwatch_diagnosis.run.verdict import verdict_word
    except ModuleNotFoundError:
        return {}
    found: dict[Path, str] = {}

    def look(run: RunSeen) -> float:
        began = time.monotonic()
        with contextlib.suppress(UserError):  # its boxes changed meanwhile
            found[run.directory] = verdict_word(diagnose_run(run.directory))
        return time.monotonic() - began

    take_turns(runs, owner=lambda run: run.owner, use=look, most=_VERDICT_SECONDS)
    return found


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
        run.run,
        str(run.owner),
        run.short_name or _NONE,
        run.state.value,
        _NONE if run.step < 0 else f"{run.step}{target}",
        _NONE if run.seconds_left is None else _age(run.seconds_left),
        _age(max(0.0, now - run.started)),
        f"{run.living}/{run.ranks}/{run.world_size}",
        verdict or _NONE,
    )


def _age(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
