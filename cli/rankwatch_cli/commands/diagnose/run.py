"""`rankwatch diagnose run`: everything about a run at once, from its black boxes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.output import show_json, show_verdict
from rankwatch_cli.runs import named_run, runs_directory
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import as_json, colour_of, lines


def main(arguments: Sequence[str]) -> int:
    """Print the verdict; returns 0. Raises UserError where there is nothing to diagnose."""
    given = _parser().parse_args(arguments)
    if given.stall_seconds is not None and not 0.0 < given.stall_seconds < 1e9:
        raise UserError(f"--stall-seconds is {given.stall_seconds}, expected a number above 0")
    directory = named_run(given.run, runs_directory())
    state = given.state_directory
    if state is None and directory.parent == runs_directory():
        state = _state_of_agent()
    verdict = diagnose_run(
        directory, stall=given.stall_seconds, complete=given.complete, agent_state=state, ask_gpus=True
    )
    if given.json:
        show_json(as_json(verdict))
    else:
        show_verdict(*lines(verdict), colour=colour_of(verdict))
    return 0


def _state_of_agent() -> Path | None:
    """Return the state directory of this node's agent if this user may look into it, else None."""
    state = Path(AgentConfig.state_directory)
    return state if os.access(state, os.R_OK | os.X_OK) else None


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch diagnose run",
        description="Say how a run is: whom it waits for, what slows it down, its loss and its checkpoints.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="name of a run of this node, as `rankwatch ls` lists it (default: the newest), or a directory "
        "with the black boxes of one run, live or dead, or an evidence bundle",
    )
    parser.add_argument(
        "--complete",
        action="store_true",
        help="RUN holds the boxes of all nodes: a rank without one is missing, not elsewhere",
    )
    parser.add_argument(
        "--state-directory",
        type=Path,
        metavar="DIR",
        help="state_directory of the agent, with what it has verified (default: its default, for a run "
        "of this node)",
    )
    parser.add_argument(
        "--stall-seconds",
        type=float,
        metavar="SECONDS",
        help="age from which a wait is a stall (default: as the ranks have learnt, from 5 to 30)",
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    return parser
