"""The card that rank 0 prints when its process exits: what the run did, in at most 15 lines.

It is made from the boxes of this node, and needs nothing but Python; only the verdict needs NumPy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.states import ENDED_STATES, Cause, RankState
from rankwatch.conventions.vocabulary import COMMUNICATION, TOKENS, Capability
from rankwatch.untrusted.text import printable
from rankwatch_agent.training.life.failures import worst_state
from rankwatch_diagnosis.run.box_records import capabilities, tracked, unseen_parts
from rankwatch_diagnosis.run.boxes import Box, Boxes, read_boxes
from rankwatch_diagnosis.run.ending import earlier_words, ended_attempts, ending_words, seconds_left
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.pace import checkpoints, judge_straggler, rates
from rankwatch_diagnosis.run.processes import Processes, contention, lacks_cpus
from rankwatch_diagnosis.run.replicas import difference, judge_replicas
from rankwatch_diagnosis.run.step_rows import Row, numbers_repeat, phase_table, rows_by_rank
from rankwatch_diagnosis.straggler.report import share_lost
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from rankwatch_diagnosis.straggler.verdict import Verdict
from rankwatch_diagnosis.words import counted

MOST_LINES = 14
"""One more says what to do next."""
_MOST_CHARACTERS = 160
_LEAST_EXCESS = 1.05
"""Own work of a rank over the median rank's from which it stands out."""
_STALL_SECONDS = 1.0
"""Time that a single step must lose to be shown as a stall."""
_CUT_SHORT = {RankState.INTERRUPTED, RankState.FAILED, RankState.TERMINATED, RankState.LOST}
"""States after which the time since the last progress may have been a stall."""
_UNITS_SHOWN = 4
_EVENTS_SHOWN = 3
_PHASES_SHOWN = 8


def summary_lines(directory: Path) -> list[str]:
    """Return the card of the run in a directory. Raises UserError where it holds none."""
    paths = find_run(directory).boxes
    boxes = read_boxes(paths, copied=None)
    rows = rows_by_rank(boxes, by_place=numbers_repeat(boxes))
    present = max(each.header.identity.attempt for each in boxes.by_rank.values())
    parts = (
        ("attempt", boxes.attempt),
        ("before", earlier_words(ended_attempts(boxes, paths[0].parent), present)),
        *_parts(boxes, rows),
    )
    found = [_headline(boxes), *(f"  {name:<12} {text}" for name, text in parts if text)]
    lines = map(printable, found[:MOST_LINES])
    return [each if len(each) <= _MOST_CHARACTERS else f"{each[: _MOST_CHARACTERS - 3]}..." for each in lines]


def _parts(boxes: Boxes, rows: Mapping[int, Sequence[Row]]) -> Iterator[tuple[str, str]]:
    table = phase_table(boxes, rows)
    yield "ended", ending_words(boxes)
    seen = len(boxes.by_rank)
    yield "ranks", "" if seen == boxes.world_size else f"{seen} of {boxes.world_size}, those of this node"
    visible = capabilities(boxes)
    yield (
        "replicas",
        "; ".join(
            difference(each) for each in judge_replicas(boxes, visible.get(Capability.REPLICAS)).differing
        ),
    )
    yield "step", _phases(table)
    yield "throughput", _throughput(boxes) if table else ""
    left = seconds_left(boxes)
    yield "time left", "" if left is None else _duration(left)
    yield "worst rank", _worst_rank(rows)
    straggler = judge_straggler(boxes, rows) if table else None
    yield "stalls", _stalls(straggler, _last_pause(boxes))
    yield "checkpoints", _checkpoints(boxes)
    yield "not visible", "; ".join(unseen_parts(visible))
    lacking = contention(boxes, Processes())
    yield "cpus", lacks_cpus(lacking) if lacking else ""
    yield "tracker", ", ".join(tracked(boxes))
    yield "verdict", verdict_words(straggler) if table else ""


def _headline(boxes: Boxes) -> str:
    ended = [each for each in boxes.by_rank.values() if each.state in ENDED_STATES]
    state = worst_state({each.state for each in ended} or {each.state for each in boxes.by_rank.values()})
    failed = [each for each in ended if each.failure and each.state is state]
    failed.sort(key=lambda each: each.failed_in_collective)
    text = f"rankwatch: run {boxes.run} {state.value}"
    if failed:
        text += f" on rank {failed[0].rank}" if boxes.world_size > 1 else ""
        text += f" by {failed[0].ended_by}"
    elif state in (RankState.LOST, RankState.FAILED) and boxes.world_size > 1:
        text += f" on rank {min(each.rank for each in ended if each.state is state)}"
    steps = max(each.now.steps_completed for each in boxes.by_rank.values())
    target = max(each.target_steps for each in boxes.by_rank.values())
    wanted = f" of {target}" if target else ""
    seconds = max(each.last_sign - each.header.started_monotonic for each in boxes.by_rank.values())
    return f"{text}, {steps}{wanted} step{'' if steps == 1 and not target else 's'} in {_duration(seconds)}"


def _phases(table: Mapping[str, Any]) -> str:
    if not table:
        return "no whole step is recorded"
    parts = sorted(table["of_step"], key=lambda each: -each["share"])[:_PHASES_SHOWN]
    shown = ", ".join(f"{each['phase']} {each['share']:.0%}" for each in parts if each["share"] >= 0.005)
    return f"{_milliseconds(table['step_seconds'])}: {shown} (last {table['steps']} steps)"


def _throughput(boxes: Boxes) -> str:
    """Say what is done per second that went by, the pauses between steps included."""
    steps: list[float] = []
    work: dict[str, float] = defaultdict(float)
    for box in boxes.by_rank.values():
        per_second, amounts = rates(box)
        if per_second:
            steps.append(per_second)
        for unit, rate in amounts.items():
            work[unit] += rate
    if not steps:
        return ""
    order = sorted(work, key=lambda unit: (unit not in ("samples", TOKENS), unit))[:_UNITS_SHOWN]
    return ", ".join([f"{median(steps):.4g} steps/s", *(f"{work[unit]:,.0f} {unit}/s" for unit in order)])


def _worst_rank(rows: Mapping[int, Sequence[Row]]) -> str:
    """Return the rank with the most work of its own, without what blocked it in collectives."""
    local: dict[int, float] = {}
    for rank, of_rank in rows.items():
        steps: dict[int, float] = defaultdict(float)
        for row in of_rank:
            steps[row.step] += row.seconds if row.kind != COMMUNICATION else 0.0
        if steps:
            local[rank] = median(steps.values())
    if len(local) < 2:
        return ""
    worst = max(local, key=lambda rank: local[rank])
    usual = median(local.values())
    if usual <= 0.0 or local[worst] < _LEAST_EXCESS * usual:
        return f"none stands out, {_milliseconds(usual)} a step of own work in the median rank"
    more = f"{local[worst] / usual - 1.0:.0%} above the median rank"
    return f"rank {worst}: {_milliseconds(local[worst])} a step of its own work, {more}"


def _last_pause(boxes: Boxes) -> float:
    """Return seconds without progress of any rank before a run ended early: no completed step holds them."""
    ranks = boxes.by_rank.values()
    states = {each.state for each in ranks}
    if not states & _CUT_SHORT or RankState.FINISHED in states:
        return 0.0
    ended = max(each.header.wall(each.last_sign) for each in ranks)
    return ended - max(each.header.wall(_last_progress(each)) for each in ranks)


def _last_progress(box: Box) -> float:
    """Return the last progress. A step that an exception ended made none: the pause began at its start."""
    for record in reversed(box.records):
        if record.kind == RecordKind.STEP:
            _, flags = layout.STEP.unpack_from(record.payload)
            return record.start if flags & layout.STEP_FAILED else box.last_progress
    return box.last_progress


def _stalls(found: Verdict | None, last_pause: float) -> str:
    parts = []
    if last_pause >= _STALL_SECONDS:
        parts.append(f"no progress in the last {_duration(last_pause)}")
    events = () if found is None else found.events
    stalls = [(lost, each) for each in events if (lost := float(str(each["lost_seconds"]))) >= _STALL_SECONDS]
    if stalls:
        shown = [
            f"step {each['step']} lost {_duration(lost)} in {each['operation']}"
            for lost, each in stalls[:_EVENTS_SHOWN]
        ]
        more = f" and {len(stalls) - _EVENTS_SHOWN} more" if len(stalls) > _EVENTS_SHOWN else ""
        parts.append(f"{_duration(sum(lost for lost, _ in stalls))} in all: {', '.join(shown)}{more}")
    if not parts and found is not None:
        return f"none of {_duration(_STALL_SECONDS)} or more"
    return "; ".join(parts)


def _checkpoints(boxes: Boxes) -> str:
    found: Mapping[str, Any] = checkpoints(boxes, None)
    if "operations" not in found and "last_good" not in found:
        return "none"
    operations = found.get("operations", {})
    parts = [f"{count} x {name}" for name, count in operations.items()]
    if "save" in operations:
        seconds, blocking = (found[each]["save"] for each in ("seconds", "blocking_seconds"))
        beside = f" and blocks training for {_duration(blocking)}" if blocking < 0.9 * seconds else ""
        parts.append(f"a save takes {_duration(seconds)}{beside}")
    sizes = [
        layout.CHECKPOINT.unpack_from(each.payload)[0]
        for box in boxes.by_rank.values()
        for each in box.records
        if each.kind == RecordKind.CHECKPOINT and box.names.get(each.name) == "save"
    ]
    size = max(sizes, default=0)
    if size:
        parts.append(f"{size:,} bytes")
    parts.append(f"{found['failure_count']} failed")
    if "last_good" in found:
        parts.append(f"the last good one of step {found['last_good']['step']}")
    return ", ".join(parts)


def verdict_words(found: Verdict | None) -> str:
    """Return what slows a run down, in a clause."""
    if found is None:
        return "not judged here: it needs NumPy (extra [diagnosis])"
    if found.cause is Cause.NONE:
        return "nothing is seen to slow it down"
    if found.cause is Cause.INCONCLUSIVE:
        return f"inconclusive: {found.evidence.get('why', 'the boxes do not show what slows it down')}"
    others = len(found.others)
    if found.slowdown < DEFAULT.least_slowdown and not others:
        return f"nothing that was found costs the run {DEFAULT.least_slowdown - 1.0:.0%}"
    ranks = f" rank {', '.join(map(str, found.ranks[:8]))}" if found.ranks else ""
    more = f", and {counted(others, 'more cause')}" if others else ""
    return f"{found.cause_and_phase}{ranks}: {share_lost(found)} slower for it{more}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms" if seconds < 1.0 else _duration(seconds)


def _duration(seconds: float) -> str:
    if seconds < 60.0:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
