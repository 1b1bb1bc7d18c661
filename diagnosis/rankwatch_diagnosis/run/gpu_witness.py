"""A third witness of a slow rank: what its GPU does, and what those of its peers do, by NVML.

A GPU that computes keeps most of its multiprocessors busy. One whose rank waits in a collective of NCCL spins
on few of them, and one whose host is late runs nothing. So a GPU whose kernels are slow works most, and one
that waits for its host or its loader works least.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from rankwatch.conventions import SlowPhase
from rankwatch_diagnosis.run.boxes import Boxes
from rankwatch_diagnosis.run.gpus import GpuFigures, SeenGpus
from rankwatch_diagnosis.run.pace import RECENT_STEPS
from rankwatch_diagnosis.run.second_witness import EVIDENCE as OTHER_WITNESS
from rankwatch_diagnosis.run.second_witness import Opinion, can_be_heard, in_doubt
from rankwatch_diagnosis.run.why import listed
from rankwatch_diagnosis.straggler.verdict import Verdict

EVIDENCE = "gpu_witness"
"""In the evidence of the verdict."""
_DIFFERENCE = 0.15
"""From every other GPU. Less says nothing."""
_SLOW_CLOCK = 0.1
"""Below the median of the peers: GPUs of one model differ by less in their clocks."""
_FEWEST_PEERS = 2
_STEPS_TO_DISAGREE = 3
"""That the figures are means over. Within a step, another rank may just work while its peers wait."""
_FAULTS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})
"""Reasons for low clocks that are faults. The limit of power is none: a GPU that works draws more."""
_OF_THE_HOST = (SlowPhase.DATA_LOADING, SlowPhase.OTHER)
_MOST_SHOWN = 64


class _Work(NamedTuple):
    """How much each GPU works: the share of its multiprocessors that are active, else watts."""

    by_rank: Mapping[int, float]
    by_activity: bool

    def typical(self, ranks: Iterable[int]) -> float:
        return median(self.by_rank[rank] for rank in ranks)

    def words(self, ranks: Iterable[int], others: Iterable[int]) -> str:
        """`SM activity 92% against 61%`."""
        name, form = ("SM activity", ".0%") if self.by_activity else ("power", ".0f")
        unit = "" if self.by_activity else " W"
        own, peers = (f"{self.typical(each):{form}}{unit}" for each in (ranks, others))
        return f"{name} {own} against {peers}"


def with_gpu_witness(boxes: Boxes, gpus: SeenGpus, found: Verdict) -> Verdict:
    """The verdict with what the GPUs say to it.

    Where another GPU alone works most, and flight recorders do not confirm the rank, it is only suspected.
    """
    seen = {rank: each for rank, each in gpus.by_rank.items() if each.utilization is not None}
    own = [rank for rank in found.ranks if rank in seen]
    named = {*found.ranks, *(rank for each in found.others for rank in each.ranks)}
    peers = [rank for rank in seen if rank not in named]
    if not own or len(peers) < _FEWEST_PEERS or not can_be_heard(found) or not _shows_now(boxes, found):
        return found
    work = _work({rank: seen[rank] for rank in (*own, *peers)})
    held = "" if found.phase in _OF_THE_HOST else _held_down(seen, own, peers)
    if work is None and not held:
        return found
    words = "; ".join(filter(None, (_supported(seen, work, own, peers, found.phase), held)))
    against = (
        "" if words or gpus.seconds < _STEPS_TO_DISAGREE * _step(found) else _rival(work, own, peers, found)
    )
    opinion = Opinion.AGREES if words else Opinion.DISAGREES if against else Opinion.NONE
    evidence = {
        "opinion": opinion.value,
        **({"words": words or against} if words or against else {}),
        **({"held_down": held} if held else {}),
        **_shown(work),
    }
    found = replace(found, evidence={**found.evidence, EVIDENCE: evidence})
    other = found.evidence.get(OTHER_WITNESS)
    confirmed = isinstance(other, Mapping) and other["opinion"] == Opinion.AGREES
    return in_doubt(found, f"by the GPUs, {against}") if against and not confirmed else found


def _shows_now(boxes: Boxes, found: Verdict) -> bool:
    """Whether it is at work when the GPUs are seen. In a pipeline, the schedule decides which works most."""
    newest = max(each.now.step for each in boxes.by_rank.values())
    pipelined = any(
        each.header.identity.coordinates.get("pp", (0, 1))[1] > 1 for each in boxes.by_rank.values()
    )
    return found.causes[0].last_step >= newest - RECENT_STEPS and not pipelined


def _work(seen: Mapping[int, GpuFigures]) -> _Work | None:
    """The first measure that all have. A kernel that is resident on no multiprocessor was not measured."""
    activity = {
        rank: each.multiprocessors if each.multiprocessors or not each.utilization else None
        for rank, each in seen.items()
    }
    for of_ranks in (activity, {rank: each.mean_watts for rank, each in seen.items()}):
        known = {rank: value for rank, value in of_ranks.items() if value is not None}
        if len(known) == len(seen):
            return _Work(known, of_ranks is activity)
    return None


def _supported(
    seen: Mapping[int, GpuFigures],
    work: _Work | None,
    own: list[int],
    peers: list[int],
    phase: SlowPhase | None,
) -> str:
    """What speaks for the verdict. Less power shows an idle GPU only where its clock is no lower."""
    if work is None or not work.typical(peers):
        return ""
    of_own, of_peers = work.typical(own), [work.by_rank[rank] for rank in peers]
    whose = (
        f"the GPU of {listed(tuple(own))} works"
        if len(own) == 1
        else f"the GPUs of {listed(tuple(own))} work"
    )
    if of_own >= (1 + _DIFFERENCE) * max(of_peers) and phase not in _OF_THE_HOST:
        return f"{whose} most ({work.words(own, peers)}), while the others wait"
    clocks = _clocks(seen, own, peers)
    idle = work.by_activity or (clocks is not None and clocks[0] > (1 - _SLOW_CLOCK) * clocks[1])
    if of_own <= (1 - _DIFFERENCE) * min(of_peers) and idle:
        return f"{whose} least ({work.words(own, peers)}): look at host and loader before the GPU"
    return ""


def _clocks(seen: Mapping[int, GpuFigures], *sides: list[int]) -> tuple[float, ...] | None:
    """The median clock of each side, in hertz."""
    of_sides = [[seen[rank].clock_hertz for rank in side] for side in sides]
    known = [[each for each in clocks if each] for clocks in of_sides]
    return tuple(median(clocks) for clocks in known) if all(known) else None


def _held_down(seen: Mapping[int, GpuFigures], own: list[int], peers: list[int]) -> str:
    """A fault that holds the clocks of these ranks down, and not those of most peers."""
    reasons = frozenset.intersection(*(seen[rank].held_down_by for rank in own)) & _FAULTS
    clocks = _clocks(seen, own, peers)
    common = 2 * sum(bool(seen[rank].held_down_by & _FAULTS) for rank in peers) >= len(peers)
    if not reasons or common or clocks is None or clocks[0] > (1 - _SLOW_CLOCK) * clocks[1]:
        return ""
    low, usual = (f"{each / 1e6:,.0f} MHz" for each in clocks)
    whose = f"the GPU{'' if len(own) == 1 else 's'} of {listed(tuple(own))}"
    return f"{', '.join(sorted(reasons))} holds down the clock of {whose}: {low} against {usual}"


def _rival(work: _Work | None, own: list[int], peers: list[int], found: Verdict) -> str:
    """The one GPU that works more than all others, where the kernels of another rank should be slow."""
    if work is None or not work.by_activity or found.phase is not SlowPhase.COMPUTE:
        return ""
    most = max(peers, key=lambda rank: work.by_rank[rank])
    others = [rank for rank in work.by_rank if rank != most]
    if work.by_rank[most] < (1 + _DIFFERENCE) * max(work.by_rank[rank] for rank in others):
        return ""
    shown = work.words([most], others)
    return f"that of rank {most} works most ({shown}), and that of {listed(tuple(own))} like the others"


def _step(found: Verdict) -> float:
    seconds = found.evidence.get("step_seconds")
    return seconds if isinstance(seconds, float) else float("inf")


def _shown(work: _Work | None) -> dict[str, object]:
    if work is None:
        return {}
    name = "sm_activity_by_rank" if work.by_activity else "watts_by_rank"
    return {name: {str(rank): value for rank, value in list(work.by_rank.items())[:_MOST_SHOWN]}}


def held_down(found: Verdict | None) -> Iterator[str]:
    """The sentence about clocks, if a fault holds them down."""
    heard = None if found is None else found.evidence.get(EVIDENCE)
    if isinstance(heard, Mapping) and "held_down" in heard:
        yield str(heard["held_down"])


def gpu_lines(found: Verdict | None) -> Iterator[str]:
    """A line where the GPUs agree, or cannot outweigh the other witness."""
    heard = None if found is None else found.evidence.get(EVIDENCE)
    if found is None or not isinstance(heard, Mapping):
        return
    if heard["opinion"] == Opinion.AGREES:
        yield f"             the GPUs agree: {heard['words']}"
    elif heard["opinion"] == Opinion.DISAGREES and found.ranks:
        yield f"             but by the GPUs, {heard['words']}"
