"""A second witness of a slow rank: how long the kernels of its collectives took, by NCCL's flight recorders.

The rank that comes last to a collective finds its peers there, so its kernel is the shortest. The recorders
time kernels by events of their own, and know nothing of phases and local times. Gloo's recorder has no times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import fmean, median
from typing import NamedTuple

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.hang.job import Group, build_job
from rankwatch_diagnosis.hang.snapshot import GroupView, HangSnapshot
from rankwatch_diagnosis.run.boxes import Boxes
from rankwatch_diagnosis.run.snapshots import parse_members
from rankwatch_diagnosis.run.why import listed
from rankwatch_diagnosis.straggler.verdict import FoundCause, Verdict

EVIDENCE = "second_witness"
"""In the evidence of the verdict."""
_BLOCKS = 8
"""Of consecutive collectives. The median of their means ignores the start of a run and single long steps."""
_COLLECTIVES_OF_BLOCK = 4
_LATE_SHARE = 0.8
"""Of the median rank's duration. Whose kernels are shorter is late; transfers alone differ by less."""
_COST_SHARE = 0.5
"""Of what the slow rank costs in a step: if peers wait for less than this, they wait for something else."""
_SHARE_OF_STEPS = 0.5
"""The median block shows only what is at work in most steps."""
_MOST_SECONDS = 1e6
"""What is longer was not measured: a dump may hold any number."""
_MOST_SHOWN = 64


class Opinion(StrEnum):
    """What the witness says to the verdict."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    NONE = "none"
    """Nobody is late by as much as the slow rank costs."""


class Testimony(NamedTuple):
    """What the kernels of one group show."""

    group: str
    collectives: int
    """Compared: all members have their durations."""
    seconds: Mapping[int, float]
    """Rank -> how long one takes."""
    waited_seconds: float
    """At most, in each step: by the median rank, beyond the rank that is last. Other work may hide it, and
    collectives on several streams are all counted."""

    @property
    def late(self) -> tuple[int, ...]:
        """The ranks that the others wait for."""
        limit = _LATE_SHARE * self.peer_seconds
        return tuple(rank for rank, seconds in self.seconds.items() if seconds < limit)

    @property
    def peer_seconds(self) -> float:
        """How long a collective takes on the median rank."""
        return median(self.seconds.values())

    def words(self) -> str:
        """`the others of default_pg (0) wait for rank 2: a collective takes 9.1 ms on it, 47 ms on them`."""
        late = self.late
        own = fmean(self.seconds[rank] for rank in late)
        on_it = f"{_milliseconds(own)} on {'it' if len(late) == 1 else 'these'}"
        them = f"{_milliseconds(self.peer_seconds)} on them"
        return f"the others of {self.group} wait for {listed(late)}: a collective takes {on_it}, {them}"

    def as_evidence(self, opinion: Opinion) -> dict[str, object]:
        """Ready for JSON."""
        shown = sorted(self.seconds.items(), key=lambda each: each[1])[:_MOST_SHOWN]
        return {
            "opinion": opinion.value,
            **({"words": self.words()} if self.late else {}),
            "group": self.group,
            "collectives": self.collectives,
            "late_ranks": list(self.late)[:_MOST_SHOWN],
            "most_waited_seconds_per_step": self.waited_seconds,
            "seconds_by_rank": {str(rank): seconds for rank, seconds in shown},
        }


def with_second_witness(
    boxes: Boxes, snapshots: Sequence[HangSnapshot], found: Verdict | None
) -> Verdict | None:
    """The verdict with what the flight recorders say to it.

    Where they show that the peers of the slow rank wait for another rank, it is only suspected.
    """
    if found is None or not can_be_heard(found):
        return found
    named = {*found.ranks, *(rank for each in found.others for rank in each.ranks)}
    heard = [each for group in build_job(snapshots).groups for each in _testimonies(boxes, group, found)]
    if not heard:
        return found
    least = _COST_SHARE * _cost_of_step(found)
    clear = [each for each in heard if each.late and each.waited_seconds >= least]
    against = [each for each in clear if not named.intersection(each.late)]
    opinion = Opinion.DISAGREES if against else Opinion.AGREES if clear else Opinion.NONE
    shown = max(against or clear or heard, key=lambda each: each.waited_seconds)
    evidence = {**found.evidence, EVIDENCE: shown.as_evidence(opinion)}
    found = replace(found, evidence=evidence)
    return in_doubt(found, f"by the flight recorders, {shown.words()}") if against else found


def can_be_heard(found: Verdict) -> bool:
    """Whether there is a slow rank that a witness can confirm.

    Checkpoints and what is at work in few steps are not in the median block.
    """
    if found.cause is not Cause.SLOW_RANK or found.phase is SlowPhase.CHECKPOINT or not found.causes:
        return False
    return found.causes[0].share_of_steps >= _SHARE_OF_STEPS


def _cost_of_step(found: Verdict) -> float:
    seconds = found.evidence.get("step_seconds")
    return seconds * (1.0 - 1.0 / found.slowdown) if isinstance(seconds, float) else 0.0


def _testimonies(boxes: Boxes, group: Group, found: Verdict) -> Iterator[Testimony]:
    """Of a group with a slow rank whose members do the same work, if there are enough durations."""
    slow = not set(group.members).isdisjoint(found.ranks)
    if not slow or not group.views.keys() >= set(group.members) or not _alike(boxes, group):
        return
    durations = list(_durations([group.views[rank] for rank in group.members]))
    size = len(durations) // _BLOCKS
    if size < _COLLECTIVES_OF_BLOCK:
        return
    blocks = [durations[first : first + size] for first in range(0, size * _BLOCKS, size)]
    means = [[fmean(of_rank) for of_rank in zip(*block, strict=True)] for block in blocks]
    seconds = [median(of_rank) for of_rank in zip(*means, strict=True)]
    waited = (median(seconds) - min(seconds)) * _collectives_of_step(boxes, group)
    yield Testimony(
        group.label, size * _BLOCKS, dict(zip(group.members, seconds, strict=True)), max(0.0, waited)
    )


def _alike(boxes: Boxes, group: Group) -> bool:
    """True if all members are of one pipeline stage: the schedule decides which stage comes last."""
    seen = [boxes.by_rank[rank] for rank in group.members if rank in boxes.by_rank]
    stages = {each.header.identity.coordinates.get("pp", (0, 0))[0] for each in seen}
    return len(group.members) > 1 and len(seen) == len(group.members) and len(stages) == 1


def _durations(views: Sequence[GroupView]) -> Iterator[list[float]]:
    """Of each collective that all members have completed, by member."""
    first = max(each.first_sequence for each in views)
    last = min(each.first_sequence + len(each.seconds) for each in views)
    for sequence in range(first, last):
        seconds = [each.seconds[sequence - each.first_sequence] for each in views]
        if all(0.0 < each < _MOST_SECONDS for each in seconds):
            yield seconds


def _collectives_of_step(boxes: Boxes, group: Group) -> float:
    """By the box of a member; 0.0 where none knows."""
    members = tuple(sorted(group.members))
    for rank in members:
        now = boxes.by_rank[rank].now
        for each in now.groups:
            same = each.name in (group.description, group.name)
            if same and parse_members(each.members, each.size) == members and now.steps_completed > 0:
                return each.enqueued / now.steps_completed
    return 0.0


def in_doubt(found: Verdict, why: str) -> Verdict:
    """The same slowdown, whose rank is only suspected."""
    listed = found.evidence.get("slow_ranks")
    if not isinstance(listed, list):
        listed = [{"rank": rank, "slower_by_ratio": found.slowdown - 1.0} for rank in found.ranks]
    evidence = {**found.evidence, "why": why, "suspected_ranks": listed}
    first, *others = found.causes
    doubted: FoundCause = replace(
        first, cause=Cause.INCONCLUSIVE, phase=None, ranks=(), certain=False, evidence=evidence
    )
    return replace(
        found,
        cause=Cause.INCONCLUSIVE,
        phase=None,
        ranks=(),
        causes=(doubted, *others),
        evidence=evidence,
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
