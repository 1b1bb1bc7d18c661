"""`python -m rankwatch_alerts generate`: rewrite the rule files and the Alertmanager configuration."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankwatch_alerts.config import RuleConfig, RuleConfigError
from rankwatch_alerts.generation import write_all


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 2 with one sentence where the input is wrong or a file cannot be written."""
    options = _parser().parse_args(arguments)
    try:
        config = replace(
            RuleConfig().scaled(options.time_scale),
            runbook_base_url=options.runbook_base_url.rstrip("/"),
            dashboard_base_url=options.dashboard_base_url.rstrip("/"),
        )
        for path in write_all(config, options.output):
            print(path)
    except (RuleConfigError, OSError) as error:
        print(f"could not generate the rules: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = RuleConfig()
    parser = argparse.ArgumentParser(prog="python -m rankwatch_alerts", description=__doc__)
    commands = parser.add_subparsers(required=True)
    generate = commands.add_parser("generate", help="write rules and Alertmanager configuration")
    generate.add_argument("--output", type=Path, default=Path("alerts/generated"), metavar="DIR")
    generate.add_argument("--time-scale", type=float, default=1.0, metavar="X", help="divide all times by X")
    generate.add_argument("--runbook-base-url", default=defaults.runbook_base_url, metavar="URL")
    generate.add_argument("--dashboard-base-url", default=defaults.dashboard_base_url, metavar="URL")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
