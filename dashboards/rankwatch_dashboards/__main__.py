"""`python -m rankwatch_dashboards generate`: write the dashboards."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rankwatch.errors import SettingError
from rankwatch.settings import SentenceParser, printable
from rankwatch_alerts import load_config
from rankwatch_dashboards.generation import write_dashboards


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 2 with one sentence where input is wrong, a file fails or the SDK is missing."""
    options = _parser().parse_args(arguments)
    try:
        for path in write_dashboards(load_config(options.config), options.output):
            print(path)
    except (SettingError, OSError) as error:
        return _failed(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "grafana_foundation_sdk":
            raise
        return _failed(
            "could not import grafana_foundation_sdk: "
            "in a clone of rankwatch, pip install '.[dashboards]' brings it"
        )
    return 0


def _failed(cause: str) -> int:
    print(printable(f"could not generate the dashboards: {cause}"), file=sys.stderr)
    return 2


def _parser() -> SentenceParser:
    parser = SentenceParser(prog="python -m rankwatch_dashboards", description=__doc__)
    generate = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "generate", help="write the dashboards", description=__doc__
    )
    generate.add_argument(
        "--output",
        type=Path,
        default=Path("dashboards/generated"),
        metavar="DIR",
        help="directory to write to, made where it does not exist (default: %(default)s)",
    )
    generate.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the TOML file the rules are generated from, so that panels draw the same thresholds",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
