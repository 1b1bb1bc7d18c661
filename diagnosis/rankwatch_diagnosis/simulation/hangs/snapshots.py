"""A rank's flight recorder as torch dumps it, with the keys of format 2.9 and 2.10; and its files.

Collective timing is off, as it is by default: what has not completed is `scheduled`, started or not. Each
message is a batch of its own, in the form that ProcessGroupNCCL.cpp gives it: `pointToPoint` records the part
without a state, and `endCoalescing` an entry that closes it, without tensors and not marked as a message.
"""

from __future__ import annotations

import json
import math
import pickle
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rankwatch_diagnosis.simulation.hangs.execution import Call, Calls, Track
from rankwatch_diagnosis.simulation.hangs.fault import Group, Groups, Plane
from rankwatch_diagnosis.simulation.shape import JobShape

VERSIONS: Mapping[str, str] = MappingProxyType({"2.9": "nccl_version", "2.10": "comm_lib_version"})
"""Version of the format -> key that holds the version of the library."""

_BEGAN_NS = 1_760_000_000_000_000_000
"""An arbitrary wall clock: the job of a seed has the same dumps at any time."""
_WITHOUT_STATE: Mapping[str, Any] = MappingProxyType(
    {"state": "scheduled", "time_discovered_completed_ns": None, "retired": False}
)
_BATCH: Mapping[str, Any] = MappingProxyType(
    {
        "profiling_name": "nccl:coalesced",
        "input_sizes": [],
        "input_dtypes": [],
        "output_sizes": [],
        "output_dtypes": [],
        "is_p2p": False,
    }
)
_RETIRED_AFTER_NS = 100_000_000
"""Pace of the watchdog."""


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Settings of the recorders of a job."""

    entries: int = 2_000
    """Length of the ring, TORCH_FR_BUFFER_SIZE."""
    run_ahead: int = 0
    """Operations that the host queues past the one that its device waits for, within a step."""
    only_active: bool = False
    """Dump only what has not completed."""
    version: str = "2.10"
    timeout_ms: int = 600_000


class Snapshots:
    """Makes the dump of each rank."""

    def __init__(self, shape: JobShape, groups: Groups, recorder: Recorder) -> None:
        self._shape, self._groups, self._recorder = shape, groups, recorder

    def dump(self, rank: int, program: Calls, track: Track) -> dict[str, Any]:
        """What torch's recorder of this rank holds when the job stands still."""
        own = [self._groups.of(rank, plane) for plane in Plane]
        own.sort(key=lambda group: int(group.name))
        local = {group.name: number for number, group in enumerate(own)}
        status = {str(number): _blank() for number in local.values()}
        entries = self._entries(rank, program, track, local, status)
        if self._recorder.only_active:
            entries = [entry for entry in entries if entry["state"] != "completed"]
        return {
            "version": self._recorder.version,
            "pg_config": {
                group.name: {"name": group.name, "desc": group.description, "ranks": str(list(group.ranks))}
                for group in own
            },
            VERSIONS[self._recorder.version]: "2.27.3",
            "pg_status": status,
            "entries": entries[-self._recorder.entries :],
        }

    def _entries(
        self,
        rank: int,
        program: Calls,
        track: Track,
        local: Mapping[str, int],
        status: Mapping[str, dict[str, int]],
    ) -> list[dict[str, Any]]:
        count = _enqueued(program, track, self._recorder.run_ahead)
        collectives: defaultdict[str, int] = defaultdict(int)
        messages: defaultdict[str, int] = defaultdict(int)
        entries: list[dict[str, Any]] = []
        for index in range(count):
            call = program.calls[index]
            group = self._groups.of(rank, call.plane)
            counter = collectives if call.tag is None else messages
            counter[group.name] += 1
            of_group = status[str(local[group.name])]
            of_group["last_enqueued_collective"] = counter[group.name]
            if index in track.completed_ns:
                of_group["last_completed_collective"] = counter[group.name]
            entry = self._timing(index, track) | {
                "record_id": len(entries),
                "pg_id": local[group.name],
                "process_group": (group.name, group.description),
                "collective_seq_id": collectives[group.name],
                "p2p_seq_id": messages[group.name],
                "op_id": collectives[group.name] + messages[group.name],
            }
            if call.tag is not None:
                entries.append(entry | dict(_WITHOUT_STATE) | self._called(rank, call, group))
                entry = entry | dict(_BATCH) | {"record_id": len(entries)}
                entries.append(entry)
            else:
                entries.append(entry | self._called(rank, call, group))
        return entries

    def _timing(self, index: int, track: Track) -> dict[str, Any]:
        # The host queues a call when the device has come to the call that many before it.
        started = track.started_ns
        created = started[min(max(0, index - self._recorder.run_ahead), len(started) - 1)] if started else 0
        completed = track.completed_ns.get(index)
        return {
            "time_created_ns": _BEGAN_NS + created,
            "state": "scheduled" if completed is None else "completed",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": (
                None if completed is None else _BEGAN_NS + completed + _RETIRED_AFTER_NS
            ),
            "retired": completed is not None,
            "timeout_ms": self._recorder.timeout_ms,
            "thread_name": "python",
            "thread_id": "140000000000000",
        }

    def _called(self, rank: int, call: Call, group: Group) -> dict[str, Any]:
        size = list(call.size)
        given = [math.prod(size) * len(group.ranks)] if call.operation == "_all_gather_base" else size
        stage = self._shape.place(rank)[0]
        arrow = {"send": f" {stage}->{call.to_stage}", "recv": f" {stage}<-{call.from_stage}"}
        return {
            "profiling_name": f"nccl:{call.operation}{arrow.get(call.operation, '')}",
            "input_sizes": [size],
            "input_dtypes": [call.dtype],
            "output_sizes": [given],
            "output_dtypes": [call.dtype],
            "is_p2p": call.tag is not None,
        }


def _blank() -> dict[str, int]:
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return dict.fromkeys(names, -1)


def _enqueued(program: Calls, track: Track, run_ahead: int) -> int:
    """Calls that the host has made: those that the device reached, and some more of the same step."""
    reached = len(track.started_ns)
    if not track.blocked:
        return reached
    end = len(program.calls) if program.stops_before is None else program.stops_before
    step = program.calls[reached - 1].step
    while reached < min(end, len(track.started_ns) + run_ahead) and program.calls[reached].step == step:
        reached += 1
    return reached


FORMS = ("pickle", "json")


def write_snapshots(snapshots: Mapping[int, dict[str, Any]], directory: Path, form: str) -> None:
    """`_dump_RANK` as a pickle of plain containers, or `_dump_RANK.json`; raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank, snapshot in snapshots.items():
        if form == "pickle":
            # Protocol 2 is what torch writes.
            (directory / f"_dump_{rank}").write_bytes(pickle.dumps(snapshot, protocol=2))
        else:
            (directory / f"_dump_{rank}.json").write_text(json.dumps(_as_json(snapshot)))


def _as_json(snapshot: dict[str, Any]) -> dict[str, Any]:
    """In JSON, torch writes 0 for a time that is not known."""
    times = ("time_discovered_started_ns", "time_discovered_completed_ns")
    entries = [entry | {name: entry[name] or 0 for name in times} for entry in snapshot["entries"]]
    return snapshot | {"entries": entries}
