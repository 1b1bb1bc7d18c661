"""How commands ask a Prometheus: their options, and the client that these describe."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rankwatch_agent.runtime.errors import UserError

if TYPE_CHECKING:
    from rankwatch_diagnosis.prometheus_api import PrometheusApi

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_SINCE = re.compile(r"(\d{1,5})([mhd])", re.ASCII)
_LONGEST_SECONDS = 366 * 86400.0
_MOST_TOKEN_BYTES = 1 << 16


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
    """The client. Raises UserError for an address or a token that cannot be used."""
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
    """A number of seconds of an option."""
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
