"""`python -m rankwatch_alerts generate`: write the rule files and the Alertmanager configuration."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rankwatch.settings import to_toml
from rankwatch_alerts.command import generator_parser, run_generator
from rankwatch_alerts.config import RuleConfig, load_config
from rankwatch_alerts.generation import write_all
from rankwatch_alerts.scaling import MAX_TIME_SCALE


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 2 with one sentence where input is wrong, a file fails or PyYAML is missing."""
    options = _options(arguments)
    return run_generator("the rules", lambda: _generate(options), module="yaml", extra="alerts")


def _generate(options: Namespace) -> Iterable[Path | str]:
    config = _config(options)
    if options.print_config:
        return [to_toml(config).rstrip("\n")]
    # Only here, so that a missing extra is named by the command, and not by an ImportError.
    from rankwatch_alerts.checks import refuse_wrong

    refuse_wrong(config)
    return write_all(config, options.output)


def _config(options: Namespace) -> RuleConfig:
    """The settings in force, scaled, with URLs that a path can follow."""
    config = load_config(options.config, vars(options)).scaled(options.time_scale)
    return replace(
        config,
        runbook_base_url=config.runbook_base_url.rstrip("/"),
        dashboard_base_url=config.dashboard_base_url.rstrip("/"),
    )


def _options(arguments: Sequence[str]) -> Namespace:
    defaults = RuleConfig()
    what = "rules and Alertmanager configuration"
    parser, generate = generator_parser("rankwatch_alerts", what, "alerts/generated", __doc__)
    generate.add_argument(
        "--print-config", action="store_true", help="print the settings in force as TOML, and write nothing"
    )
    generate.add_argument(
        "--time-scale",
        type=float,
        default=1.0,
        metavar="X",
        help=f"divide all times by X, above 0 and at most {MAX_TIME_SCALE:g}, to try rules out "
        "(default: %(default)g)",
    )
    generate.add_argument(
        "--runbook-base-url",
        metavar="URL",
        help=f"where runbooks/ is published; wins over --config (default: {defaults.runbook_base_url})",
    )
    generate.add_argument(
        "--dashboard-base-url",
        metavar="URL",
        help=f"root URL of Grafana; wins over --config (default: {defaults.dashboard_base_url})",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
