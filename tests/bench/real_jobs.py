"""`python -m tests.bench.real_jobs`: how often the diagnosis is right on re-timed tables of real jobs.

Jobs of other shapes come from the simulator; without the recorded tables in ../shared/data these are all.
`--list` prints one line for each case; `--only TEXT` takes the cases whose name holds the text. Exit status 0
whatever the result is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np

from support.retimer.cases import all_cases
from support.retimer.judge import Outcome, judge
from support.retimer.real_jobs import ABSENT, TABLES

from .result import Result, Row, as_markdown

_CHIP_SPREAD = "spread"


def main(arguments: Sequence[str]) -> int:
    """Judge every case and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.real_jobs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="one line for each case")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds this")
    given = parser.parse_args(arguments)
    if not TABLES.is_dir():
        print(ABSENT)
    outcomes = [judge(case) for case in all_cases() if given.only in case.name]
    if given.list:
        print("".join(map(_line, outcomes)))
    print(as_markdown(_result(outcomes)), flush=True)
    return 0


def _line(each: Outcome) -> str:
    wrong = [
        *(["WRONG"] * (not each.acceptable)),
        *(f"INNOCENT {name}" for name in each.innocents),
        *(["MISSED RANK"] * (each.costly_ranks_found < each.costly_ranks)),
        *(["COST"] * (each.error is not None and each.error > 0.05)),
    ]
    return (
        f"{each.name:<58} true {each.truth:<34} {each.true_slowdown:6.3f}  said {each.said:<34}"
        f" {each.slowdown:6.3f}  {1e3 * each.seconds:5.0f} ms  {', '.join(wrong)}\n"
    )


def _result(outcomes: Sequence[Outcome]) -> Result:
    rows = (
        _share("acceptable cause", outcomes, lambda each: each.acceptable, 0.95),
        _innocents(outcomes),
        *_errors(outcomes),
        _found("faulty ranks that cost >= 1 %, listed", outcomes, 0.95),
        _found(
            "the same, chips differ by 1 to 3 %",
            [each for each in outcomes if _CHIP_SPREAD in each.name],
            0.9,
        ),
        _slowest(outcomes),
    )
    notes = ("Faults are injected into recorded seconds and re-timed; no job has lived through them.",)
    return Result(title="Straggler diagnosis on re-timed real jobs", rows=rows, notes=notes)


def _share(what: str, outcomes: Sequence[Outcome], right: Callable[[Outcome], bool], at_least: float) -> Row:
    count = sum(map(right, outcomes))
    met = count >= at_least * len(outcomes)
    return Row(what, f"{count} of {len(outcomes)}", "", f">= {at_least:.0%}", met)


def _innocents(outcomes: Sequence[Outcome]) -> Row:
    named = [each for each in outcomes if each.innocents]
    return Row("cases in which an innocent is named", str(len(named)), "", "0", not named)


def _errors(outcomes: Sequence[Outcome]) -> tuple[Row, ...]:
    """Of the cases with the right cause; those with chips that differ apart, as these cost something too."""
    plain = [each for each in outcomes if each.error is not None and _CHIP_SPREAD not in each.name]
    spread = [each for each in outcomes if each.error is not None and _CHIP_SPREAD in each.name]
    rows = []
    for what, chosen in (("slowdown error", plain), ("slowdown error, chips differ", spread)):
        errors = [each.error for each in chosen if each.error is not None]
        if not errors:
            continue
        excess = sum(each.true_slowdown - 1.0 for each in chosen)
        missed = sum(abs(each.slowdown - each.true_slowdown) for each in chosen)
        rows.append(
            Row(
                f"{what}, of the true excess",
                f"{missed / excess:.1%}",
                f"median {np.median(errors):.1%}, 90 % below {np.quantile(errors, 0.9):.1%}",
                "<= 5 %",
                missed <= 0.05 * excess,
            )
        )
    return tuple(rows)


def _found(what: str, outcomes: Sequence[Outcome], at_least: float) -> Row:
    costly = sum(each.costly_ranks for each in outcomes)
    found = sum(each.costly_ranks_found for each in outcomes)
    return Row(what, f"{found} of {costly}", "", f">= {at_least:.0%}", found >= at_least * costly)


def _slowest(outcomes: Sequence[Outcome]) -> Row:
    seconds = max((each.seconds for each in outcomes), default=0.0)
    return Row("longest diagnosis, CPU time", f"{seconds:.2f} s", "", "<= 1.5 s", seconds <= 1.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
