"""`python -m tests.bench.detection`, from the root of the repository: how often the diagnosis is right.

Exit status 0 whatever the result is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from bench.simulation.job import simulate
from rankwatch_diagnosis.operations.writing import write_table

from ..result import Result, as_json, as_markdown
from .harder import SCENARIOS, Answer, attempt_harder, harder_rows
from .judging import judge
from .production import production_job
from .production_report import one_line, production_result
from .report import result
from .trial import Trial, attempt, in_processes

HARDER_SHARE = 10
"""One job of each harder scenario for so many of the mixture."""
PRODUCTION_SHARE = 0.6
"""Jobs as in production, for each job of the mixture."""


def main(arguments: Sequence[str]) -> int:
    """Diagnose the jobs, print a table for each level, write every trial as JSON."""
    given = _parser().parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    for level, measure in LEVELS.items():
        if given.level in (level, ALL):
            began = time.monotonic()
            found = measure(given)
            print(as_markdown(found), flush=True)
            print(f"{time.monotonic() - began:.0f} s on {given.processes} processes\n", flush=True)
            (given.output / _FILES[level]).write_text(as_json(found, "detection", seed_base=given.seed_base))
    return 0


def _clean(given: argparse.Namespace) -> Result:
    trials = attempts(given.jobs, given.seed_base, given.processes)
    answers = harder_attempts(max(1, given.jobs // HARDER_SHARE), given.seed_base, given.processes)
    found = result(trials, given.seed_base)
    return replace(
        found,
        rows=(*found.rows, *harder_rows(answers)),
        samples={**found.samples, "harder": [each._asdict() for each in answers]},
    )


def _as_in_production(given: argparse.Namespace) -> Result:
    jobs = max(1, round(given.jobs * PRODUCTION_SHARE))
    numbers = range(jobs) if given.only is None else [given.only]
    judged = in_processes(judge, [(number, given.seed_base) for number in numbers], given.processes)
    if given.list:
        print("\n".join(map(one_line, judged)))
    if given.only is not None and given.write is not None:
        job = production_job(given.only, given.seed_base).job
        write_table(simulate(job).table, given.write, "csv")
    return production_result(judged, given.seed_base)


ALL = "all"
LEVELS: Mapping[str, Callable[[argparse.Namespace], Result]] = MappingProxyType(
    {"clean": _clean, "real": _as_in_production}
)
_FILES = {"clean": "detection.json", "real": "detection_real.json"}


def attempts(jobs: int, seed_base: int, processes: int) -> list[Trial]:
    """All trials, in order; the same whatever the number of processes."""
    return in_processes(attempt, [(number, seed_base) for number in range(jobs)], processes)


def harder_attempts(jobs: int, seed_base: int, processes: int) -> list[Answer]:
    """So many jobs of each of the scenarios beyond the mixture."""
    chosen = [(scenario, number, seed_base) for scenario in SCENARIOS for number in range(jobs)]
    return in_processes(attempt_harder, chosen, processes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.detection", description=__doc__)
    parser.add_argument("--jobs", type=_count, default=500, metavar="N", help="default 500")
    parser.add_argument(
        "--level",
        choices=(*LEVELS, ALL),
        default=ALL,
        help="the clean model, or jobs as in production (default all)",
    )
    parser.add_argument("--list", action="store_true", help="as in production: one line for each job")
    parser.add_argument("--only", type=int, metavar="N", help="as in production: job N alone")
    parser.add_argument("--write", type=Path, metavar="FILE", help="with --only: the job's table, as CSV")
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
