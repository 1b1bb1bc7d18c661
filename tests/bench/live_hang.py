"""Live hangs: five faults of one rank in real jobs, and how long until the delivered alert names that rank.

`python -m tests.bench.live_hang --seed 1`, or several seeds. Rules at the scale of the demo: scrapes each
second, a floor of 10 s under the learnt timeout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the shared test code, as under pytest

from rankwatch_alerts import RuleConfig
from support.e2e.game_day import monitored_system
from support.e2e.hang_days import HANG_FAULTS, Named, begin_hangs, named_in, struck_ranks

from .processes import exit_on_signals, temporary_directory
from .result import Result, Row, as_markdown

_NODE = "node-a"
_TIMES_TIMEOUT = 3.0
_CONFIG = RuleConfig.for_demo()


def measure(seed: int) -> Result:
    """All five at once, in jobs of four ranks; which rank is struck hangs on the seed."""
    struck = struck_ranks(seed)
    with (
        temporary_directory() as name,
        monitored_system(Path(name), _CONFIG, (_NODE,)) as system,
    ):
        begin_hangs(system, _NODE, struck)
        named = {run: named_in(system, run) for run in HANG_FAULTS}
    return Result(
        title=f"Live hangs, seed {seed}",
        rows=tuple(_row(run, struck[run], each) for run, each in named.items()),
        notes=(
            "Measured: from the last progress of the run to the arrival of the alert that names a rank. "
            f"Target: {_TIMES_TIMEOUT:g} x the learnt timeout, or {_TIMES_TIMEOUT:g} x its floor of "
            f"{_CONFIG.stall_floor_seconds:g} s.",
        ),
        samples={
            run: {"seconds": each.seconds, "timeout_seconds": each.timeout_seconds}
            for run, each in named.items()
        },
    )


def _row(run: str, rank: int, named: Named) -> Row:
    limit = _TIMES_TIMEOUT * max(named.timeout_seconds, _CONFIG.stall_floor_seconds)
    told = named.alert.labels["rank"]
    right = told == str(rank) and named.alert.name == HANG_FAULTS[run].alert
    return Row(
        f"{run}: rank {rank}",
        f"{named.seconds:.1f} s, {named.alert.name} rank {told}",
        f"learnt timeout {named.timeout_seconds:.1f} s",
        f"<= {limit:.0f} s, rank {rank}",
        right and named.seconds <= limit,
    )


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 where every rank was named right and in time, else 1."""
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
