"""`python -m tests.bench.live_hang`: seconds until the delivered alert names the rank that hangs a real job.

Five faults in one run for each seed. The rules run at the scale of the demo: a scrape each second, and a
floor of 10 s under the learnt timeout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwatch_alerts import RuleConfig
from support.e2e.hangs import (
    HANG_FAULTS,
    DeliveredHang,
    faulty_ranks,
    hang_naming_a_rank,
    named_rank,
    start_hanging_jobs,
)
from support.e2e.monitored_system import monitored_system

from .processes import exit_on_signals, temporary_directory
from .result import Result, Row, as_markdown

_NODE = "node-a"
_TIMES_TIMEOUT = 3.0
_CONFIG = RuleConfig.for_demo()


def measure(seed: int) -> Result:
    """All five faults at once, in jobs of four ranks. The seed determines the rank at fault."""
    faulty = faulty_ranks(seed)
    with (
        temporary_directory() as name,
        monitored_system(Path(name), _CONFIG, (_NODE,)) as system,
    ):
        start_hanging_jobs(system, _NODE, faulty)
        named = {run: hang_naming_a_rank(system, run) for run in HANG_FAULTS}
    return Result(
        title=f"Live hangs, seed {seed}",
        rows=tuple(_row(run, faulty[run], each) for run, each in named.items()),
        notes=(
            "Measured from the last progress of the run to the arrival of the alert that names a rank. "
            f"Target: {_TIMES_TIMEOUT:g} x the learnt timeout, or {_TIMES_TIMEOUT:g} x its floor of "
            f"{_CONFIG.stall_floor_seconds:g} s.",
        ),
        samples={
            run: {"seconds": each.seconds, "timeout_seconds": each.timeout_seconds}
            for run, each in named.items()
        },
    )


def _row(run: str, rank: int, named: DeliveredHang) -> Row:
    limit = _TIMES_TIMEOUT * max(named.timeout_seconds, _CONFIG.stall_floor_seconds)
    rank_named, _ = named_rank(named.alert) or ("nobody", "")
    fault = HANG_FAULTS[run]
    alert = (named.alert.name, named.alert.labels["reason"])
    right = rank_named == str(rank) and alert == (fault.alert, fault.reason)
    return Row(
        f"{run}: rank {rank}",
        f"{named.seconds:.1f} s, {named.alert.name} rank {rank_named}",
        f"learnt timeout {named.timeout_seconds:.1f} s",
        f"<= {limit:.0f} s, rank {rank}",
        right and named.seconds <= limit,
    )


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 if every right rank was named in time, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.live_hang", description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="one run of all faults for each")
    given = parser.parse_args(arguments)
    met = True
    exit_on_signals()
    for seed in given.seed:
        result = measure(seed)
        print(as_markdown(result), flush=True)
        met = met and all(row.met for row in result.rows)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
