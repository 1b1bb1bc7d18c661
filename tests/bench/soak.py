"""`python -m tests.bench.soak`: watch an agent on a whole GPU node for half an hour, for growth."""

from __future__ import annotations

import argparse
import sys

from .node import WARMUP_SECONDS, measure_window
from .processes import exit_on_signals
from .result import BenchError, as_markdown, met


def main(arguments: list[str]) -> int:
    """Exit status 0, or 1 if nothing could be measured or a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the window (default 30)")
    given = parser.parse_args(arguments)
    exit_on_signals()
    try:
        result = measure_window(window_seconds=60 * given.minutes, warmup_seconds=WARMUP_SECONDS)
    except BenchError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    print(as_markdown(result))
    return 0 if met(result) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
