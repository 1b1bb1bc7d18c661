"""`rankwatch report`: all that is known about a run, as a page or as Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.options import add_prometheus_options, add_run, prometheus_api, seconds_above_zero
from rankwatch_cli.output import show_text, write_file
from rankwatch_cli.runs import named_run, runs_directory
from rankwatch_diagnosis.review.markdown import markdown
from rankwatch_diagnosis.review.model import RunReview


def main(arguments: Sequence[str]) -> int:
    """Print the report or write its files; returns 0. Raises UserError where nothing of the run is known."""
    given = _parser().parse_args(arguments)
    review = _of_prometheus(given) if given.prometheus is not None else _of_this_node(given)
    if given.html is not None:
        from rankwatch_diagnosis.review.page import review_page

        write_file(given.html, review_page(review))
    if given.markdown is not None:
        write_file(given.markdown, markdown(review))
    if given.html is None and given.markdown is None:
        show_text(markdown(review))
    return 0


def _of_prometheus(given: argparse.Namespace) -> RunReview:
    if given.run is None:
        raise UserError("--prometheus needs the name of a run")
    from rankwatch_diagnosis.review.from_prometheus import review_prometheus

    return review_prometheus(
        prometheus_api(given), given.run, cluster=given.cluster, since_seconds=given.since
    )


def _of_this_node(given: argparse.Namespace) -> RunReview:
    from rankwatch_agent.runtime.config import AgentConfig
    from rankwatch_diagnosis.review.from_boxes import review_folder

    directory = named_run(given.run)
    here = directory.parent == runs_directory()  # else the agent of this node knows nothing of it
    state = given.state_directory or (Path(AgentConfig.state_directory) if here else None)
    evidence = given.evidence or (Path(AgentConfig.evidence_directory) if here else None)
    return review_folder(directory, agent_state=state, evidence=evidence, stall=given.stall_seconds)


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch report",
        description="Write what is known about a run: what happened when, what it lost in GPU-hours and "
        "money, the verdicts with their evidence, and what could not be seen. Without an option it "
        "prints Markdown, in which the questions that only people can answer are left open.",
    )
    add_run(
        parser,
        "a directory with its black boxes, or an evidence bundle; with --prometheus the name, as its label "
        "`run` has it",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page, one file without network")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the Markdown to a file")
    parser.add_argument(
        "--state-directory",
        type=Path,
        metavar="DIRECTORY",
        help="state_directory of the agent, with its account of time and what it has verified (default: its "
        "default, for a run of this node)",
    )
    parser.add_argument(
        "--evidence",
        type=Path,
        metavar="DIRECTORY",
        help="evidence_directory of the agent (default: its default, for a run of this node)",
    )
    parser.add_argument(
        "--stall-seconds",
        type=seconds_above_zero,
        metavar="SECONDS",
        help="age from which a wait is a stall (default: as the ranks have learnt, from 5 to 30)",
    )
    add_prometheus_options(parser)
    return parser
