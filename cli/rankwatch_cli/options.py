"""Options that several commands have: the run, a window of steps, and which Prometheus is asked, and how."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rankwatch_agent.runtime.errors import UserError

if TYPE_CHECKING:
    from rankwatch_diagnosis.prometheus_api import PrometheusApi

FOLDER = "a directory with the black boxes of one run, live or dead, or an evidence bundle"
"""Words for what commands that read black boxes take in the place of a name."""
_WINDOW = re.compile(r"(-?\d{1,18})?:(-?\d{1,18})?")
_STEP = re.compile(r"-?\d{1,18}")
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_SINCE = re.compile(r"(\d{1,5})([mhd])", re.ASCII)
_LONGEST_SECONDS = 366 * 86400.0
_MOST_TOKEN_BYTES = 1 << 16


def add_run(parser: argparse.ArgumentParser, others: str) -> None:
    """Add the positional RUN; `others` is what it may be beside the name of a run."""
    known = "name of a run of this node, as `rankwatch ls` lists it (default: the newest)"
    parser.add_argument("run", nargs="?", metavar="RUN", help=f"{known}, {others}")


class Window(NamedTuple):
    """Step numbers as a user gives them; negative ones count from behind the newest step."""

    first: int | None
    end: int | None

    def of(self, oldest: int, newest: int) -> range:
        """Return the steps meant, where these are the oldest and the newest step."""
        first, end = (
            edge if each is None else each + newest + 1 if each < 0 else each
            for each, edge in zip(self, (oldest, newest + 1), strict=True)
        )
        return range(max(0, first), end)


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add `--steps A:B`, which `parse_window` reads."""
    parser.add_argument(
        "--steps",
        default=":",
        metavar="A:B",
        help="from step A up to, but not including, step B, as Python slices: 100:200, 100:, :200; "
        "--steps=-50: takes the newest 50; N alone is one step (default: all)",
    )


def parse_window(text: str) -> Window:
    """Read a window. Raises UserError for anything but A:B, A:, :B, : and N."""
    if _STEP.fullmatch(text):
        return Window(int(text), None if int(text) == -1 else int(text) + 1)
    match = _WINDOW.fullmatch(text)
    if match is not None:
        first, end = (None if each is None else int(each) for each in match.groups())
        if first is None or end is None or (first < 0) != (end < 0) or first < end:
            return Window(first, end)
    raise UserError(f"--steps is {text!r}, expected A:B with A below B, such as 100:200 for steps 100 to 199")


def add_prometheus_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which Prometheus, which cluster, and how far to look back."""
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="ask this Prometheus, which knows all nodes; USER:PASSWORD@ before the host logs in",
    )
    parser.add_argument(
        "--bearer-token-file", type=Path, metavar="FILE", help="file with the token that Prometheus asks for"
    )
    parser.add_argument(
        "--cluster", metavar="NAME", help="cluster of the run, if several have one of its name"
    )
    parser.add_argument(
        "--since",
        type=_seconds,
        default=_seconds("15d"),
        metavar="TIME",
        help="how far to look back: 90m, 36h, 30d (default: 15d, for which Prometheus keeps data by default)",
    )
    parser.add_argument(
        "--timeout-seconds",
        type=seconds_above_zero,
        default=30.0,
        metavar="SECONDS",
        help="longest wait for an answer",
    )


def prometheus_api(given: argparse.Namespace) -> PrometheusApi:
    """Return the client. Raises UserError for an address or a token that cannot be used."""
    from rankwatch_diagnosis.prometheus_api import PrometheusApi

    token = given.bearer_token_file
    headers = {} if token is None else {"Authorization": f"Bearer {_token(token)}"}
    return PrometheusApi(url=given.prometheus, headers=headers, timeout_seconds=given.timeout_seconds)


def _seconds(text: str) -> float:
    match = _SINCE.fullmatch(text)
    seconds = 0.0 if match is None else int(match[1]) * _UNITS[match[2]]
    if not 0.0 < seconds <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90m, 36h or 30d, up to 366d")
    return seconds


def seconds_above_zero(text: str) -> float:
    """Return a number of seconds of an option."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0, up to 3600")
    return seconds


def _token(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            token = file.read(_MOST_TOKEN_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no plain text"
        raise UserError(f"could not read --bearer-token-file {path}: {reason}") from None
    if not token or not token.isprintable() or " " in token:
        raise UserError(f"--bearer-token-file {path} holds no token")
    return token
