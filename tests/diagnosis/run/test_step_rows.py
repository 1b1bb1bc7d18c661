"""A step's phases and collectives as pieces that follow one another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.vocabulary import PHASES, TOKENS
from rankwatch.identity import Identity
from rankwatch.members import members_text
from rankwatch_diagnosis.run.boxes import Box, read_box
from rankwatch_diagnosis.run.device_steps import Message, Piece, device_steps
from rankwatch_diagnosis.run.snapshots import parse_members
from rankwatch_diagnosis.run.step_rows import Row, lay_out, rows_of
from support.device.lone import PAIR, LoneRank


def all_rows(box: Box, groups: Mapping[int, str]) -> list[Row]:
    return list(rows_of(box, groups, device_steps(box, groups), ()))


def told(pieces: list[Piece]) -> list[tuple[str, float, float]]:
    return [(each.operation, round(each.start, 6), round(each.seconds, 6)) for each in pieces]


FORWARD = (1.0, 2.0, "forward")
NESTED = [(1.2, 1.6, "inner"), (1.0, 2.0, "outer")]
LAID_OUT = {
    # Before, between and after phases; below 50 microseconds it is a pause.
    "what no phase claims": (
        (0.5, 3.5),
        [FORWARD, (2.00002, 3.0, "backward")],
        [],
        [("other", 0.5, 0.5), ("forward", 1.0, 1.0), ("backward", 2.00002, 0.99998), ("other", 3.0, 0.5)],
    ),
    # It is taken out of its phase and follows it. Tensor parallelism has them inside of forward.
    "blocking collective": (
        (1.0, 2.0),
        [FORWARD],
        [(1.2, 1.5, True, "all_reduce", "tp")],
        [("forward", 1.0, 0.7), ("all_reduce", 1.7, 0.3)],
    ),
    # They block from the last enqueue to the last end. What runs under the backward pass before is hidden.
    "asynchronous buckets": (
        (1.0, 2.0),
        [(1.0, 2.0, "backward")],
        [(1.1, 1.6, False, "all_reduce", "dp"), (1.5, 1.9, False, "all_reduce", "dp")],
        [("backward", 1.0, 0.6), ("all_reduce", 1.6, 0.4)],
    ),
    # A phase is recorded when it ends. Where two end or begin together, the inner one lies in the outer.
    "both end": (
        (1.0, 2.0),
        [(1.4, 2.0, "data_wait"), FORWARD],
        [],
        [("forward", 1.0, 0.4), ("data_wait", 1.4, 0.6)],
    ),
    "both begin": (
        (1.0, 2.0),
        [(1.0, 1.3, "data_wait"), FORWARD],
        [],
        [("forward", 1.0, 0.7), ("data_wait", 1.7, 0.3)],
    ),
    # It belongs to the innermost phase that holds its beginning: to the outer one once that has ended.
    "collective in the inner phase": (
        (1.0, 2.0),
        NESTED,
        [(1.3, 1.4, True, "all_gather", "tp")],
        [("outer", 1.0, 0.6), ("inner", 1.6, 0.3), ("all_gather", 1.9, 0.1)],
    ),
    "collective behind it": (
        (1.0, 2.0),
        NESTED,
        [(1.7, 1.8, True, "all_gather", "tp")],
        [("outer", 1.0, 0.5), ("inner", 1.5, 0.4), ("all_gather", 1.9, 0.1)],
    ),
}


@pytest.mark.parametrize(("step", "phases", "calls", "pieces"), LAID_OUT.values(), ids=LAID_OUT.keys())
def test_pieces(step: Any, phases: list[Any], calls: list[Any], pieces: list[Any]) -> None:
    """Begin and end of a step, its phases and its collectives give these pieces, in any order of phases."""
    for each in (phases, phases[::-1]):
        assert told(lay_out(*step, each, calls)) == pieces


def test_collective_outside_of_phases() -> None:
    """It keeps its place and its group, between what no phase claims, and lies inside of none."""
    phases = [(1.0, 1.5, "forward")]
    calls = [(1.6, 1.8, True, "all_reduce", "dp")]
    pieces = lay_out(1.0, 2.0, phases, calls)
    assert told(pieces) == [
        ("forward", 1.0, 0.5),
        ("other", 1.5, 0.1),
        ("all_reduce", 1.6, 0.2),
        ("other", 1.8, 0.2),
    ]
    (collective,) = (each for each in pieces if each.communicates)
    assert (collective.group, collective.inside) == ("dp", False)


@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2, 3), (1, 3, 5), (0, 1, 4, 9), tuple(range(3, 4000, 8))])
def test_members_round_trip(ranks: tuple[int, ...]) -> None:
    """Members are read back from their short form. The very ranks that were written."""
    assert parse_members(members_text(ranks), len(ranks)) == ranks


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 0), ("0-3", 5), ("3-1", 2), ("0-9999999", 3), ("1,1", 2), ("0,2,5,9..ab12cd34", 9), ("x", 1)],
)
def test_broken_members(text: str, size: int) -> None:
    """Members that are cut or do not fit are not guessed. A box is untrusted."""
    assert parse_members(text, size) is None


def collective(writer: Writer, start: float, end: float, payload: tuple[float, ...]) -> None:
    """The record of an all-reduce."""
    name = writer.name_number("all_reduce")
    writer.append(RecordKind.COLLECTIVE, name, start, end, layout.COLLECTIVE, *payload)


def test_row_of_late_record(tmp_path: Path) -> None:
    """A collective belongs to the step that enqueued it, whose record comes first; step 1 has no rows."""
    writer = Writer(tmp_path, Identity(run="job"), phases=PHASES, capacity=256)
    group, tokens = writer.new_name("default_pg"), writer.name_number(TOKENS)
    for step in (1, 2):
        at = float(100 + step)
        for name, start, end in (("forward", at, at + 0.3), ("backward", at + 0.3, at + 1.0)):
            writer.append(RecordKind.PHASE, writer.name_number(name), start, end, layout.STEP, 0, 0)
        writer.append(RecordKind.WORK, tokens, at + 1.0, at + 1.0, layout.WORK, 64.0, step)
        writer.append(RecordKind.STEP, 0, at, at + 1.0, layout.STEP, step, 0)
        collective(writer, at + 0.7, at + 0.9, (4096, step - 1, group, 0, 0.0))
    writer.unlock()
    rows = all_rows(read_box(writer.path, most_records=1000), {})
    assert [(row.step, row.operation, row.kind, row.work) for row in rows] == [
        (2, "forward", "compute", 64.0),
        (2, "backward", "compute", 64.0),
        (2, "all_reduce", "communication", None),
    ]
    assert [row.seconds for row in rows] == pytest.approx([0.3, 0.5, 0.2])


def rows(directory: Path, collectives: list[tuple[float, float, float, int]]) -> list[tuple[str, float]]:
    """(operation, seconds) of a step of one second, all forward; collectives: start, end, waited, flags."""
    writer = Writer(directory, Identity(run="job"), phases=PHASES, capacity=256)
    group, forward = (writer.name_number(each) for each in ("tp", "forward"))
    writer.append(RecordKind.STEP, 0, 99.0, 100.0, layout.STEP, 0, 0)
    for number, (start, end, waited, flags) in enumerate(collectives):
        payload = (64, number, group, flags, 100.0 + waited if waited else 0.0)
        collective(writer, 100.0 + start, 100.0 + end, payload)
    writer.append(RecordKind.PHASE, forward, 100.0, 101.0, layout.STEP, 0, 0)
    writer.append(RecordKind.STEP, 0, 100.0, 101.0, layout.STEP, 1, 0)
    writer.unlock()
    box = read_box(writer.path, most_records=100)
    return [(row.operation, row.seconds) for row in all_rows(box, {group: "tp"})]


def test_seen_waits(tmp_path: Path) -> None:
    """Each is communication from its begin, not from the enqueue; several in one phase."""
    found = rows(tmp_path, [(0.1, 0.4, 0.2, 0), (0.5, 0.8, 0.7, 0)])
    assert [operation for operation, _ in found] == ["forward", "all_reduce", "all_reduce"]
    assert [seconds for _, seconds in found] == pytest.approx([0.7, 0.2, 0.1])


@pytest.mark.parametrize("waited", [0.05, 0.9, math.nan])
def test_impossible_wait(waited: float, tmp_path: Path) -> None:
    """A wait that cannot be is ignored. The estimate for asynchronous ones holds then."""
    (_, own), (operation, seconds) = rows(tmp_path, [(0.1, 0.4, waited, 0)])
    assert (operation, own, seconds) == ("all_reduce", pytest.approx(0.7), pytest.approx(0.3))


def test_untimed_collective(tmp_path: Path) -> None:
    """A collective without a known end has no row. A row of no seconds would make it infinitely fast."""
    assert rows(tmp_path, [(0.5, 0.5, 0.0, layout.UNTIMED)]) == [("forward", pytest.approx(1.0))]


def resolved(rank: LoneRank) -> Box:
    """The box of a rank, once the device is done."""
    rank.resolve()
    rank.resolve()
    return read_box(rank.writer.path, most_records=1_000)


def rows_on_device(rank: LoneRank, step: int) -> list[Row]:
    """The rows of a step, once the device is done."""
    return [each for each in all_rows(resolved(rank), {}) if each.step == step]


def waits_of(rank: LoneRank) -> list[Row]:
    """Those of step 1 that show their messages."""
    return [each for each in rows_on_device(rank, 1) if each.messages]


def device_rows(rank: LoneRank, step: int) -> list[tuple[str, float]]:
    """Operation and milliseconds of each of them."""
    return [(each.operation, round(1e3 * each.seconds)) for each in rows_on_device(rank, step)]


@pytest.fixture
def rank(tmp_path: Path) -> LoneRank:
    """A rank after the first step of its process, which has no rows."""
    rank = LoneRank(tmp_path)
    rank.idle_step()
    rank.device_finishes()
    return rank


def test_waits_that_take_turns(rank: LoneRank) -> None:
    """On a GPU the waits of a phase in one group are one row: only their sum ends for all ranks at once."""
    with rank.run.step(), rank.run.phase("backward"):
        for operation in ("all_gather", "reduce_scatter", "all_gather"):
            rank.peer_comes(0.020)
            rank.collective(operation, PAIR, 0.0)
            rank.compute(0.010)
            rank.host.spend(0.030)
    assert device_rows(rank, 1) == [("backward", 30), ("all_gather", 60)]


def test_unknown_messages_of_a_pipeline(rank: LoneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that does not show its messages, as in older boxes, has the name of the pass that follows."""
    monkeypatch.setattr(layout, "message", lambda peer, received: 0)
    with rank.run.step():
        for number, phase in enumerate(("forward", "forward", "backward")):
            peer = rank.network.meet((1, 0, number), 2, 0.0)
            peer.arrive(rank.host.now + 0.020 * (number + 1), ())
            rank.exchange(PAIR, [], [(1, number)], 0.0).wait()
            with rank.run.phase(phase):
                rank.compute(0.001)
    passes = [("forward", 20), ("forward", 19), ("backward", 19)]
    assert device_rows(rank, 1) == [
        row for name, waited in passes for row in ((f"recv_{name}", waited), (name, 1))
    ]


def test_messages_of_a_batch(rank: LoneRank) -> None:
    """A wait shows each message of its batch, and how long before the wait the batch was enqueued."""
    with rank.run.step():
        for transfer, source, target in (("early", 0, 1), ("sent", 0, 1), ("received", 1, 0)):
            rank.network.meet((source, target, transfer), 2, 0.0).arrive(rank.host.now + 0.050, ())
        with rank.run.phase("forward"):
            rank.compute(0.010)
        early = rank.exchange(PAIR, [(1, "early")], [], 0.0)
        with rank.run.phase("forward"):
            rank.compute(0.020)
        early.wait()
        rank.exchange(PAIR, [(1, "sent")], [(1, "received")], 0.0).wait()
    found = waits_of(rank)
    sent, received = Message("send", 1), Message("recv", 1)
    assert [each.messages for each in found] == [(sent,), (sent, received)]
    assert [each.ahead for each in found] == pytest.approx([0.020, 0.0], abs=1e-4)
    assert [each.seconds for each in found] == pytest.approx([0.020, 0.0], abs=1e-4)


def test_batch_without_a_wait(rank: LoneRank) -> None:
    """It keeps its place before the batch that the rank waits for, however long the host has been up."""
    with rank.run.step():
        rank.network.meet((0, 1, "sent"), 2, 0.0).arrive(rank.host.now, ())
        rank.network.meet((1, 0, "received"), 2, 0.0).arrive(rank.host.now + 0.0123, ())
        batches = [
            rank.exchange(PAIR, [(1, "sent")], [], 0.0),
            rank.exchange(PAIR, [], [(1, "received")], 0.0),
        ]
        rank.host.spend(0.001)
        for each in batches:
            each.wait()
    box = resolved(rank)
    for up in range(0, 10_000_000, 99_991):
        later = [each._replace(start=each.start + up, end=each.end + up) for each in box.records]
        waits = [each for each in all_rows(replace(box, records=tuple(later)), {}) if each.messages]
        assert [round(each.seconds, 2) for each in waits] == [0.0, 0.01]


def test_batches_of_the_same_messages(rank: LoneRank) -> None:
    """Two that were enqueued together have a row each, so that sends keep their receives."""
    with rank.run.step():
        for transfer, seconds in (("first", 0.010), ("second", 0.030)):
            rank.network.meet((0, 1, transfer), 2, 0.0).arrive(rank.host.now + seconds, ())
        for each in [rank.exchange(PAIR, [(1, name)], [], 0.0) for name in ("first", "second")]:
            each.wait()
    waits = waits_of(rank)
    assert [each.messages for each in waits] == 2 * [(Message("send", 1),)]
    assert [each.seconds for each in waits] == pytest.approx([0.010, 0.020], abs=1e-4)


def test_large_batch(rank: LoneRank) -> None:
    """A batch of more messages than a record holds shows none of them."""
    with rank.run.step():
        for transfer in range(layout.DEVICE_MESSAGES + 1):
            rank.network.meet((0, 1, transfer), 2, 0.0).arrive(rank.host.now, ())
        rank.exchange(PAIR, [(1, each) for each in range(layout.DEVICE_MESSAGES + 1)], [], 0.0).wait()
    waits = [each for each in rows_on_device(rank, 1) if each.kind == "communication"]
    assert [(each.operation, each.messages) for each in waits] == [("recv", ())]


@pytest.mark.parametrize("word", [layout.MESSAGE_RECEIVED, 0xFFFF])
@pytest.mark.parametrize("group", [0, 1])
def test_message_of_nobody(rank: LoneRank, word: int, group: int) -> None:
    """A wait whose peer is no member of its group shows no message. A box is untrusted."""
    with rank.run.step():
        rank.compute(0.010)
    number = rank.groups.of(PAIR).number if group else 0
    wait = (0.0, 1, 1, word, number, 0, 0, 0, layout.POINT_TO_POINT, 0)
    rank.writer.append(RecordKind.DEVICE_WAIT, 0, 1.0, 1.0, layout.DEVICE_WAIT, *wait)
    assert [each.messages for each in rows_on_device(rank, 1) if each.kind == "communication"] == [()]


def test_unknown_waits(rank: LoneRank) -> None:
    """A step whose own time and waits could not be told apart has no rows."""
    timeline = rank.timeline
    with rank.run.step(), rank.run.phase("forward"):
        rank.compute(0.010)
        timeline.spoil()
    assert device_rows(rank, 1) == []


def test_lost_wait(rank: LoneRank) -> None:
    """A step of which a wait is lost has no rows: the wait would pass for the rank's own work."""
    with rank.run.step(), rank.run.phase("backward"):
        rank.peer_comes(0.020)
        rank.collective("all_reduce", PAIR, 0.0)
    assert device_rows(rank, 1) == [("backward", 0), ("all_reduce", 20)]
    box = read_box(rank.writer.path, most_records=1_000)
    left = tuple(each for each in box.records if each.kind != RecordKind.DEVICE_WAIT)
    assert all_rows(replace(box, records=left), {}) == []


def test_epochs_on_a_gpu(rank: LoneRank) -> None:
    """Steps of one number, of two epochs, do not share their rows."""
    for seconds in (0.010, 0.020):
        for number in range(2):
            with rank.run.step(number), rank.run.phase("forward"):
                rank.compute(seconds)
    rank.resolve()
    assert [name for name, _ in device_rows(rank, 1)].count("forward") == 2
