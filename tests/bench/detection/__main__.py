"""`python -m tests.bench.detection`, from the root of the repository: how often the diagnosis is right.

Exit status 0 whatever the result is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.simulation.job import simulate
from rankwatch_diagnosis.operations.writing import write_table

from ..processes import in_processes
from ..result import as_json, as_markdown
from .judging import judge
from .production import CYCLE, production_job
from .report import one_line, production_result


def main(arguments: Sequence[str]) -> int:
    """Diagnose the jobs, print the table, write every verdict as JSON."""
    given = _parser().parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    numbers = range(given.jobs) if given.only is None else [given.only]
    judged = in_processes(judge, [(number, given.seed_base) for number in numbers], given.processes)
    if given.list:
        print("\n".join(map(one_line, judged)))
    if given.only is not None and given.write is not None:
        write_table(simulate(production_job(given.only, given.seed_base).job).table, given.write, "csv")
    found = production_result(judged, given.seed_base)
    print(as_markdown(found), flush=True)
    print(f"{time.monotonic() - began:.0f} s on {given.processes} processes\n", flush=True)
    (given.output / "detection.json").write_text(as_json(found, "detection", seed_base=given.seed_base))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.detection", description=__doc__)
    parser.add_argument("--jobs", type=_count, default=len(CYCLE), metavar="N", help=f"default {len(CYCLE)}")
    parser.add_argument("--list", action="store_true", help="one line for each job")
    parser.add_argument("--only", type=int, metavar="N", help="job N alone")
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
