"""`python -m rankwatch_dashboards generate`: rewrite the dashboards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.generation import write_dashboards


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 2 with one sentence where a file cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m rankwatch_dashboards", description=__doc__)
    generate = parser.add_subparsers(required=True).add_parser("generate", help="write the dashboards")
    generate.add_argument("--output", type=Path, default=Path("dashboards/generated"), metavar="DIR")
    options = parser.parse_args(arguments)
    try:
        for path in write_dashboards(RuleConfig(), options.output):
            print(path)
    except OSError as error:
        print(f"could not generate the dashboards: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
