"""`rankwatch ls`: the runs of this node, the newest first."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.output import show, show_json
from rankwatch_cli.runs import RunSeen, find_runs, runs_directory

_VERDICT_SECONDS = 10.0
"""Time spent on verdicts, the newest run first; the other runs show none."""
_NONE = "-"
_HEAD = ("RUN", "NAME", "STATE", "STEP", "LEFT", "AGE", "RANKS", "VERDICT")
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def main(arguments: Sequence[str]) -> int:
    """List the runs; returns 0, also without any."""
    parser = SentenceParser(
        prog="rankwatch ls",
        description="List the runs that are recorded on this node: name, state, step, time left, age, ranks, "
        "verdict.",
        epilog="NAME is that of the script or the job. LEFT is the time until the target steps are reached,\n"
        "at the pace since the start. AGE counts from the start. RANKS are those that live, those with a\n"
        "black box here, and those of the whole run. VERDICT is what `rankwatch diagnose run RUN` finds, in\n"
        "a word; it needs the extra [diagnosis].",
    )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="of the black boxes; default $RANKWATCH_DIR"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    given = parser.parse_args(arguments)
    base = runs_directory(given.directory)
    runs = find_runs(base)
    verdicts = dict(_verdicts(runs))
    now = time.time()
    if given.json:
        show_json([_as_json(each, verdicts.get(each.directory), now) for each in runs])
    elif runs:
        rows = [_HEAD, *(_row(each, verdicts.get(each.directory), now) for each in runs)]
        show(*_table(rows))
    else:
        show(f"no run is recorded in {base}; RANKWATCH_DIR names another directory")
    return 0


def _verdicts(runs: Sequence[RunSeen]) -> Iterator[tuple[Path, str]]:
    """Directory of a run -> its verdict in a word, as far as the time and the installed extras reach."""
    try:
        from rankwatch_diagnosis.run.engine import diagnose_run
        from rankwatch_diagnosis.run.verdict import verdict_word
    except ModuleNotFoundError:
        return
    until = time.monotonic() + _VERDICT_SECONDS
    for each in runs:
        if time.monotonic() > until:
            return
        try:
            word = verdict_word(diagnose_run(each.directory))
        except UserError:
            continue  # its boxes changed meanwhile
        if word:
            yield each.directory, word


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
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
