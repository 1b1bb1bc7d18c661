"""Members of a group that call different collectives at the same sequence number."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from rankwatch_diagnosis.hang.job import Group, Job
from rankwatch_diagnosis.hang.snapshot import UNKNOWN, Signature

_SIZES_ONLY = 2
"""Spaces in a signature's text to match that holds name, input and output and no types."""


class Mismatch(NamedTuple):
    """The first number at which the members of a group disagree."""

    group: Group
    sequence: int
    calls: dict[str, tuple[int, ...]]
    """Text of a call -> the ranks that made it."""
    odd: tuple[int, ...]
    """Ranks that differ from the majority; empty at a tie."""

    @property
    def settled(self) -> bool:
        """Whether the members that have not called yet are too few to change the majority."""
        called = sum(map(len, self.calls.values()))
        members = len(self.group.members)
        return called == members or 2 * (called - len(self.odd)) > members


class _History(NamedTuple):
    """Consecutive collectives of one rank in one group; equal numbers fit together."""

    first: int
    calls: tuple[int, ...]

    def at(self, sequence: int) -> int:
        index = sequence - self.first
        return self.calls[index] if 0 <= index < len(self.calls) else UNKNOWN


def find_mismatches(job: Job) -> list[Mismatch]:
    """At most one mismatch per group: those after the first are its consequence."""
    numbers: dict[str, int] = {}
    with_types = not any(
        _lacks_types(each) for snapshot in job.snapshots.values() for each in snapshot.signatures
    )
    tables = {
        rank: [numbers.setdefault(_key(each, with_types), len(numbers)) for each in snapshot.signatures]
        + [UNKNOWN]
        for rank, snapshot in job.snapshots.items()
    }
    histories = {group: _histories(group, tables) for group in job.groups}
    found = []
    for group, of_rank in histories.items():
        sequence = _first_difference(of_rank)
        if sequence is not None:
            found.append(_mismatch(group, sequence, of_rank, job, histories))
    return sorted(found, key=lambda each: -len(each.group.members))


def _lacks_types(signature: Signature) -> bool:
    """Whether sizes are compared and the recorder wrote no types: PyTorch 2.3 and before."""
    return signature.match.count(" ") == _SIZES_ONLY


def _key(signature: Signature, with_types: bool) -> str:
    """The text that is compared; without types where one rank has none."""
    return signature.match if with_types else " ".join(signature.match.split(" ")[: _SIZES_ONLY + 1])


def _histories(group: Group, tables: dict[int, list[int]]) -> dict[int, _History]:
    # UNKNOWN is -1, and the last place of a table holds it.
    return {
        rank: _History(view.first_sequence, tuple(map(tables[rank].__getitem__, view.history)))
        for rank, view in group.views.items()
        if view.history
    }


def _first_difference(of_rank: dict[int, _History]) -> int | None:
    """The lowest number at which a member differs from the history that most members share."""
    kinds = Counter(of_rank.values())
    if len(kinds) < 2:
        return None
    common = max(kinds, key=lambda each: (kinds[each], len(each.calls)))
    differences = (_difference(common, each) for each in kinds)
    return min((each for each in differences if each is not None), default=None)


def _difference(left: _History, right: _History) -> int | None:
    start = max(left.first, right.first)
    end = min(left.first + len(left.calls), right.first + len(right.calls))
    if start >= end:
        return None
    ours = left.calls[start - left.first : end - left.first]
    theirs = right.calls[start - right.first : end - right.first]
    if ours == theirs:
        return None
    differs = (a != b and UNKNOWN not in (a, b) for a, b in zip(ours, theirs, strict=True))
    return next((start + index for index, each in enumerate(differs) if each), None)


def _mismatch(
    group: Group,
    sequence: int,
    of_rank: dict[int, _History],
    job: Job,
    histories: dict[Group, dict[int, _History]],
) -> Mismatch:
    ranks_of: dict[int, list[int]] = defaultdict(list)
    for rank, history in of_rank.items():
        ranks_of[history.at(sequence)].append(rank)
    ranks_of.pop(UNKNOWN, None)
    calls = {}
    for ranks in ranks_of.values():
        view = group.views[ranks[0]]
        signature = job.snapshots[ranks[0]].signatures[view.history[sequence - view.first_sequence]]
        # Calls that do not fit and read the same are told apart by what is compared.
        text = signature.text if signature.text not in calls else f"{signature.text} ({signature.match})"
        calls[text] = tuple(sorted(ranks))
    right = _right_call(ranks_of, group, sequence, histories)
    odd = sorted(rank for call, ranks in ranks_of.items() if call != right for rank in ranks)
    return Mismatch(group, sequence, calls, tuple(odd) if right is not None else ())


def _right_call(
    ranks_of: dict[int, list[int]],
    group: Group,
    sequence: int,
    histories: dict[Group, dict[int, _History]],
) -> int | None:
    """What most members call; at a tie what the groups of the same description call, if they agree.

    None where most of those groups call what the minority of this one does: two of three may be wrong.
    """
    called = Counter(call for call in _calls_of_siblings(group, sequence, histories) if call in ranks_of)
    most = max(ranks_of, key=lambda call: len(ranks_of[call]))
    if 2 * len(ranks_of[most]) > sum(map(len, ranks_of.values())):
        return most if 2 * called[most] >= called.total() else None
    return next(iter(called)) if len(called) == 1 else None


def _calls_of_siblings(
    group: Group, sequence: int, histories: dict[Group, dict[int, _History]]
) -> Iterable[int]:
    for other, of_rank in histories.items():
        if other is not group and group.description and other.description == group.description:
            yield from (history.at(sequence) for history in of_rank.values())
