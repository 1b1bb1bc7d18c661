"""`python -m tests.bench.detection`, from the root of the repository: how often the diagnosis is right.

Exit status 0 whatever the result is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path

from ..result import Result, as_markdown, describe_machine
from .harder import SCENARIOS, Answer, attempt_harder, harder_rows
from .report import result
from .trial import Trial, attempt

HARDER_SHARE = 10
"""One job of each harder scenario for so many of the mixture."""


def main(arguments: Sequence[str]) -> int:
    """Diagnose the jobs, print the table, write every trial as JSON."""
    given = _parser().parse_args(arguments)
    began = time.monotonic()
    trials = attempts(given.jobs, given.seed_base, given.processes)
    answers = harder_attempts(max(1, given.jobs // HARDER_SHARE), given.seed_base, given.processes)
    found = result(trials, given.seed_base)
    found = replace(
        found,
        rows=(*found.rows, *harder_rows(answers)),
        samples={**found.samples, "harder": [each._asdict() for each in answers]},
    )
    print(as_markdown(found), flush=True)
    print(f"{time.monotonic() - began:.0f} s on {given.processes} processes")
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "detection.json").write_text(_as_json(found, given.seed_base))
    return 0


def attempts(jobs: int, seed_base: int, processes: int) -> list[Trial]:
    """All trials, in order; the same whatever the number of processes."""
    if processes == 1:
        return [attempt(number, seed_base) for number in range(jobs)]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(attempt, range(jobs), repeat(seed_base)))


def harder_attempts(jobs: int, seed_base: int, processes: int) -> list[Answer]:
    """So many jobs of each of the scenarios beyond the mixture."""
    chosen = [(scenario, number, seed_base) for scenario in SCENARIOS for number in range(jobs)]
    if processes == 1:
        return [attempt_harder(*each) for each in chosen]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(attempt_harder, *zip(*chosen, strict=True)))


def _as_json(found: Result, seed_base: int) -> str:
    document = {
        "part": "detection",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed_base": seed_base,
        "machine": describe_machine(),
        **asdict(found),
        "rows": [row._asdict() for row in found.rows],
    }
    return json.dumps(document) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.detection", description=__doc__)
    parser.add_argument("--jobs", type=_count, default=500, metavar="N", help="default 500")
    parser.add_argument("--seed-base", type=int, default=1, metavar="S", help="other jobs (default 1)")
    parser.add_argument("--processes", type=_count, default=2, metavar="N", help="default 2")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("bench-results"),
        metavar="DIR",
        help="where the JSON goes (default bench-results)",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
