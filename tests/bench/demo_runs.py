"""`python -m tests.bench.demo_runs`: run `rankwatch demo` several times and count the right results."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .processes import exit_on_signals, tail, temporary_directory

HEALTHY_SECONDS = 180


def run_demo(*flags: str) -> tuple[bool, str]:
    """Run one demo. Returns whether the injected rank was named and no other, or in a healthy run none, and
    the result in a line; behind a wrong one follows the demo's own output.

    It cleans up after itself, also after Ctrl-C, which it receives too.
    """
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
        wall = f"wall {time.monotonic() - began:.0f} s"
        if not result.exists():
            return False, f"WRONG  no outcome  {wall}\n{tail(log)}"
        found = json.loads(result.read_text())
        after = found["detection_seconds"]
        injected, named = (
            "none" if found[rank] is None else f"rank {found[rank]}"
            for rank in ("injected_rank", "named_rank")
        )
        line = (
            f"injected {injected}  named {named}  detected after {'-' if after is None else f'{after:.0f} s'}"
        )
        line += f"  false alarms {len(found['false_alarms'])}  {wall}"
        return bool(found["right"]), f"right  {line}" if found["right"] else f"WRONG  {line}\n{tail(log)}"


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if any result was wrong, else 0."""
    given = _parser().parse_args(arguments)
    exit_on_signals()
    ranks = ("--ranks", str(given.ranks))
    runs: list[Sequence[str]] = [ranks] * given.runs
    if given.healthy:
        runs.append((*ranks, "--healthy", str(HEALTHY_SECONDS)))
    right = 0
    for number, flags in enumerate(runs, 1):
        is_right, line = run_demo(*flags)
        right += is_right
        print(f"run {number:>2}  {line}", flush=True)
    print(f"right {right} of {len(runs)}")
    return 0 if right == len(runs) else 1


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
