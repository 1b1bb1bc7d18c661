"""`rankwatch blackbox`: print what a black box holds, of a live rank or a dead one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import Header, RawRecord
from rankwatch.conventions.vocabulary import LOSS
from rankwatch.errors import BlackBoxError
from rankwatch.members import members_text
from rankwatch.settings import SentenceParser
from rankwatch.untrusted.text import redacted
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_cli.options import add_run
from rankwatch_cli.output import show
from rankwatch_cli.runs import boxes_of, named_run
from rankwatch_diagnosis.run.box_records import visible_lines

_MOST_RECORDS = 1 << 24
"""More than any ring holds."""


def main(arguments: Sequence[str]) -> int:
    """Print one box; returns 0. Raises UserError if the file is no black box."""
    parser = SentenceParser(
        prog="rankwatch blackbox",
        description="Print who wrote a black box, what the rank did last, and its newest records.",
    )
    add_run(parser, "its directory, or a file RANK.blackbox")
    parser.add_argument(
        "--rank", type=int, metavar="N", help="whose box to print (default: the lowest rank here)"
    )
    parser.add_argument(
        "--records", type=int, default=20, metavar="N", help="newest records to print (default 20)"
    )
    given = parser.parse_args(arguments)
    if given.records < 0:
        raise UserError(f"--records is {given.records}, expected a whole number >= 0")
    path = _box(named_run(given.run).absolute(), given.rank)
    try:
        totals = RankTotals(lambda _: None, max_names=1000)
        rank = RankFollower(path, totals, in_its_place=False, keep_records=min(given.records, _MOST_RECORDS))
        rank.poll(time.monotonic(), to_end=True)
        lines = [*_final_state(rank), *_newest(rank)]
    except BlackBoxError as error:
        raise UserError(str(error)) from error
    show(*lines)
    return 0


def _box(path: Path, rank: int | None) -> Path:
    """Return the box at a path, or that of a rank in the directory at it."""
    if not path.is_dir():
        return path
    boxes = boxes_of(path)
    if not boxes:
        raise UserError(f"{path} holds no black box (RANK{layout.SUFFIX})")
    if rank is None:
        return next(iter(boxes.values()))
    if rank not in boxes:
        raise UserError(f"{path} holds no black box of rank {rank}, but of {members_text(list(boxes))}")
    return boxes[rank]


def _final_state(rank: RankFollower) -> Iterator[str]:
    header, now = rank.header, rank.now
    identity = header.identity
    yield f"run {identity.run}, rank {identity.rank} of {identity.world_size}, {rank.state}"
    name = f"name {identity.short_name}, " if identity.short_name else ""
    yield f"{name}host {identity.host}, pid {header.pid}, local rank {identity.local_rank}"
    yield f"attempt {identity.attempt}, started {_clock(header, header.started_monotonic)}"
    step = f"{now.steps_completed} steps completed, last number {now.step}"
    yield step + (f", one open since {_clock(header, now.step_began)}" if now.step_began else "")
    if rank.open_phase is not None:
        name, began = rank.open_phase
        yield f"open phase {name} since {_clock(header, began)}"
    loss = rank.totals.scalars.get(LOSS)
    yield f"loss {'not reported' if loss is None else f'{loss:g}'}"
    if now.allocator is not None:
        held = now.allocator
        yield (
            f"GPU memory: tensors hold {held.allocated:,} bytes (at most {held.peak:,}), the allocator "
            f"{held.reserved:,}; {held.retries} retries, {held.out_of_memory} times out of memory"
        )
    yield from visible_lines(now.capabilities)
    failure = rank.totals.lifecycle.last_failure
    if failure is not None:
        text = ": ".join(filter(None, (failure.exception, failure.message)))
        yield f"ended by {text} ({failure.kind})"
    yield f"{now.errors} errors inside rankwatch, {rank.missed} records missed"
    if now.names_refused:
        yield f"{now.names_refused} uses of names for which the table of {layout.NAME_COUNT - 1} has no place"


def _newest(rank: RankFollower) -> Iterator[str]:
    yield f"newest {len(rank.newest)} of {rank.totals.records} records:"
    yield from (f"  {_describe(rank, record)}" for record in rank.newest)


def _describe(rank: RankFollower, record: RawRecord) -> str:
    kind = RecordKind(record.kind)
    name = rank.name(record.name)
    text = f"{_clock(rank.header, record.start)} {kind.name.lower()}{' ' if name else ''}{name}"
    if record.end > record.start:
        text += f" {1e3 * (record.end - record.start):.3f} ms"
    if kind == RecordKind.STEP:
        number, flags = layout.STEP.unpack_from(record.payload)
        return f"{text} number {number}{', ended by an exception' if flags & layout.STEP_FAILED else ''}"
    if kind == RecordKind.LIFECYCLE:
        return f"{text} {_error(rank, record)}".rstrip()
    if kind == RecordKind.CHECKPOINT_BEGAN:
        step, overlaps = layout.CHECKPOINT_BEGAN.unpack_from(record.payload)
        return f"{text} of step {step}{', before the one before was finished' if overlaps else ''}"
    if kind == RecordKind.CHECKPOINT:
        size, step, stage, failed, blocked = layout.CHECKPOINT.unpack_from(record.payload)
        part = f" stage {rank.name(stage)}" if stage else ""
        beside = not stage and blocked < record.end - record.start
        return (
            f"{text}{part} of step {step}, {size} bytes"
            f"{f', {1e3 * blocked:.3f} ms of it blocking' if beside else ''}{', failed' if failed else ''}"
        )
    if kind in (RecordKind.SCALAR, RecordKind.WORK):
        value, step = layout.SCALAR.unpack_from(record.payload)
        return f"{text} {value:g} at step {step}"
    if kind == RecordKind.COLLECTIVE:
        size, number, group, *_ = layout.COLLECTIVE.unpack_from(record.payload)
        return f"{text} number {number} of group {rank.name(group)}, {size} bytes"
    if kind == RecordKind.FINGERPRINT:
        step, weighted, hashed, first, group = layout.FINGERPRINT.unpack_from(record.payload)
        part = f"parameters from {rank.name(first)}" if group else "all parameters"
        return f"{text} of {part} at step {step}: {weighted:016x} {hashed:016x}"
    return text


def _error(rank: RankFollower, record: RawRecord) -> str:
    """Return the type of the exception that ended the run, and its message; empty for other events."""
    _, kind, *pieces = layout.ENDING.unpack_from(record.payload)
    return redacted(": ".join(filter(None, (rank.name(kind), "".join(map(rank.name, pieces))))))


def _clock(header: Header, monotonic: float) -> str:
    moment = datetime.fromtimestamp(header.wall(monotonic), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
