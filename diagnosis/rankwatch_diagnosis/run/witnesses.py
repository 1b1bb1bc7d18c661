"""Two more witnesses of a slow rank: the kernels of its collectives, and its GPU.

The rank that comes last to a collective finds its peers there, so its kernel is the shortest. NCCL's flight
recorders time kernels by events of their own, and know nothing of phases and local times. Gloo's recorder has
no times.

A GPU that computes keeps most of its multiprocessors busy. One whose rank waits in a collective of NCCL spins
on few of them, and one whose host is late runs nothing. So a GPU whose kernels are slow works most, by NVML,
and one that waits for its host or its loader works least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import fmean, median
from typing import NamedTuple

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.hang.job import Group, GroupView, HangSnapshot, build_job
from rankwatch_diagnosis.run.boxes import Boxes
from rankwatch_diagnosis.run.gpus import GpuFigures, SeenGpus
from rankwatch_diagnosis.run.pace import RECENT_STEPS
from rankwatch_diagnosis.run.snapshots import parse_members
from rankwatch_diagnosis.straggler.verdict import FoundCause, Verdict
from rankwatch_diagnosis.words import listed

RECORDER_EVIDENCE = "second_witness"
"""In the evidence of the verdict."""
_BLOCKS = 8
"""Of consecutive collectives. The median of their means ignores the start of a run and single long steps."""
_COLLECTIVES_OF_BLOCK = 4
_LATE_SHARE = 0.8
"""Of the median rank's duration. Whose kernels are shorter is late; transfers alone differ by less."""
_COST_SHARE = 0.5
"""Share of what the slow rank costs in a step: if peers wait for less, they wait for something else."""
_SHARE_OF_STEPS = 0.5
"""The median block shows only what is at work in most steps."""
_MOST_SECONDS = 1e6
"""Seconds beyond which nothing was measured: a dump may hold any number."""


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
        """Say `the others of g (0) wait for rank 2: a collective takes 9.1 ms on it, 47 ms on them`."""
        late = self.late
        own = fmean(self.seconds[rank] for rank in late)
        on_it = f"{1e3 * own:.3g} ms on {'it' if len(late) == 1 else 'these'}"
        them = f"{1e3 * self.peer_seconds:.3g} ms on them"
        return f"the others of {self.group} wait for {listed(late)}: a collective takes {on_it}, {them}"

    def as_evidence(self, opinion: Opinion) -> dict[str, object]:
        """Return it ready for JSON."""
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
    """Return the verdict with what the flight recorders say to it.

    Where they show that the peers of the slow rank wait for another rank, it is only suspected.
    """
    if found is None or not can_be_heard(found):
        return found
    named = {*found.ranks, *(rank for each in found.others for rank in each.ranks)}
    heard = [each for group in build_job(snapshots).groups for each in _testimonies(boxes, group, found)]
    if not heard:
        return found
    seconds = found.evidence.get("step_seconds")
    least = _COST_SHARE * (seconds * (1.0 - 1.0 / found.slowdown) if isinstance(seconds, float) else 0.0)
    clear = [each for each in heard if each.late and each.waited_seconds >= least]
    against = [each for each in clear if not named.intersection(each.late)]
    opinion = Opinion.DISAGREES if against else Opinion.AGREES if clear else Opinion.NONE
    shown = max(against or clear or heard, key=lambda each: each.waited_seconds)
    evidence = {**found.evidence, RECORDER_EVIDENCE: shown.as_evidence(opinion)}
    found = replace(found, evidence=evidence)
    return in_doubt(found, f"by the flight recorders, {shown.words()}") if against else found


def can_be_heard(found: Verdict) -> bool:
    """Say whether there is a slow rank that a witness can confirm.

    Checkpoints and what is at work in few steps are not in the median block.
    """
    if found.cause is not Cause.SLOW_RANK or found.phase is SlowPhase.CHECKPOINT or not found.causes:
        return False
    return found.causes[0].share_of_steps >= _SHARE_OF_STEPS


def _testimonies(boxes: Boxes, group: Group, found: Verdict) -> Iterator[Testimony]:
    """Yield what a group with a slow rank and members of equal work shows, if there are enough durations."""
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
    """Return True if all members are of one pipeline stage: the schedule decides which stage comes last."""
    seen = [boxes.by_rank[rank] for rank in group.members if rank in boxes.by_rank]
    stages = {each.header.identity.coordinates.get("pp", (0, 0))[0] for each in seen}
    return len(group.members) > 1 and len(seen) == len(group.members) and len(stages) == 1


def _durations(views: Sequence[GroupView]) -> Iterator[list[float]]:
    """Yield the durations of each collective that all members have completed, by member."""
    first = max(each.first_sequence for each in views)
    last = min(each.first_sequence + len(each.seconds) for each in views)
    for sequence in range(first, last):
        seconds = [each.seconds[sequence - each.first_sequence] for each in views]
        if all(0.0 < each < _MOST_SECONDS for each in seconds):
            yield seconds


def _collectives_of_step(boxes: Boxes, group: Group) -> float:
    """Count the collectives of a step, by the box of a member; 0.0 where none knows."""
    members = tuple(sorted(group.members))
    for rank in members:
        now = boxes.by_rank[rank].now
        for each in now.groups:
            same = each.name in (group.description, group.name)
            if same and parse_members(each.members, each.size) == members and now.steps_completed > 0:
                return each.enqueued / now.steps_completed
    return 0.0


def in_doubt(found: Verdict, why: str) -> Verdict:
    """Return the same slowdown, whose rank is only suspected."""
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


GPU_EVIDENCE = "gpu_witness"
"""In the evidence of the verdict."""
_DIFFERENCE = 0.15
"""By which a GPU must differ from every other one. Less says nothing."""
_SLOW_CLOCK = 0.1
"""Below the median of the peers: GPUs of one model differ by less in their clocks."""
_FEWEST_PEERS = 2
_STEPS_TO_DISAGREE = 3
"""Fewest steps that the figures are means over. Within a step, another rank may just work while its peers
wait."""
_FAULTS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})
"""Reasons for low clocks that are faults. The limit of power is none: a GPU that works draws more."""
_OF_THE_HOST = (SlowPhase.DATA_LOADING, SlowPhase.OTHER)
_MOST_SHOWN = 64


class _Sides(NamedTuple):
    """The GPUs of the slow ranks, and those of their peers."""

    own: Mapping[int, GpuFigures]
    peers: Mapping[int, GpuFigures]

    @property
    def clocks(self) -> tuple[float, float] | None:
        """The median clock of each side, in hertz; None unless all have one."""
        found = [[each.clock_hertz for each in side.values()] for side in self]
        known = [[each for each in side if each is not None] for side in found]
        return (median(known[0]), median(known[1])) if known == found else None

    @property
    def whose(self) -> str:
        return f"the GPU{'' if len(self.own) == 1 else 's'} of {listed(tuple(self.own))}"


class _Work(NamedTuple):
    """How much each GPU works: the share of its multiprocessors that are active, else watts."""

    by_rank: Mapping[int, float]
    by_activity: bool

    def stands_out(self, ranks: Collection[int]) -> str:
        """Say `most (SM activity 92% against 61%)`, or `least`; empty unless they differ from all others."""
        own = median(self.by_rank[rank] for rank in ranks)
        others = [value for rank, value in self.by_rank.items() if rank not in ranks]
        most, least = (1 + _DIFFERENCE) * max(others), (1 - _DIFFERENCE) * min(others)
        if least <= own <= most or not any(others):
            return ""
        shown = (f"{each:.0%}" if self.by_activity else f"{each:.0f} W" for each in (own, median(others)))
        numbers = " against ".join(shown)
        measure = "SM activity" if self.by_activity else "power"
        return f"{'most' if own > most else 'least'} ({measure} {numbers})"


def with_gpu_witness(boxes: Boxes, gpus: SeenGpus, found: Verdict) -> Verdict:
    """Return the verdict with what the GPUs say to it.

    Where another GPU alone works most, and flight recorders do not confirm the rank, it is only suspected.
    """
    named = {*found.ranks, *(rank for each in found.others for rank in each.ranks)}
    seen = {rank: each for rank, each in gpus.by_rank.items() if each.utilization is not None}
    sides = _Sides(
        {rank: seen[rank] for rank in found.ranks if rank in seen},
        {rank: each for rank, each in seen.items() if rank not in named},
    )
    if not sides.own or len(sides.peers) < _FEWEST_PEERS or not _shows_now(boxes, found):
        return found
    work = _work({**sides.own, **sides.peers})
    held = "" if found.phase in _OF_THE_HOST else _held_down(sides)
    words = "; ".join(filter(None, (_supported(sides, work, found.phase), held)))
    step = found.evidence.get("step_seconds")
    long_enough = isinstance(step, float) and gpus.seconds >= _STEPS_TO_DISAGREE * step
    against = _rival(sides, work, found) if long_enough and not words else ""
    if work is None and not held:
        return found
    opinion = Opinion.AGREES if words else Opinion.DISAGREES if against else Opinion.NONE
    evidence: dict[str, object] = {"opinion": opinion.value, "words": words or against, "held_down": held}
    if work is not None:
        measured = {str(rank): value for rank, value in list(work.by_rank.items())[:_MOST_SHOWN]}
        evidence["sm_activity_by_rank" if work.by_activity else "watts_by_rank"] = measured
    evidence = {name: value for name, value in evidence.items() if value}
    found = replace(found, evidence={**found.evidence, GPU_EVIDENCE: evidence})
    other = found.evidence.get(RECORDER_EVIDENCE)
    confirmed = isinstance(other, Mapping) and other["opinion"] == Opinion.AGREES
    return in_doubt(found, f"by the GPUs, {against}") if against and not confirmed else found


def _shows_now(boxes: Boxes, found: Verdict) -> bool:
    """Say whether it is at work when GPUs are seen. In a pipeline, the schedule decides which works most."""
    newest = max(max(each.now.step, each.now.steps_completed) for each in boxes.by_rank.values())
    coordinates = (each.header.identity.coordinates for each in boxes.by_rank.values())
    pipelined = any(each.get("pp", (0, 1))[1] > 1 for each in coordinates)
    return can_be_heard(found) and found.causes[0].last_step >= newest - RECENT_STEPS and not pipelined


def _work(seen: Mapping[int, GpuFigures]) -> _Work | None:
    """Return the first measure that all have. A kernel resident on no multiprocessor was not measured."""
    activity = {
        rank: each.multiprocessors if each.multiprocessors or not each.utilization else None
        for rank, each in seen.items()
    }
    for of_ranks in (activity, {rank: each.mean_watts for rank, each in seen.items()}):
        known = {rank: value for rank, value in of_ranks.items() if value is not None}
        if len(known) == len(seen):
            return _Work(known, of_ranks is activity)
    return None


def _supported(sides: _Sides, work: _Work | None, phase: SlowPhase | None) -> str:
    """Return what speaks for the verdict. Less power shows an idle GPU only where its clock is no lower."""
    how = "" if work is None else work.stands_out(sides.own)
    if work is None or not how or (how.startswith("most") and phase in _OF_THE_HOST):
        return ""
    verb = "works" if len(sides.own) == 1 else "work"
    if how.startswith("most"):
        return f"{sides.whose} {verb} {how}, while the others wait"
    clocks = sides.clocks
    if work.by_activity or (clocks is not None and not _is_lower(clocks)):
        return f"{sides.whose} {verb} {how}: look at host and loader before the GPU"
    return ""


def _is_lower(clocks: tuple[float, float]) -> bool:
    return clocks[0] <= (1 - _SLOW_CLOCK) * clocks[1]


def _held_down(sides: _Sides) -> str:
    """Return a fault that holds the clocks of these GPUs down, and not those of most peers."""
    reasons = frozenset.intersection(*(each.held_down_by for each in sides.own.values())) & _FAULTS
    common = 2 * sum(bool(each.held_down_by & _FAULTS) for each in sides.peers.values()) >= len(sides.peers)
    clocks = sides.clocks
    if not reasons or common or clocks is None or not _is_lower(clocks):
        return ""
    low, usual = (f"{each / 1e6:,.0f} MHz" for each in clocks)
    return f"{', '.join(sorted(reasons))} holds down the clock of {sides.whose}: {low} against {usual}"


def _rival(sides: _Sides, work: _Work | None, found: Verdict) -> str:
    """Return the one GPU that works more than all others, where another rank's kernels should be slow."""
    if work is None or not work.by_activity or found.phase is not SlowPhase.COMPUTE:
        return ""
    most = max(sides.peers, key=lambda rank: work.by_rank[rank])
    how = work.stands_out((most,))
    like = f"and {sides.whose} like the others"
    return f"that of rank {most} works {how}, {like}" if how.startswith("most") else ""


def held_down(found: Verdict | None) -> Iterator[str]:
    """Yield the sentence about clocks, if a fault holds them down."""
    heard = None if found is None else found.evidence.get(GPU_EVIDENCE)
    if isinstance(heard, Mapping) and "held_down" in heard:
        yield str(heard["held_down"])


def witness_lines(found: Verdict | None) -> Iterator[str]:
    """Yield a line for each witness that agrees, or that cannot outweigh the other one. What else it has
    against a verdict is the reason of the doubt."""
    for key, who in ((RECORDER_EVIDENCE, "the flight recorders"), (GPU_EVIDENCE, "the GPUs")):
        heard = None if found is None else found.evidence.get(key)
        if found is None or not isinstance(heard, Mapping):
            continue
        if heard["opinion"] == Opinion.AGREES:
            yield f"             {who} agree: {heard['words']}"
        elif heard["opinion"] == Opinion.DISAGREES and found.ranks:
            yield f"             but by {who}, {heard['words']}"
