"""`rankwatch diagnose hang`: which rank a hung or desynchronised run waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankwatch.settings import SentenceParser
from rankwatch_cli.output import note, show_json, show_verdict
from rankwatch_cli.runs import boxes_of, named_run, runs_directory
from rankwatch_diagnosis.hang.dump_files import read_source
from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.verdict import GroupState, HangVerdict, State
from rankwatch_diagnosis.json_value import json_value
from rankwatch_diagnosis.run.engine import diagnose_waiting
from rankwatch_diagnosis.words import listed

_GROUPS_SHOWN = 5
_COLOURS: Mapping[State, str] = {State.HANG: "red", State.DESYNC: "red", State.OK: "green"}
_SENTENCES: Mapping[State, str] = {
    State.HANG: "the run hangs",
    State.DESYNC: "the ranks are out of step",
    State.SLOW: "ranks wait, and all of them advance",
    State.OK: "nothing hangs",
    State.INCONCLUSIVE: "operations are pending, and the dumps do not show whom they wait for",
}

_UNSEEN = "no operation is pending, but the dumps show too little to call the run healthy"
_IN_SENTENCES = frozenset({"reasons", "mismatches"})
"""Evidence that the sentences about ranks already contain."""


def main(arguments: Sequence[str]) -> int:
    """Print the verdict; returns 0. Raises UserError if there is nothing to diagnose."""
    parser = SentenceParser(
        prog="rankwatch diagnose hang",
        description="Name the ranks that a run waits for, from the flight recorders of its ranks.",
        epilog="Pickles are loaded without executing anything in them.",
    )
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="a run of this node by its name (default: the newest), a directory of dumps "
        "whose names end in the rank's number, or one file of JSON snapshots",
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    given = parser.parse_args(arguments)
    verdict = _diagnose(named_run(given.path, runs_directory(), announce=True))
    if given.json:
        show_json(json_value(asdict(verdict)), indent=2)
    else:
        show_verdict(*lines(verdict), colour=_COLOURS.get(verdict.state, "yellow"))
    return 0


def _diagnose(path: Path) -> HangVerdict:
    """Diagnose a hang by dumps; in a directory of black boxes, by the ranks themselves."""
    if boxes_of(path):
        return diagnose_waiting(path)
    reading = read_source(path)
    if reading.skipped_lines:
        note(f"{reading.skipped_lines} lines of {path} are no JSON and were skipped")
    return diagnose(reading.snapshots, broken=reading.broken)


def lines(verdict: HangVerdict) -> Iterator[str]:
    """Yield the verdict for a person: headline, then evidence. Names from the dumps may hold anything."""
    unseen = verdict.state is State.INCONCLUSIVE and not verdict.groups
    headline = f"{verdict.state.upper()}: {_UNSEEN if unseen else _SENTENCES[verdict.state]}"
    if verdict.ranks:
        headline += f"; {listed(verdict.ranks)} {'is' if len(verdict.ranks) == 1 else 'are'} to blame"
    if verdict.group is not None:
        headline += f", in {verdict.operation} of {verdict.group}"
    yield headline
    reasons = verdict.evidence.get("reasons")
    if isinstance(reasons, dict):
        yield from (f"  rank {rank} {reason}" for rank, reason in reasons.items())
    if verdict.missing_ranks:
        yield f"  no usable dump of {listed(verdict.missing_ranks)}"
    if verdict.groups:
        yield "groups that wait:"
    yield from (f"  {_group(each)}" for each in verdict.groups[:_GROUPS_SHOWN])
    if len(verdict.groups) > _GROUPS_SHOWN:
        yield f"  and {len(verdict.groups) - _GROUPS_SHOWN} more; --json shows them"
    yield "evidence:"
    yield from _evidence(verdict.evidence)


def _group(state: GroupState) -> str:
    parts = [f"{len(state.arrived)} of {state.members} ranks in it"]
    if state.waited_for:
        parts.append(f"it waits for {listed(state.waited_for)}")
    if state.completed_by:
        parts.append(f"completed by {listed(state.completed_by)}")
    if state.no_dump:
        parts.append(f"no dump of {listed(state.no_dump)}")
    return f"{state.operation} number {state.sequence} of {state.group}: {', '.join(parts)}"


def _evidence(evidence: Mapping[str, object]) -> Iterator[str]:
    for name, value in evidence.items():
        if name == "mismatches" and isinstance(value, list):
            yield from (f"  mismatch: {_mismatch(each)}" for each in value[:_GROUPS_SHOWN])
        if name in _IN_SENTENCES:
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{_key(key)}: {each}" for key, each in value.items())
        elif isinstance(value, float):
            value = f"{value:.4g}"
        elif isinstance(value, list):
            value = "; ".join(map(str, value[:_GROUPS_SHOWN])) + (
                "; ..." if len(value) > _GROUPS_SHOWN else ""
            )
        yield f"  {name.replace('_', ' ')}: {value}"


def _key(key: object) -> str:
    """Name the rank for a key that is a number."""
    return f"rank {key}" if str(key).isdecimal() else str(key)


def _mismatch(found: Mapping[str, Any]) -> str:
    calls = "; ".join(f"{listed(ranks)} called {call}" for call, ranks in found["calls"].items())
    return f"number {found['sequence']} of {found['group']}: {calls}"
