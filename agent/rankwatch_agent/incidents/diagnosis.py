"""The agent's only door to the diagnosis: a process `python -m rankwatch_diagnosis.run BUNDLE`.

The diagnosis computes with NumPy, which the agent never imports and which may not be installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rankwatch.conventions.states import EvidenceFault, IncidentKind, RankState
from rankwatch.untrusted.children import Limits, confined
from rankwatch_agent.incidents.bundle import EvidenceError
from rankwatch_agent.incidents.episodes import MAX_ROOT_CAUSES, Incident, RootCause
from rankwatch_agent.incidents.limited_process import run_limited

LIMITS = Limits(seconds=60.0, cpu_seconds=60, memory_bytes=384 << 20, output_bytes=4 << 20)
"""The memory is address space. Decision 0007 has what Python with NumPy takes of it."""
DIAGNOSE = tuple(confined("rankwatch_diagnosis.run.__main__", limits=LIMITS))
"""The command, without the bundle. It reads the agent's own copies, as the agent's own user."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""By default these libraries reserve memory for one thread per core of the node."""
_STATE = re.compile(r"[a-z_]{1,40}")
_STOPPED = frozenset({"stalled", "lost", "failed"})
"""States of a run in which its ranks are root causes."""
_MAX_RANK = 1 << 24


class BundleDiagnosis(NamedTuple):
    """What the diagnosis of a bundle found."""

    text: bytes
    """JSON, as printed."""
    state: str
    """hang, desync, ...; empty where it named none."""
    ranks: tuple[int, ...]
    """Root causes; none where it names more than MAX_ROOT_CAUSES."""


def diagnose(bundle: Path, *, command: Sequence[str] = DIAGNOSE, limits: Limits = LIMITS) -> BundleDiagnosis:
    """Diagnose a bundle. Raises EvidenceError with the sentence that the diagnosis failed with."""
    # Without the settings of rankwatch: the diagnosis must not see the agent's secrets.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKWATCH_")}
    environ = {**kept, **_ONE_THREAD}
    result = run_limited([*command, str(bundle)], limits, environ)
    if result.error:
        raise EvidenceError(EvidenceFault.VERDICT, result.error)
    try:
        parsed = msgspec.json.decode(result.output)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise EvidenceError(EvidenceFault.VERDICT, f"the diagnosis printed no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise EvidenceError(EvidenceFault.VERDICT, "the diagnosis printed no JSON object")
    return BundleDiagnosis(result.output, *_root_causes(parsed))


def root_causes_of(incident: Incident, diagnosis: BundleDiagnosis | None = None) -> tuple[RootCause, ...]:
    """Return the lost ranks of an incident, or else the ranks that the diagnosis names."""
    phases = {each.rank: each.open_phase[0] for each in incident.condition.ranks if each.open_phase}
    if incident.kind is IncidentKind.LOST_RANK:
        state, ranks = RankState.LOST.value, tuple(each.rank for each in incident.condition.lost)
    elif diagnosis is not None:
        state, ranks = diagnosis.state, diagnosis.ranks
    else:
        return ()
    return tuple(RootCause(rank, state, phases.get(rank, "")) for rank in ranks[:MAX_ROOT_CAUSES])


def _root_causes(parsed: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return state and ranks of the part `hang`, or of the run as a whole where it has stopped.

    In a run that goes on, `ranks` are those that slow it down, which is no incident.
    """
    hang = parsed.get("hang")
    state = _state(parsed.get("state"))
    if isinstance(hang, dict) and (ranks := _ranks(hang.get("ranks"))):
        return _state(hang.get("state")), ranks
    return state, _ranks(parsed.get("ranks")) if state in _STOPPED else ()


def _ranks(given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) > MAX_ROOT_CAUSES:
        return ()
    valid = all(type(each) is int and 0 <= each < _MAX_RANK for each in given)
    return tuple(sorted(set(given))) if valid else ()


def _state(given: object) -> str:
    return given if isinstance(given, str) and _STATE.fullmatch(given) else ""
