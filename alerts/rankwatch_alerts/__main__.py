"""`python -m rankwatch_alerts generate`: write the rule files and the Alertmanager configuration."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankwatch.errors import SettingError
from rankwatch.settings import SentenceParser, printable, to_toml
from rankwatch_alerts.config import MAX_TIME_SCALE, RuleConfig, load_config
from rankwatch_alerts.generation import write_all


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 2 with one sentence where input is wrong, a file fails or PyYAML is missing."""
    options = _parser().parse_args(arguments)
    try:
        config = _config(options)
        if options.print_config:
            print(to_toml(config), end="")
            return 0
        for path in write_all(config, options.output):
            print(path)
    except (SettingError, OSError) as error:
        return _failed(str(error))
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        return _failed("could not import yaml: in a clone of rankwatch, pip install '.[alerts]' brings it")
    return 0


def _failed(cause: str) -> int:
    print(printable(f"could not generate the rules: {cause}"), file=sys.stderr)
    return 2


def _config(options: Namespace) -> RuleConfig:
    """The settings in force, scaled, with URLs that a path can follow."""
    config = load_config(options.config, vars(options)).scaled(options.time_scale)
    return replace(
        config,
        runbook_base_url=config.runbook_base_url.rstrip("/"),
        dashboard_base_url=config.dashboard_base_url.rstrip("/"),
    )


def _parser() -> SentenceParser:
    defaults = RuleConfig()
    parser = SentenceParser(prog="python -m rankwatch_alerts", description=__doc__)
    generate = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "generate", help="write rules and Alertmanager configuration", description=__doc__
    )
    generate.add_argument(
        "--output",
        type=Path,
        default=Path("alerts/generated"),
        metavar="DIR",
        help="directory to write to, made where it does not exist (default: %(default)s)",
    )
    generate.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file of windows, thresholds and selectors; its keys are the lines of --print-config",
    )
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
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
