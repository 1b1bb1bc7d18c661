"""The first files to read of a bundle: what happened, when, how each rank was, and what the bundle lacks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rankwatch import __version__
from rankwatch.conventions.incidents import IncidentKind
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.folder import Written
from rankwatch_agent.training.conditions import RankCondition

NAME = "manifest.json"
RANKS_NAME = "ranks.json"
FORMAT = 1


class Missing(NamedTuple):
    """A part that could not be had."""

    what: str
    why: str


def manifest(
    incident: Incident,
    *,
    wall_offset: float,
    node: str,
    files: Sequence[Written],
    missing: Sequence[Missing],
    verdict: Mapping[str, Any] | None,
) -> bytes:
    """The manifest as JSON.

    wall_offset: Unix time less monotonic time, in seconds.
    """
    told = {
        "format": FORMAT,
        "run": incident.run,
        "kind": incident.kind.value,
        "why": why(incident),
        "opened": _rfc3339(incident.opened + wall_offset),
        "opened_timestamp_seconds": round(incident.opened + wall_offset, 3),
        "last_progress": _rfc3339(incident.since + wall_offset),
        "node": node,
        "agent_version": __version__,
        "kernel": " ".join(os.uname()[i] for i in (0, 2, 4)),
        "verdict": verdict,
        "files": [{"path": each.path, "bytes": each.size} for each in files],
        "missing": [{"what": each.what, "why": each.why} for each in missing],
    }
    return _json(told)


def ranks_file(incident: Incident, processes: Mapping[int, int]) -> bytes:
    """What the copy of a black box cannot tell: which moment it is of, and whether its writer lived then.

    Written before the diagnosis, which may read it.
    """
    condition = incident.condition
    ranks = [_rank(each, condition.moment, processes.get(each.rank)) for each in condition.ranks]
    return _json({"run": incident.run, "moment_monotonic_seconds": condition.moment, "ranks": ranks})


def why(incident: Incident) -> str:
    """Why the incident was opened, in one sentence."""
    condition = incident.condition
    if incident.kind is IncidentKind.LOST_RANK:
        lost = ", ".join(str(each.rank) for each in condition.lost)
        return f"the process of rank {lost} is gone and said no goodbye"
    living = [each for each in condition.ranks if not each.ended]
    shortest = min((each.idle_seconds(condition.moment) for each in living), default=0.0)
    longest = max((each.timeout or 0.0 for each in living), default=0.0)
    return (
        f"none of the {len(living)} living ranks made progress for {shortest:.1f} s or longer; "
        f"by their own history {longest:.1f} s at most are normal"
    )


def _rank(rank: RankCondition, moment: float, process: int | None) -> dict[str, Any]:
    phase = rank.open_phase
    return {
        "rank": rank.rank,
        "state": rank.state.value,
        "pid": rank.pid,
        "pid_on_node": process,
        "seconds_without_progress": None if rank.ended else round(rank.idle_seconds(moment), 3),
        "timeout_seconds": rank.timeout,
        "open_phase": None if phase is None else phase[0],
        "seconds_in_phase": None if phase is None else round(max(0.0, moment - phase[1]), 3),
    }


def _json(told: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"


def _rfc3339(wall: float) -> str:
    milliseconds = int(wall % 1 * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(wall))}.{milliseconds:03d}Z"
