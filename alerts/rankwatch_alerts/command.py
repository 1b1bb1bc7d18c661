"""What the generators of rules and dashboards share: flags, and failures in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rankwatch.errors import SettingError
from rankwatch.settings import SentenceParser, printable


def generator_parser(
    package: str, what: str, output: str, description: str | None
) -> tuple[SentenceParser, SentenceParser]:
    """The parser of `python -m PACKAGE`, and that of its one command `generate` with the common flags."""
    parser = SentenceParser(prog=f"python -m {package}", description=description)
    generate = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "generate", help=f"write {what}", description=description
    )
    generate.add_argument(
        "--output",
        type=Path,
        default=Path(output),
        metavar="DIR",
        help="directory to write to, made where it does not exist (default: %(default)s)",
    )
    generate.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file of windows, thresholds and selectors, the same for rules and dashboards; "
        "`python -m rankwatch_alerts generate --print-config` prints one",
    )
    return parser, generate


def run_generator(what: str, write: Callable[[], Iterable[Path | str]], *, module: str, extra: str) -> int:
    """Print what `write` returns. Exit status 0, or 2 with one sentence where it fails.

    `module` is what `write` needs beside the standard library, `extra` the extra that installs it.
    """
    try:
        for each in write():
            print(each)
    except (SettingError, OSError) as error:
        return _failed(what, str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        advice = f"in a clone of rankwatch, pip install '.[{extra}]' brings it"
        return _failed(what, f"could not import {module}: {advice}")
    return 0


def _failed(what: str, why: str) -> int:
    print(printable(f"could not generate {what}: {why}"), file=sys.stderr)
    return 2
