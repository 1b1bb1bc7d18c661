"""`python -m rankwatch_dashboards generate`: write the dashboards."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rankwatch_alerts import load_config
from rankwatch_alerts.command import generator_parser, run_generator
from rankwatch_dashboards import write_dashboards


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 2 with one sentence where input is wrong, a file fails or the SDK is missing."""
    parser, _ = generator_parser("rankwatch_dashboards", "the dashboards", "dashboards/generated", __doc__)
    options = parser.parse_args(arguments)
    return run_generator(
        "the dashboards",
        lambda: write_dashboards(load_config(options.config), options.output),
        module="grafana_foundation_sdk",
        extra="dashboards",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
