"""`python -m tests.bench.fleet_life`: pages in the simulated life of a fleet.

A day of 200 runs on 49 nodes, in three shifts of eight hours: promtool evaluates the rules that ship on what
agents would export, and the alerts go through the inhibitions and routes of the Alertmanager configuration
that ships. Each injected fault must page in time; of all other pages there may be two a day.
`tests/support/alerts/fleet/schedule.py` says where the figures of the fleet come from, and `page.py` beside
it what of the agents is modelled.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.alerts.fleet.day import Day
from support.alerts.fleet.paging import Notification
from support.alerts.fleet.schedule import LARGE_RUN, shifts
from support.alerts.fleet.verdict import BUDGET, LIMIT_SECONDS, Answer, Verdict, live, together

from .processes import exit_on_signals, temporary_directory
from .result import Result, Row, as_markdown, limited

SEEDS = (1, 2, 3)
INTERVAL_SECONDS = 30
LATE_SECONDS = 60


class Life(NamedTuple):
    """One day, and what was made of it."""

    seed: int
    shifts: Sequence[Day]
    verdict: Verdict
    seconds: float
    """That the evaluation took."""


def result(life: Life) -> Result:
    """The table: each fault, and all pages that no one had to answer."""
    return Result(
        title="Pages in the life of a fleet",
        rows=tuple(_rows(life)),
        notes=(
            "A page is a group of alerts that reaches a receiver of pages; it counts once until resolved.",
            "Runs, faults and values are simulated; rules, inhibitions and routes are those that ship.",
        ),
    )


def _rows(life: Life) -> list[Row]:
    seed, verdict = f"seed {life.seed}", life.verdict
    rows = [_fault(seed, each) for each in verdict.answers]
    causes = Counter((context, _names(page)) for context, page in verdict.needless)
    for (context, names), count in causes.most_common():
        rows.append(Row(f"{seed}: needless, {context}", f"{count} pages", names))
    runs = [run for each in life.shifts for run in each.runs if run.name != LARGE_RUN]
    rows.append(limited(f"{seed}: needless pages", len(verdict.needless), BUDGET, "{:.0f}".format))
    rows.append(Row(f"{seed}: faults missed", str(len(verdict.missed)), target="0", met=not verdict.missed))
    rows.append(
        Row(f"{seed}: faults misnamed", str(len(verdict.misnamed)), target="0", met=not verdict.misnamed)
    )
    tickets = ", ".join(f"{name} {count}" for name, count in Counter(verdict.ticket_names).most_common(6))
    rows.append(Row(f"{seed}: tickets", str(verdict.tickets), tickets))
    hours = sum(each.seconds for each in life.shifts) / 3600
    size = f"{len(runs)} runs, {sum(len(run.attempts) for run in runs)} attempts, {hours:g} h"
    rows.append(Row(f"{seed}: evaluated", size, f"in {life.seconds:.0f} s"))
    return rows


def _fault(seed: str, answer: Answer) -> Row:
    fault = answer.fault
    who = " ".join(filter(None, (fault.run, fault.node, fault.rank and f"rank {fault.rank}")))
    delay = "no page" if answer.delay is None else f"after {answer.delay / 60:.1f} min"
    pages = (
        f"{len(answer.pages)} pages: {', '.join(sorted(set(map(_names, answer.pages))))}"
        if answer.pages
        else ""
    )
    limit = LIMIT_SECONDS.get(fault.kind)
    target = "" if limit is None else f"<= {limit / 60:.0f} min"
    met = None if limit is None else answer.in_time and answer.named
    return Row(f"{seed}: {fault.kind} ({who})", delay, pages, target, met)


def _names(page: Notification) -> str:
    found = (dict(alert) for alert in page.alerts)
    return "+".join(sorted({f"{each['alertname']} {each.get('reason', '')}".strip() for each in found}))


def main(arguments: Sequence[str]) -> int:
    """Evaluate a day for each seed, and print a table. Exit status 0 whatever the result is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet_life", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="a day for each of them")
    parser.add_argument(
        "--interval",
        type=int,
        default=INTERVAL_SECONDS,
        help="seconds between scrapes, and between evaluations",
    )
    parser.add_argument(
        "--late",
        action="store_true",
        help=f"samples arrive {LATE_SECONDS} s late and without staleness markers",
    )
    given = parser.parse_args(arguments)
    exit_on_signals()
    for seed in given.seeds:
        days, verdicts, began = shifts(seed), list[Verdict](), time.monotonic()
        for each in days:
            with temporary_directory() as name:
                late = LATE_SECONDS if given.late else 0
                verdicts.append(live(each, given.interval, Path(name), late))
        life = Life(seed, days, together(verdicts), time.monotonic() - began)
        print(as_markdown(result(life)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
