"""Merges one pull of a flight recorder after another: each entry once, gaps counted."""

from __future__ import annotations

from rankwatch_agent.flight_recorder.reply import Entry, Reply


class FlightRecorderAccount:
    """What the pulls of one rank add up to."""

    def __init__(self, max_groups: int) -> None:
        self.entries = 0
        """Entries merged."""
        self.missed = 0
        """Entries overwritten before they were read."""
        self.groups: dict[str, tuple[int, int]] = {}
        """Name of a process group -> (last enqueued, last completed) sequence number; -1 before the first."""
        self._max_groups = max_groups
        self._last_id = -1

    def merge(self, reply: Reply) -> None:
        """Take one reply."""
        self._count(reply.entries)
        names = _group_names(reply.entries)
        self.groups = {  # those of this pull alone: groups that were destroyed are gone
            names.get(local_id, local_id): (status.last_enqueued_collective, status.last_completed_collective)
            for local_id, status in list(reply.pg_status.items())[: self._max_groups]
        }

    def _count(self, entries: list[Entry]) -> None:
        ids = sorted({entry.record_id for entry in entries})
        if not ids:
            return
        if ids[-1] < self._last_id:  # another process, another ring
            self._last_id = -1
        new = [number for number in ids if number > self._last_id]
        if new and self._last_id >= 0:
            self.missed += new[0] - self._last_id - 1
        self.entries += len(new)
        self._last_id = ids[-1]


def _group_names(entries: list[Entry]) -> dict[str, str]:
    """Local id of a group -> its name; the description where it says more."""
    names: dict[str, str] = {}
    for entry in entries:
        name, description = entry.process_group
        names[str(entry.pg_id)] = description if description not in ("", "undefined") else name
    return names
