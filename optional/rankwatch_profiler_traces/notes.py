"""What the traces of a job show and what they do not, in sentences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rankwatch_diagnosis.words import as_ranges
from rankwatch_profiler_traces.matching import RankTimeline, Shared
from rankwatch_profiler_traces.timeline import Meeting

if TYPE_CHECKING:
    from rankwatch_profiler_traces.reading import Trace

_SHOWN = 8
_MOST_COLLECTIVES = 12
_MOST_UNEVEN = 0.02
"""Of a step. Below it the cost of a slow rank is right to a few percent."""


def facts_of(
    traces: Sequence[Trace], ranks: Sequence[RankTimeline], steps: frozenset[int]
) -> dict[str, object]:
    """Return counts for the evidence, ready for JSON."""
    return {
        "files": len(traces),
        "ranks": as_ranges({each.rank for each in ranks}),
        "steps": as_ranges(steps),
        "events": sum(each.events for each in traces),
        "damaged_events": sum(each.broken for each in traces),
        "of": "GPU kernels" if any(each.timeline.on_device for each in ranks) else "operators of the CPU",
    }


def collectives_of(ranks: Sequence[RankTimeline], steps: frozenset[int]) -> list[dict[str, Any]]:
    """Return per operation and group: runs and bytes in a step, and seconds of a step in which a rank only
    waits for them; the costliest first."""
    met: dict[tuple[str, str], list[Meeting]] = defaultdict(list)
    holders: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    for each in ranks:
        for line in each.timeline.steps:
            for item in line.items if line.step in steps else ():
                if isinstance(item, Meeting):
                    met[item.operation, item.group].append(item)
                    holders[item.operation, item.group].add((each.rank, line.step))
    grouped = {operation for operation, group in met if group}
    # The kernel of a collective that was launched before the recording began has no group.
    found = [_summary(*key, met[key], len(holders[key])) for key in met if key[1] or key[0] not in grouped]
    return sorted(found, key=lambda each: -each["exposed_seconds_per_step"])[:_MOST_COLLECTIVES]


def _summary(operation: str, group: str, met: Sequence[Meeting], held: int) -> dict[str, Any]:
    """Return means over the `held` steps of ranks that it took part in."""
    return {
        "operation": operation,
        "group": group or None,
        "runs_per_step": len(met) / held,
        "bytes_per_step": round(sum(each.size_bytes for each in met) / held) or None,
        "seconds_per_step": sum(each.seconds for each in met) / held,
        "exposed_seconds_per_step": sum(each.exposed for each in met) / held,
    }


def notes_on(
    traces: Sequence[Trace], ranks: Sequence[RankTimeline], steps: frozenset[int], shared: Shared
) -> tuple[str, ...]:
    """Return sentences on what is missing, and what that costs the diagnosis."""
    return (
        *_on_files(traces),
        *_on_ranks(traces, ranks),
        *_on_steps(ranks, steps),
        *_on_collectives(traces, ranks, shared),
    )


def _on_files(traces: Sequence[Trace]) -> Iterator[str]:
    unused = [each for each in traces if each.timeline is None]
    for each in unused[:_SHOWN]:
        yield f"{each.file} is of no use: {each.error}"
    if len(unused) > _SHOWN:
        yield f"{len(unused) - _SHOWN} more traces are of no use"
    cut = {each.rank for each in traces if each.cut_off and each.timeline is not None}
    if cut:
        yield f"{_of_ranks(cut)} cut off: the last step of each is left out"
    beyond = sum(each.left_out for each in traces)
    if beyond:
        yield f"{beyond:,} collectives are more than is kept of a trace, and were left out: trace fewer steps"
    damaged = [each for each in traces if each.broken]
    if damaged:
        count = sum(each.broken for each in damaged)
        yield f"{count:,} events of {len(damaged)} traces are damaged and were left out"


def _on_ranks(traces: Sequence[Trace], ranks: Sequence[RankTimeline]) -> Iterator[str]:
    there = {each.rank for each in ranks}
    size = max((each.world_size for each in traces), default=0)
    missing = set(range(size)) - there
    if missing:
        yield f"{len(there)} of {size} ranks are there; missing: {as_ranges(missing)}"
    unmarked = {each.rank for each in ranks if not each.timeline.phases_known}
    if unmarked:
        yield (
            "no forward, backward or optimizer is marked"
            f"{'' if unmarked == there else f' by rank {as_ranges(unmarked)}'}: "
            "all work of a step is one operation; activities=[CPU, CUDA] records the phases"
        )


def _on_steps(ranks: Sequence[RankTimeline], steps: frozenset[int]) -> Iterator[str]:
    sources = sorted({each.timeline.steps_by for each in ranks} - {""})
    if sources:
        yield (
            f"no ProfilerStep is annotated: steps are counted by {' and '.join(sources)}; "
            "profiler.step() at the end of each step gives them their numbers"
        )
    other = {line.step for each in ranks for line in each.timeline.steps} - steps
    if other:
        yield f"steps {as_ranges(other)} are not in the traces of all ranks and were left out"
    held = {
        rank: {line.step for each in ranks if each.rank == rank for line in each.timeline.steps}
        for rank in {each.rank for each in ranks}
    }
    without = {rank for rank, own in held.items() if not own & steps}
    if without:
        yield f"rank {as_ranges(without)} was traced in other steps and is left out"


def _on_collectives(traces: Sequence[Trace], ranks: Sequence[RankTimeline], shared: Shared) -> Iterator[str]:
    calls = sum(each.timeline.calls for each in ranks)
    if not calls:
        kernels = any(each.timeline.on_device for each in ranks)
        where = "NCCL kernel" if kernels else "collective of gloo or NCCL"
        yield f"no {where} is recorded: nothing shows who waited for whom"
        return
    if not sum(each.timeline.sized for each in ranks):
        off = not any(each.shapes for each in traces if each.timeline is not None)
        yield "the sizes of collectives are unknown" + (": record_shapes was off" if off else "")
    described = sum(each.timeline.described for each in ranks)
    if described < calls and any(each.timeline.several_groups for each in ranks):
        yield (
            f"{calls - described:,} of {calls:,} collectives name no process group: they are matched by order"
        )
    if shared.unlike:
        yield (
            f"{shared.unlike:,} of {shared.runs:,} collectives do not match: a rank lacks them or has "
            "another size"
        )
    if shared.uneven_share > _MOST_UNEVEN:
        yield (
            f"a slow rank hides more communication behind compute, {shared.uneven_share:.0%} of a step: "
            "its cost may be less by that"
        )
    messages = sum(
        item.operation == "send_recv"
        for each in ranks
        for line in each.timeline.steps
        for item in line.items
        if isinstance(item, Meeting)
    )
    if messages:
        yield f"{messages:,} kernels send and receive without naming the peer: they are matched by order"


def _of_ranks(ranks: set[int]) -> str:
    if len(ranks) == 1:
        return f"the trace of rank {as_ranges(ranks)} is"
    return f"the traces of ranks {as_ranges(ranks)} are"
