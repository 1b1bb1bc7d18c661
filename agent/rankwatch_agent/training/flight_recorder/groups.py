"""Which process group an entry or a status of a flight recorder belongs to, by labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rankwatch.blackbox.records import GroupNow
from rankwatch.members import members_text
from rankwatch_agent.training.collectives.totals import GroupKey
from rankwatch_agent.training.flight_recorder.reply import Entry, GroupConfig

_MOST_RANKS = 1 << 16
_NUMBER = re.compile(r"\d{1,9}")
UNNAMED = ("", "undefined")
"""Descriptions that say nothing."""


class GroupNames:
    """The groups of one process of a rank.

    A recorder keys the status of its groups by a local id, their members by name, and only entries
    link the two: what was linked once stays linked.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._linked: dict[int, tuple[str, str]] = {}
        self._members: dict[str, tuple[str, int]] = {}
        self._known: dict[str, tuple[str, int]] = {}

    def learn(
        self,
        entries: Iterable[Entry],
        configs: Mapping[str, GroupConfig],
        known: Iterable[GroupNow],
    ) -> None:
        """Take one reply, and the groups that the rank's black box tells: gloo's knows no members."""
        for entry in entries:
            self._linked[entry.pg_id] = entry.process_group
        for oldest in sorted(self._linked)[: -self._most]:
            del self._linked[oldest]
        for name, config in list(configs.items())[: self._most]:
            ranks = _ranks(config.ranks)
            if ranks and name not in self._members and len(self._members) < self._most:
                self._members[name] = (members_text(ranks), len(ranks))
        self._known = {}
        ambiguous = set()
        for group in known:
            if self._known.setdefault(group.name, (group.members, group.size))[0] != group.members:
                ambiguous.add(group.name)
        for label in ambiguous:
            del self._known[label]

    def of(self, local_id: int) -> tuple[GroupKey, int] | None:
        """Labels and number of ranks (0: not known) of a group; None where it is not known by name."""
        linked = self._linked.get(local_id)
        if linked is None:
            return None
        name, description = linked
        label = name if description in UNNAMED else description
        members, size = self._members.get(name) or self._known.get(label) or ("", 0)
        return GroupKey(label, members), size


def _ranks(listed: str | Sequence[int]) -> list[int]:
    if isinstance(listed, str):
        return [int(each) for each in _NUMBER.findall(listed[: 8 * _MOST_RANKS])][:_MOST_RANKS]
    return [each for each in listed[:_MOST_RANKS] if each >= 0]
