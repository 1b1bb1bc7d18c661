"""One trace file: whose it is, and the timeline of its rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.traces.matching import RankTimeline
from rankwatch_diagnosis.traces.places import Place, groups_of, place_of, rank_of, world_size_of
from rankwatch_diagnosis.traces.recording import Recording
from rankwatch_diagnosis.traces.stream import Framing, stream_events
from rankwatch_diagnosis.traces.timeline import Timeline, lay_out

_NO_RANK = "it names its rank neither in distributedInfo nor in its file name, such as rank3_trace.json"
_FIRST = Place(stage=0, replica=0)
_NO_WORK = "no kernel and no operator of the CPU is recorded"
_NO_STEPS = (
    "no step can be told from the next: call profiler.step() at the end of each, or record at least 4 steps "
    "with an optimizer of torch.optim or with the same collectives in each"
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One file, read."""

    file: str
    rank: int = -1
    world_size: int = 0
    """Ranks of the job; 0 where it is unknown."""
    place: Place = _FIRST
    origin_ns: int = 0
    """Wall-clock time of the timeline's origin, on the clock of its host."""
    timeline: Timeline | None = None
    """None where nothing of the file is of use."""
    error: str = ""
    """Why it is not."""
    events: int = 0
    broken: int = 0
    """Events that are damaged or have no usable time."""
    left_out: int = 0
    """Collectives beyond what one trace may hold."""
    cut_off: bool = False
    shapes: bool = True
    """`record_shapes` was on."""


def read_trace(path: Path) -> Trace:
    """Read one file; what is wrong with it is in `error`."""
    framing = Framing()
    recording = Recording()
    events = 0
    try:
        for block in stream_events(path, framing):
            events += len(block)
            recording.add(block)
    except UserError as error:
        return Trace(file=path.name, error=str(error).removeprefix(f"{path} "), cut_off=framing.cut_off)
    rank = rank_of(framing.fields, path.name)
    timeline = None
    if rank is not None:
        timeline = lay_out(recording, rank, tuple(groups_of(framing.fields)))
    if timeline is not None and framing.cut_off:
        timeline = timeline._replace(steps=timeline.steps[:-1])
    reason = _reason(rank, recording, timeline, cut_off=framing.cut_off)
    return Trace(
        file=path.name,
        rank=-1 if rank is None else rank,
        world_size=world_size_of(framing.fields),
        place=_FIRST if rank is None else place_of(rank, framing.fields),
        origin_ns=_origin_ns(framing, timeline),
        timeline=None if reason else timeline,
        error=reason,
        events=events,
        broken=framing.broken + recording.unusable,
        left_out=recording.left_out,
        cut_off=framing.cut_off,
        shapes=bool(framing.fields.get("record_shapes")),
    )


def _reason(rank: int | None, recording: Recording, timeline: Timeline | None, *, cut_off: bool) -> str:
    """Why a trace is of no use; empty if it is of some."""
    if rank is None:
        return _NO_RANK
    if not len(recording.kernels) and not len(recording.operators) and not recording.calls:
        return _NO_WORK
    if timeline is None or not timeline.steps:
        return "it is cut off before a step is whole" if cut_off else _NO_STEPS
    return ""


def _origin_ns(framing: Framing, timeline: Timeline | None) -> int:
    base = framing.fields.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) and abs(base) < 1 << 63 else 0
    return base_ns + (0 if timeline is None else round(timeline.origin_microseconds * 1e3))


def of_one_kind(traces: Sequence[Trace]) -> list[Trace]:
    """Where some traces hold kernels, the others are of no use beside them."""
    if not any(each.timeline is not None and each.timeline.on_device for each in traces):
        return list(traces)
    return [
        replace(each, timeline=None, error="it holds no kernels, while other traces do")
        if each.timeline is not None and not each.timeline.on_device
        else each
        for each in traces
    ]


def refuse_twins(traces: Sequence[Trace]) -> None:
    """Raise UserError where two files hold the same step of one rank: they are of two runs."""
    holder: dict[tuple[int, int], str] = {}
    for each in traces:
        for line in each.timeline.steps if each.timeline else ():
            other = holder.setdefault((each.rank, line.step), each.file)
            if other != each.file:
                raise UserError(
                    f"{other} and {each.file} both hold step {line.step} of rank {each.rank}: "
                    "leave the traces of one run in the directory"
                )


def common_steps(ranks: Sequence[RankTimeline]) -> frozenset[int]:
    """The steps of all ranks, else those of at least half of them. Raises UserError where there are none."""
    of_rank: dict[int, set[int]] = defaultdict(set)
    for each in ranks:
        of_rank[each.rank].update(line.step for line in each.timeline.steps)
    everywhere = frozenset(set.intersection(*of_rank.values()))
    if everywhere:
        return everywhere
    holders = Counter(step for steps in of_rank.values() for step in steps)
    often = frozenset(step for step, count in holders.items() if 2 * count > len(of_rank))
    if not often:
        shown = ", ".join(f"rank {rank} {_span(of_rank[rank])}" for rank in sorted(of_rank)[:4])
        raise UserError(
            f"the ranks were traced in different steps: {shown}; give all ranks the same schedule"
        )
    return often


def _span(steps: set[int]) -> str:
    return f"from {min(steps)} to {max(steps)}" if steps else "in none"
