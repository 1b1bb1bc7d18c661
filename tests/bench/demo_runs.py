"""`python -m tests.bench.demo_runs`: play `rankwatch demo` again and again, and count who was right."""

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


class Play(NamedTuple):
    """One demo from start to end."""

    outcome: dict[str, Any] | None
    """What `--result` wrote; None where the demo ended before it could."""
    wall_seconds: float
    log: str
    """End of what it printed."""

    @property
    def right(self) -> bool:
        """The injected rank was named (none, in a healthy run), and nothing else."""
        return self.outcome is not None and bool(self.outcome["right"])

    def line(self) -> str:
        """The play in one line; what went wrong is told by the demo itself."""
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


def play(*flags: str) -> Play:
    """One demo; it cleans up after itself, also after Ctrl-C, which it receives as we do."""
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
        return Play(outcome, time.monotonic() - began, tail(log))


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if any play was wrong, else 0."""
    given = _parser().parse_args(arguments)
    exit_on_signals()
    plays = []
    for number in range(1, given.runs + 1):
        plays.append(play("--ranks", str(given.ranks)))
        print(f"run {number:>2}  {plays[-1].line()}", flush=True)
    if given.healthy:
        plays.append(play("--ranks", str(given.ranks), "--healthy", str(HEALTHY_SECONDS)))
        print(f"healthy {plays[-1].line()}", flush=True)
    right = sum(each.right for each in plays)
    print(f"right {right} of {len(plays)}")
    return 0 if right == len(plays) else 1


def _rank(rank: int | None) -> str:
    return "none" if rank is None else f"rank {rank}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.demo_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="demos to play (default 10)")
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="ranks of each (default 4)")
    parser.add_argument(
        "--healthy", action="store_true", help=f"also watch one healthy run for {HEALTHY_SECONDS} s"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
