"""`rankwatch diagnose straggler TABLE`: which rank, which cause, what it cost."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser, printable
from rankwatch_cli.commands.diagnose.colour import wants_colour
from rankwatch_diagnosis.operations.reading import read_operations
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_diagnosis.straggler.verdict import Cause, Verdict

_BOLD, _PLAIN = "\033[1m", "\033[0m"
_MOST_RANKS = 16
"""In the sentence; --json has them all."""
_MOST_LINES = 8
"""Of one list in the evidence."""

_SENTENCES: Mapping[Cause, str] = {
    Cause.WORKER: "compute more slowly than their peers",
    Cause.STAGE: "a pipeline stage holds more work than the others",
    Cause.DATA: "microbatches are of unequal size",
    Cause.NETWORK: "transfers are slow where nobody is waited for",
    Cause.HOST: "data loading or other work of the host takes long",
    Cause.JITTER: "ranks are late in turn, none for long",
    Cause.NONE: "nothing slows the run down",
    Cause.INCONCLUSIVE: "cause and rank cannot be told from this table",
}


def main(arguments: Sequence[str]) -> int:
    """Diagnose one table; returns 0. Raises UserError where the file cannot be used."""
    parser = SentenceParser(
        prog="rankwatch diagnose straggler",
        description="Name the rank, stage or cause that slows a run down, and what it cost.",
        epilog=(
            "columns: step, rank, operation, kind (compute, communication, data, other), start_seconds,\n"
            "duration_seconds; optionally stage, replica (ranks with one replica work on the same\n"
            "microbatches), microbatch, group (process group), work (units of work)."
        ),
    )
    parser.add_argument("table", type=Path, metavar="TABLE", help="CSV (also .gz), JSONL or Parquet")
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    given = parser.parse_args(arguments)
    reading = read_operations(given.table)
    found = diagnose(reading.table)
    verdict = as_json(found, reading.skipped)
    if given.json:
        print(json.dumps(verdict, allow_nan=False))
    else:
        print("\n".join(_lines(found, verdict, colour=wants_colour(sys.stdout, os.environ))))
    return 0


def as_json(verdict: Verdict, skipped: Mapping[str, int]) -> dict[str, object]:
    """The object that `--json` prints; rows left out are part of the evidence."""
    return {
        "cause": verdict.cause.value,
        "ranks": list(verdict.ranks),
        "stages": list(verdict.stages),
        "first_step": verdict.first_step,
        "slowdown": verdict.slowdown,
        "lost_rank_seconds": verdict.lost_rank_seconds,
        "evidence": _plain(
            {**verdict.evidence, **({"skipped_rows": dict(skipped)} if skipped else {})},
        ),
    }


def _plain(value: object) -> object:
    """What JSON has no number for becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(found: Verdict, verdict: Mapping[str, object], *, colour: bool) -> Iterator[str]:
    one = found.cause is Cause.WORKER and len(found.ranks) == 1
    sentence = "computes more slowly than its peers" if one else _SENTENCES[found.cause]
    first = f"{found.cause.value}: {_who(found)}{sentence}"
    yield f"{_BOLD}{first}{_PLAIN}" if colour else first
    if found.slowdown > 1.0:
        since = "" if found.first_step is None else f", since step {found.first_step}"
        yield (
            f"the run is {_cost(found.slowdown - 1.0)} slower for it{since};"
            f" {found.lost_rank_seconds:.4g} rank-seconds lost"
        )
    yield ""
    evidence = verdict["evidence"]
    assert isinstance(evidence, Mapping)
    for name, value in evidence.items():
        yield from map(printable, _evidence(name, value))


def _cost(ratio: float) -> str:
    return f"{ratio:.1%}" if ratio >= 0.0005 else "less than 0.1%"


def _who(found: Verdict) -> str:
    if found.ranks:
        told = ", ".join(str(each) for each in found.ranks[:_MOST_RANKS])
        more = len(found.ranks) - _MOST_RANKS
        return f"rank{'s' * (len(found.ranks) > 1)} {told}{f' and {more} more' if more > 0 else ''}: "
    if found.stages:
        return f"stage{'s' * (len(found.stages) > 1)} {', '.join(str(each) for each in found.stages)}: "
    return ""


def _evidence(name: str, value: object) -> Iterator[str]:
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield f"{name}:"
        for each in value[:_MOST_LINES]:
            yield "  " + ", ".join(f"{key} {_short(item)}" for key, item in each.items())
        if len(value) > _MOST_LINES:
            yield f"  and {len(value) - _MOST_LINES} more"
    elif isinstance(value, Mapping):
        yield f"{name}: " + ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    else:
        yield f"{name}: {_short(value)}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
