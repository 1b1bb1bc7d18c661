"""`python -m tests.bench.demo_runs`: run `rankwatch demo` several times and count the right results."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .processes import exit_on_signals, tail, temporary_directory

HEALTHY_SECONDS = 180


class DemoRun(NamedTuple):
    """One demo from start to end."""

    outcome: dict[str, Any] | None
    """The JSON of `--result`; None if the demo ended before it was written."""
    wall_seconds: float
    log: str
    """End of its output."""

    @property
    def right(self) -> bool:
        """True if the injected rank was named and no other; in a healthy run, if none was."""
        return self.outcome is not None and bool(self.outcome["right"])

    def line(self) -> str:
        """The result in one line. If it is wrong, the demo's own output follows."""
        verdict = "right" if self.right else "WRONG"
        if self.outcome is None:
            return f"{verdict}  no outcome  wall {self.wall_seconds:.0f} s\n{self.log}"
        found = self.outcome
        detected = found["detection_seconds"]
        line = (
            f"{verdict}  injected {_rank(found['injected_rank'])}  named {_rank(found['named_rank'])}  "
            f"detected after {'-' if detected is None else f'{detected:.0f} s'}  "
            f"false alarms {len(found['false_alarms'])}  wall {self.wall_seconds:.0f} s"
        )
        return line if self.right else f"{line}\n{self.log}"


def run_demo(*flags: str) -> DemoRun:
    """Run one demo. It cleans up after itself, also after Ctrl-C, which it receives too."""
    with temporary_directory() as name:
        result, log = Path(name) / "result.json", Path(name) / "demo.log"
        command = [sys.executable, "-m", "rankwatch_cli", "demo", "--result", str(result), *flags]
        began = time.monotonic()
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                process.wait()
            except BaseException:
                process.terminate()
                process.wait()
                raise
        outcome = json.loads(result.read_text()) if result.exists() else None
        return DemoRun(outcome, time.monotonic() - began, tail(log))


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if any result was wrong, else 0."""
    given = _parser().parse_args(arguments)
    exit_on_signals()
    runs = []
    for number in range(1, given.runs + 1):
        runs.append(run_demo("--ranks", str(given.ranks)))
        print(f"run {number:>2}  {runs[-1].line()}", flush=True)
    if given.healthy:
        runs.append(run_demo("--ranks", str(given.ranks), "--healthy", str(HEALTHY_SECONDS)))
        print(f"healthy {runs[-1].line()}", flush=True)
    right = sum(each.right for each in runs)
    print(f"right {right} of {len(runs)}")
    return 0 if right == len(runs) else 1


def _rank(rank: int | None) -> str:
    return "none" if rank is None else f"rank {rank}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.demo_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="number of demos (default 10)")
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="ranks of each (default 4)")
    parser.add_argument(
        "--healthy", action="store_true", help=f"also watch one healthy run for {HEALTHY_SECONDS} s"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
