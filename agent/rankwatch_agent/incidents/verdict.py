"""The diagnosis of a bundle, asked for through one door: a process `python -m rankwatch_diagnosis.run DIR`.

It computes with NumPy, which the agent never imports and which may not be installed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rankwatch.conventions import RankState
from rankwatch.conventions.incidents import EvidenceFault, IncidentKind
from rankwatch_agent.incidents.bundle import EvidenceError
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.limited_process import Limits, run_limited
from rankwatch_agent.incidents.registry import MOST_CULPRITS, Culprit

LIMITS = Limits(seconds=60.0, output_bytes=4 << 20, memory_bytes=384 << 20)
DIAGNOSE = (sys.executable, "-P", "-m", "rankwatch_diagnosis.run")
"""Without -P, modules would first be looked for where the agent was started: maybe in anybody's folder."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A thread of these libraries takes memory for each core of the node."""
_STATE = re.compile(r"[a-z_]{1,40}")
_STANDS = frozenset({"stalled", "lost", "failed"})
"""States of a run for which its ranks are to blame."""
_MOST_RANK = 1 << 24


class Verdict(NamedTuple):
    """What the diagnosis said."""

    text: bytes
    """JSON, as printed."""
    state: str
    """hang, desync, ...; empty where it named none."""
    ranks: tuple[int, ...]
    """Ranks to blame; none where it names more than an incident has culprits."""


def diagnose(bundle: Path, *, command: Sequence[str] = DIAGNOSE, limits: Limits = LIMITS) -> Verdict:
    """Diagnose a bundle; raises EvidenceError where that fails, with the sentence it ended with."""
    environ = {**_clean(os.environ), **_ONE_THREAD}
    ended = run_limited([*command, str(bundle)], limits, environ)
    if ended.problem:
        raise EvidenceError(EvidenceFault.VERDICT, ended.problem)
    try:
        said = msgspec.json.decode(ended.output)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise EvidenceError(EvidenceFault.VERDICT, f"the diagnosis said no JSON: {error}") from None
    if not isinstance(said, dict):
        raise EvidenceError(EvidenceFault.VERDICT, "the diagnosis said no JSON object")
    return Verdict(ended.output, *_blame(said))


def _blame(said: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """State and ranks of the part `hang`, else of the run as a whole where it stands.

    Of a run that goes on, `ranks` are those that slow it down: another matter.
    """
    hang = said.get("hang")
    state = _state(said.get("state"))
    if isinstance(hang, dict) and (ranks := _ranks(hang.get("ranks"))):
        return _state(hang.get("state")), ranks
    return state, _ranks(said.get("ranks")) if state in _STANDS else ()


def _ranks(given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) > MOST_CULPRITS:
        return ()
    sound = all(type(each) is int and 0 <= each < _MOST_RANK for each in given)
    return tuple(sorted(set(given))) if sound else ()


def _state(given: object) -> str:
    return given if isinstance(given, str) and _STATE.fullmatch(given) else ""


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Without settings of rankwatch: secrets of the agent are none of the diagnosis's business."""
    return {name: value for name, value in environ.items() if not name.startswith("RANKWATCH_")}


def culprits_of(incident: Incident, verdict: Verdict | None = None) -> tuple[Culprit, ...]:
    """Ranks to blame: those that were lost, where some were; else those the diagnosis names."""
    phases = {each.rank: each.open_phase[0] for each in incident.condition.ranks if each.open_phase}
    if incident.kind is IncidentKind.LOST_RANK:
        state, ranks = RankState.LOST.value, tuple(each.rank for each in incident.condition.lost)
    elif verdict is not None:
        state, ranks = verdict.state, verdict.ranks
    else:
        return ()
    return tuple(Culprit(rank, state, phases.get(rank, "")) for rank in ranks[:MOST_CULPRITS])
