"""The steps of a rank as rows of operations, from its black box, and where a step goes by phase.

A step becomes a row for each operation, one after another: a phase is its own time followed by the
communication that blocked the training thread in it, as `rankwatch_agent.training.steps.split` tells the
two apart. On a GPU the times of the compute stream replace those of the host; a step whose own time and waits
could not be told apart there has no rows. A short step has rows if its phases were timed, or if it is a
single event: then its own time is `other`. A collective whose end was not seen has no row.

In the table of phases, checkpoints and evaluations stand apart, wherever they lie. Steps that are single
events are left out, so that one of them does not hide what the others do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from statistics import fmean, median
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.vocabulary import COMMUNICATION, DATA_WAIT, OTHER, PHASES, TOKENS
from rankwatch_agent.training.steps.split import Blocked, Collective, Interval, blocked_times, own_seconds
from rankwatch_agent.training.steps.timeouts import SECTIONS
from rankwatch_diagnosis.outliers import outlying
from rankwatch_diagnosis.run.box_records import steps_of
from rankwatch_diagnosis.run.boxes import Box, Boxes
from rankwatch_diagnosis.run.device_steps import (
    LEAST_GAP_SECONDS,
    PASSES,
    DeviceStep,
    DeviceSteps,
    Message,
    Piece,
    device_steps,
    events_of,
    on_device,
)

MOST_MICROBATCHES = 4_096
STEPS_BY_PLACE = "steps_by_place"
"""In the evidence of a verdict whose steps are places."""
_SLACK_SECONDS = 1e-6
"""By how much a phase may reach beyond its step: their clock reads differ."""
_COMPUTE = (*PASSES, "optimizer")


class Row(NamedTuple):
    """One row of the table; times are seconds, starts on the rank's monotonic clock."""

    step: int
    operation: str
    kind: str
    start: float
    seconds: float
    microbatch: int
    group: str
    work: float | None
    messages: tuple[Message, ...] = ()
    """Of a batch, where the black box shows them."""
    ahead: float = 0.0
    """By how much the batch was enqueued before the wait for it began."""


def rows_by_rank(boxes: Boxes, *, by_place: bool = False) -> dict[int, list[Row]]:
    """Return the rows of every rank; of one without whole steps none.

    by_place: a row has the place of its step in the process instead of its number.
    """
    found = {}
    for rank, box in boxes.by_rank.items():
        groups = {each.number: f"{each.name} {each.members}".strip() for each in box.now.groups}
        found[rank] = box, groups, device_steps(box, groups)
    events = {step for _, _, device in found.values() for step in events_of(device, by_place=by_place)}
    return {rank: list(rows_of(*of_rank, events, by_place=by_place)) for rank, of_rank in found.items()}


def numbers_repeat(boxes: Boxes) -> bool:
    """Return True if step numbers begin again in some box, as with each epoch, and all hold their places."""
    repeat = False
    for box in boxes.by_rank.values():
        last = -1
        for each in steps_of(box):
            if layout.place(each.flags) < 0:
                return False
            repeat = repeat or each.number <= last
            last = each.number
    return repeat


def rows_of(
    box: Box,
    groups: Mapping[int, str],
    device: DeviceSteps,
    events: Container[int],
    *,
    by_place: bool = False,
) -> Iterator[Row]:
    """Yield all rows of the steps that the box holds whole; `groups` names those of its numbers.

    Without the first step of the process: it opens connections, fills caches and compiles. events: numbers or
    places of steps that were long on some rank.
    """
    work = _work(box)
    # Another thread records the ends of asynchronous collectives, often after the step.
    collectives = sorted(_collectives(box, groups))
    starts = [each[0] for each in collectives]
    phases: list[Interval] = []
    warm = False
    epoch, last = 0, -1
    for record in box.records:
        if record.kind == RecordKind.PHASE:
            phases.append((record.start, record.end, box.names.get(record.name, "")))
        elif record.kind == RecordKind.STEP:
            number, flags = layout.STEP.unpack_from(record.payload)
            epoch, last = epoch + (number <= last), number
            shown = layout.place(flags) if by_place else number
            # Where older records are gone, the first step is not whole.
            if warm and not flags & layout.STEP_FAILED and number >= 0:
                if flags & layout.STEP_ON_DEVICE:
                    step = device.get((number, record.start), DeviceStep())
                    pieces = on_device(step) if step.timed or shown in events else []
                else:
                    of_step = collectives[bisect_left(starts, record.start) : bisect_left(starts, record.end)]
                    pieces = lay_out(record.start, record.end, phases, of_step)
                yield from _rows(shown, pieces, work.get((epoch, number), []))
            phases = []
            warm = True


def _collectives(box: Box, groups: Mapping[int, str]) -> Iterator[Collective]:
    """Yield collectives with operation and group; from the beginning of a wait where one was seen."""
    for record in box.records:
        if record.kind != RecordKind.COLLECTIVE:
            continue
        _, _, group, flags, waited = layout.COLLECTIVE.unpack_from(record.payload)
        if flags & layout.UNTIMED:
            continue
        start, blocking = record.start, bool(flags & layout.BLOCKING)
        if start <= waited <= record.end:
            start, blocking = waited, True
        yield start, record.end, blocking, box.names.get(record.name, ""), groups.get(group, "")


def _work(box: Box) -> dict[tuple[int, int], list[float]]:
    """Return work by epoch and step, in one unit: tokens if the run reports any, else its commonest unit."""
    amounts: dict[str, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    count: Counter[str] = Counter()
    epoch, last = 0, -1
    for record in box.records:
        if record.kind == RecordKind.STEP:
            number = layout.STEP.unpack_from(record.payload)[0]
            epoch, last = epoch + (number <= last), number
        elif record.kind == RecordKind.WORK:
            amount, step = layout.WORK.unpack_from(record.payload)
            found = amounts[unit := box.names.get(record.name, "")]
            of_step = found[epoch + (step < last), step]  # the record of a step follows its work
            if 0.0 < amount < 1e18 and len(of_step) < MOST_MICROBATCHES:
                of_step.append(amount)
                count[unit] += 1
    if not count:
        return {}
    return amounts[TOKENS] if count[TOKENS] else amounts[min(count, key=lambda unit: (-count[unit], unit))]


def _rows(step: int, pieces: list[Piece], amounts: list[float]) -> Iterator[Row]:
    count = Counter(piece.operation for piece in pieces)
    microbatches = _microbatches(pieces)
    most = max(count[name] for name in PASSES)
    for piece, microbatch in zip(pieces, microbatches, strict=True):
        work: float | None = None
        if piece.operation in PASSES and amounts and microbatch < MOST_MICROBATCHES:
            work = amounts[microbatch] if len(amounts) == most else sum(amounts) / most
        yield Row(
            step,
            piece.operation,
            _kind(piece),
            piece.start,
            piece.seconds,
            microbatch,
            piece.group,
            work,
            piece.messages,
            piece.ahead,
        )


def _microbatches(pieces: list[Piece]) -> list[int]:
    """Count passes in their order; a receive belongs to the one that follows, all else to the last."""
    passed: Counter[str] = Counter()
    found = []
    latest = 0
    for piece in pieces:
        if piece.operation in PASSES:
            latest = passed[piece.operation]
            passed[piece.operation] += 1
        found.append(latest)
    following = 0
    for at in reversed(range(len(pieces))):
        if pieces[at].operation in PASSES:
            following = found[at]
        elif pieces[at].operation.startswith("recv") and not pieces[at].inside:
            found[at] = following
    return found


def _kind(piece: Piece) -> str:
    if piece.communicates or piece.operation == COMMUNICATION:
        return "communication"
    if piece.operation == DATA_WAIT:
        return "data_loading"
    return "compute" if piece.operation in _COMPUTE else OTHER


def lay_out(
    start: float,
    end: float,
    phases: Iterable[Interval],
    collectives: Sequence[Collective],
) -> list[Piece]:
    """Return the pieces of the step from `start` to `end`, none before the end of the one before it.

    collectives: enqueued within the step, each with its operation and its group as further items.
    """
    within = [
        each for each in phases if each[0] >= start - _SLACK_SECONDS and each[1] <= end + _SLACK_SECONDS
    ]
    within.sort(key=lambda each: (each[1], -each[0]))
    blocked = blocked_times(start, end, within, collectives)
    own = own_seconds(within, blocked)
    order = sorted(range(len(within)), key=lambda at: (within[at][0], -within[at][1]))
    by_phase = _by_phase(within, order, blocked)
    pieces = [_communication(each[0], each, inside=False) for each in by_phase[None]]
    for at in order:
        begun, _, name = within[at]
        pieces += _host_pieces(begun, name, own[at], by_phase[at])
    pieces.sort(key=lambda each: each.start)
    return _in_turn(start, end, pieces)


def _by_phase(
    phases: Sequence[Interval], order: Sequence[int], blocked: Sequence[Blocked]
) -> dict[int | None, list[Blocked]]:
    """Group blocked times by the innermost phase that holds their beginning; None for those outside of all.

    order: the phases in the order of their starts.
    """
    found: dict[int | None, list[Blocked]] = defaultdict(list)
    still_open: list[int] = []
    following = 0
    for each in blocked:
        while following < len(order) and phases[order[following]][0] <= each[0]:
            still_open.append(order[following])
            following += 1
        while still_open and phases[still_open[-1]][1] <= each[0]:
            still_open.pop()
        found[still_open[-1] if still_open else None].append(each)
    return found


def _host_pieces(begun: float, name: str, own: float, blocked: Sequence[Blocked]) -> list[Piece]:
    """Return the own time of a phase, then what blocked it; phases inside it are pieces of their own."""
    pieces = [Piece(begun, own, name)]
    at = begun + own
    for each in blocked:
        pieces.append(_communication(at, each, inside=True))
        at += pieces[-1].seconds
    return pieces


def _communication(at: float, blocked: Blocked, *, inside: bool) -> Piece:
    start, end, (_, _, _, *names) = blocked
    operation, group = names
    return Piece(at, end - start, operation, group, True, inside)


def _in_turn(start: float, end: float, pieces: Sequence[Piece]) -> list[Piece]:
    """Move what overlaps behind what came before it, and make pieces of the gaps."""
    found: list[Piece] = []
    at = start
    for piece in pieces:
        if piece.start - at > LEAST_GAP_SECONDS:
            found.append(Piece(at, piece.start - at, OTHER))
        at = max(at, piece.start)
        found.append(piece._replace(start=at))
        at += piece.seconds
    if end - at > LEAST_GAP_SECONDS:
        found.append(Piece(at, end - at, OTHER))
    return found


_ORDER = {name: at for at, name in enumerate(PHASES)}
_MOST_SHOWN = 64
"""Phases; a run may name any number of them."""
_PhaseSeconds = Mapping[str, float]


def phase_table(boxes: Boxes, rows: Mapping[int, Sequence[Row]]) -> dict[str, object]:
    """Return the phases of a step, and the sections apart, for JSON; empty if no rank has a whole step."""
    means = mean_phases(rows)
    if not means:
        return {}
    return {
        "steps": max(len(_usual_steps(of_rank)) for of_rank in rows.values()),
        "ranks": len(means),
        "step_seconds": median(sum(each.values()) for each in means.values()),
        "of_step": _of_step(means),
        "apart": _apart(boxes),
    }


def phases_by_step(rows: Iterable[Row]) -> Mapping[int, _PhaseSeconds]:
    """Return step -> phase -> its seconds, of one rank; `communication` is apart, sections are left out."""
    steps: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        if row.operation not in SECTIONS:
            steps[row.step][COMMUNICATION if row.kind == COMMUNICATION else row.operation] += row.seconds
    return steps


def mean_phases(rows: Mapping[int, Sequence[Row]]) -> dict[int, Mapping[str, float]]:
    """Return rank -> phase -> its seconds in a mean step, of ranks that hold a whole step."""
    found: dict[int, Mapping[str, float]] = {}
    for rank, of_rank in rows.items():
        usual = _usual_steps(of_rank)
        if usual:
            names = sorted({name for step in usual for name in step}, key=phase_order)
            found[rank] = {name: fmean(step.get(name, 0.0) for step in usual) for name in names}
    return found


def phase_order(name: str) -> tuple[bool, int, str]:
    """Return the order of a step; custom phases after those that rankwatch knows, and `other` last."""
    return (name == OTHER, _ORDER.get(name, len(_ORDER)), name)


def _usual_steps(rows: Sequence[Row]) -> list[_PhaseSeconds]:
    """Return the phases of each step of a rank, without sections and without single events."""
    found = list(phases_by_step(rows).values())
    odd = outlying([sum(each.values()) for each in found])
    return list(compress(found, (not each for each in odd)))


def _of_step(means: Mapping[int, _PhaseSeconds]) -> list[dict[str, object]]:
    names = {name for each in means.values() for name in each}
    seconds = {name: median(each.get(name, 0.0) for each in means.values()) for name in names}
    total = sum(seconds.values())
    found = []
    for name in sorted(names, key=phase_order):
        worst = max(means, key=lambda rank: means[rank].get(name, 0.0))
        found.append(
            {
                "phase": name,
                "seconds": seconds[name],
                "share": seconds[name] / total if total > 0.0 else 0.0,
                "worst_rank": worst,
                "worst_seconds": means[worst].get(name, 0.0),
            }
        )
    return found[:_MOST_SHOWN]


def _apart(boxes: Boxes) -> list[dict[str, object]]:
    """Return checkpoints and evaluations: how often on the rank with the most, and how long each takes."""
    found = []
    for name in SECTIONS:
        by_rank: dict[int, list[float]] = defaultdict(list)
        for rank, box in boxes.by_rank.items():
            for record in box.records:
                if record.kind == RecordKind.PHASE and box.names.get(record.name) == name:
                    by_rank[rank].append(record.end - record.start)
        if by_rank:
            worst = max(by_rank, key=lambda rank: max(by_rank[rank]))
            found.append(
                {
                    "phase": name,
                    "count": max(map(len, by_rank.values())),
                    "seconds": median(median(each) for each in by_rank.values()),
                    "worst_rank": worst,
                    "worst_seconds": max(by_rank[worst]),
                    "total_seconds": max(map(sum, by_rank.values())),
                }
            )
    return found
