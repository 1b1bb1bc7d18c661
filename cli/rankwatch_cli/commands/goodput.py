"""`rankwatch goodput`: what the time of a run went to, its attempts, and what would be better."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.options import add_prometheus_options, add_run, prometheus_api
from rankwatch_cli.output import show, show_json, write_file
from rankwatch_cli.runs import named_run
from rankwatch_diagnosis.goodput.model import RunGoodput
from rankwatch_diagnosis.goodput.report import as_json, lines


def main(arguments: Sequence[str]) -> int:
    """Print the ledger; returns 0. Raises UserError where nothing of the run is known."""
    given = _parser().parse_args(arguments)
    run = _read(given)
    if given.html is not None:
        from rankwatch_diagnosis.goodput.report import goodput_page

        write_file(given.html, goodput_page(run))
    if given.json:
        show_json(as_json(run))
    else:
        show(*lines(run))
    return 0


def _read(given: argparse.Namespace) -> RunGoodput:
    if given.prometheus is None:
        return _of_this_node(given)
    if given.run is None:
        raise UserError("--prometheus needs the name of a run")
    from rankwatch_diagnosis.goodput.from_prometheus import read_prometheus

    return read_prometheus(prometheus_api(given), given.run, cluster=given.cluster, since_seconds=given.since)


def _of_this_node(given: argparse.Namespace) -> RunGoodput:
    from rankwatch_agent.runtime.config import AgentConfig
    from rankwatch_agent.training.goodput.run_ledgers import ACCOUNT
    from rankwatch_diagnosis.goodput.from_boxes import read_folder

    account = given.account or Path(AgentConfig.state_directory) / ACCOUNT
    return read_folder(named_run(given.run), account)


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch goodput",
        description="Say what the time of a run's ranks was spent on, over all of its attempts, what that "
        "cost, and what another checkpoint interval, no straggler or fewer restarts would be worth.",
    )
    add_run(
        parser, "or a directory with its black boxes; with --prometheus the name, as its label `run` has it"
    )
    parser.add_argument(
        "--account",
        type=Path,
        metavar="FILE",
        help="where the agent of this node keeps account of time (default: goodput.json in the default "
        "state_directory)",
    )
    add_prometheus_options(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a page, one file without network"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
