"""`rankwatch goodput`: what the time of a run went to, its attempts, and what would be better."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.runs import named_run, runs_directory
from rankwatch_diagnosis.goodput.model import RunGoodput
from rankwatch_diagnosis.goodput.report import as_json, lines

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_SINCE = re.compile(r"(\d{1,5})([mhd])", re.ASCII)
_LONGEST_SECONDS = 366 * 86400.0
_MOST_TOKEN_BYTES = 1 << 16


def main(arguments: Sequence[str]) -> int:
    """Print the ledger; returns 0. Raises UserError where nothing of the run is known."""
    given = _parser().parse_args(arguments)
    run = _read(given)
    if given.html is not None:
        from rankwatch_diagnosis.goodput.page.html import goodput_page

        _write(given.html, goodput_page(run))
    if given.json:
        print(json.dumps(as_json(run), allow_nan=False))
    else:
        print("\n".join(lines(run)))
    return 0


def _read(given: argparse.Namespace) -> RunGoodput:
    if given.prometheus is None:
        return _of_this_node(given)
    if given.run is None:
        raise UserError("--prometheus needs the name of a run")
    from rankwatch_diagnosis.goodput.from_prometheus import read_prometheus
    from rankwatch_diagnosis.prometheus_api import PrometheusApi

    token = given.bearer_token_file
    headers = {} if token is None else {"Authorization": f"Bearer {_token(token)}"}
    api = PrometheusApi(url=given.prometheus, headers=headers, timeout_seconds=given.timeout_seconds)
    return read_prometheus(api, given.run, cluster=given.cluster, since_seconds=given.since)


def _of_this_node(given: argparse.Namespace) -> RunGoodput:
    from rankwatch_agent.runtime.config import AgentConfig
    from rankwatch_agent.training.goodput.run_ledgers import ACCOUNT
    from rankwatch_diagnosis.goodput.from_boxes import read_folder

    account = given.account or Path(AgentConfig.state_directory) / ACCOUNT
    return read_folder(named_run(given.run, runs_directory()), account)


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch goodput",
        description="Say what the time of a run's ranks was spent on, over all of its attempts, what that "
        "cost, and what another checkpoint interval, no straggler or fewer restarts would be worth.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="name of a run of this node, as `rankwatch ls` lists it (default: the newest), or a directory "
        "with its black boxes; with --prometheus the name, as its label `run` has it",
    )
    parser.add_argument(
        "--account",
        type=Path,
        metavar="FILE",
        help="where the agent of this node keeps account of time (default: goodput.json in the default "
        "state_directory)",
    )
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
        type=_positive,
        default=30.0,
        metavar="SECONDS",
        help="longest wait for an answer",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a page, one file without network"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _seconds(text: str) -> float:
    match = _SINCE.fullmatch(text)
    seconds = 0.0 if match is None else int(match[1]) * _UNITS[match[2]]
    if not 0.0 < seconds <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90m, 36h or 30d, up to 366d")
    return seconds


def _positive(text: str) -> float:
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"could not write {path}: {error.strerror or error}") from None
