"""Spans of black boxes that lie: whatever they hold, no pass fails, no span ends before it starts, each can
be sent, and what is kept stays bounded."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import BlackBoxError
from rankwatch.identity import Identity, step_trace
from rankwatch_spans.step_trace import MAX_EVENTS
from rankwatch_spans.steps import MAX_SAMPLED_A_MINUTE
from support.fuzzing import BUSY_MACHINE
from support.training.traced import Node, check_spans

CAPACITY = 16384
_STARTED_MONOTONIC = layout.FIXED.size - 4 - 64 - 128 - 8 - 8 - 8
_TIMES = st.sampled_from((0.0, 1.0, 9.9e9, 1e300, float("nan"), -5.0)) | st.floats(0.0, 1e10)
_NUMBERS = st.sampled_from((0, 1, 2, -1, -(2**63), 2**63 - 1)) | st.integers(0, 50)


class Box:
    """The box of a rank, which a test may fill with anything."""

    def __init__(self, directory: Path, *, rank: int = 0, attempt: int = 0, run: str = "job") -> None:
        identity = Identity(
            run=run,
            rank=rank,
            world_size=2,
            local_rank=rank,
            host="h\x1b[31m",
            short_name=run,
            attempt=attempt,
        )
        self.writer = Writer(directory, identity, phases=("forward", "evil\x1b\n\0name"), capacity=CAPACITY)
        self.origin = time.monotonic()

    def step(
        self, number: int, start: float | None = None, end: float | None = None, *, failed: int = 0
    ) -> None:
        """Times count from the start of the box, unless they are given."""
        begun = self.origin + number * 0.001 if start is None else start
        ended = begun + 0.0009 if end is None else end
        self.writer.append(RecordKind.PHASE, 2, begun, ended, layout.NO_PAYLOAD)
        self.writer.append(RecordKind.STEP, 0, begun, ended, layout.STEP, number, failed)

    def started(self, monotonic: float, wall: float) -> None:
        """Change the clocks of the header."""
        self.corrupt(_STARTED_MONOTONIC, layout.struct.pack("<dd", monotonic, wall))

    def corrupt(self, at: int, data: bytes) -> None:
        data = data[: max(0, len(self.writer.target) - at)]
        self.writer.target[at : at + len(data)] = data

    def die(self) -> None:
        """As by SIGKILL."""
        self.writer.unlock()


_records = st.tuples(
    st.sampled_from(RecordKind), st.integers(0, 6), _TIMES, _TIMES, st.binary(min_size=32, max_size=32)
)
_flips = st.tuples(st.integers(0, layout.RING_OFFSET + 100 * 64), st.binary(min_size=1, max_size=9))
_steps = st.tuples(_NUMBERS, st.floats(0.0, 100.0), st.floats(0.0, 10.0), st.integers(0, 1))


@settings(BUSY_MACHINE, max_examples=60)
@given(
    boxes=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.lists(_steps, max_size=12),
            st.lists(_records, max_size=6),
            st.lists(_flips, max_size=4),
            st.none() | st.tuples(_TIMES, _TIMES),
            st.tuples(_NUMBERS, _TIMES),
            st.none() | st.integers(0, 1 << 18),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_box(tmp_path_factory: pytest.TempPathFactory, boxes: list[tuple[object, ...]]) -> None:
    """Steps in any order, records and bytes of any kind, impossible clocks, an open step, and a cut file,
    over several processes of a rank."""
    directory = tmp_path_factory.mktemp("boxes")
    node = Node(directory)
    for attempt, steps, records, flips, clocks, open_step, cut in boxes:
        try:
            box = Box(directory, attempt=attempt)  # type: ignore[arg-type]
        except BlackBoxError:
            continue  # what lies there is too broken to be replaced
        for number, begun, seconds, failed in steps:  # type: ignore[attr-defined]
            box.step(number, box.origin + begun, box.origin + begun + seconds, failed=failed)
        for kind, name, start, end, payload in records:  # type: ignore[attr-defined]
            box.writer.append(kind, name, start, end, layout.struct.Struct("32s"), payload)
        if clocks is not None:
            box.started(*clocks)  # type: ignore[misc]
        number, began = open_step  # type: ignore[misc]
        box.writer.integers[Now.STEP], box.writer.floats[Now.STEP_BEGAN] = number, began
        for at, data in flips:  # type: ignore[attr-defined]
            box.corrupt(at, data)
        if cut is not None:
            box.writer.path.chmod(0o644)  # type: ignore[attr-defined]
            os.truncate(box.writer.path, cut)  # type: ignore[arg-type]
        node.read()
        box.die()
        node.read()
    node.pass_time(8)
    node.traces.close()
    check_spans(node, unique=False)


@pytest.mark.parametrize("clocks", [(0.0, 0.0), (0.0, 9.9e9), (9.9e9, 0.0), (9.9e9, 9.9e9)])
def test_impossible_clocks(tmp_path: Path, clocks: tuple[float, float]) -> None:
    """A box of 1970, or of the year 2283: its heartbeats since then are not made one by one."""
    node = Node(tmp_path)
    box = Box(tmp_path)
    box.started(*clocks)
    box.step(1, 9.95e9, 9.96e9)
    node.read()
    box.die()
    node.pass_time(8)
    check_spans(node)
    assert len(node.named("heartbeat")) <= 200


def test_many_steps_at_once(tmp_path: Path) -> None:
    """What a rank did while the agent was away: some of it is sampled, and the rest is counted."""
    node = Node(tmp_path)
    box = Box(tmp_path)
    box.origin -= 10.0
    for number in range(5000):
        box.step(number)
    node.read_for(3)
    check_spans(node)
    assert len(node.named("step")) == MAX_SAMPLED_A_MINUTE
    series = {each.metric.name: each.value for each in node.traces.collect().series}
    assert series["rankwatch_trace_notes_dropped_total"] == 5000 - MAX_SAMPLED_A_MINUTE


def test_numbers_begin_again(tmp_path: Path) -> None:
    """A loop that counts the steps of each epoch from 0: each step has a trace of its own, which all ranks
    share, whichever the agent of a rank has read first."""
    node = Node(tmp_path)
    boxes = [Box(tmp_path, rank=rank) for rank in range(2)]
    for epoch in range(3):
        for number in range(4):
            for box in boxes:
                begun = box.origin + epoch * 0.1 + number * 0.01
                box.step(number, begun, begun + 0.005)
        node.read()
    node.pass_time(8)
    check_spans(node)
    traces = Counter(each.trace for each in node.named("step"))
    assert (len(traces), set(traces.values())) == (12, {2})
    expected = {step_trace("c", "job", 0, number, epoch) for epoch in range(3) for number in range(4)}
    assert set(traces) == expected


def test_agent_restarts_between_epochs(tmp_path: Path) -> None:
    """The next agent knows how often the numbers have begun again, although it reads old records anew."""
    boxes, state = tmp_path / "boxes", tmp_path / "state"
    first = Node(boxes, state=state)
    box = Box(boxes)
    for epoch in range(2):
        box.step(0, box.origin - 5.0 + epoch, box.origin - 4.9 + epoch)
    first.read_for(3)
    first.traces.close()
    second = Node(boxes, state=state)
    begun = time.monotonic() + 0.1
    box.step(0, begun, begun + 0.1)
    second.read_for(3)
    sent = [each.trace for node in (first, second) for each in node.named("step")]
    assert sent == [step_trace("c", "job", 0, 0, epoch) for epoch in range(3)]


def test_killed_between_record_and_now_block(tmp_path: Path) -> None:
    """The step of a rank that was killed while it ended one is there once, and not as failed too."""
    node = Node(tmp_path)
    box = Box(tmp_path)
    box.step(7)
    box.writer.integers[Now.STEP], box.writer.floats[Now.STEP_BEGAN] = 7, box.origin + 7 * 0.001
    box.die()
    node.read_for(8)
    check_spans(node)
    (step,) = node.named("step")
    assert step.attributes["rankwatch.sampled"] == "failed"  # its process died within it, or just after


def test_heartbeat_events(tmp_path: Path) -> None:
    """A heartbeat says what went wrong in its time, once for all ranks, and no more than fits."""
    node = Node(tmp_path)
    boxes = [Box(tmp_path, rank=rank) for rank in range(2)]
    for number in range(MAX_EVENTS + 10):
        for box in boxes:
            box.step(number, failed=1)
    node.read()
    for box in boxes:
        box.die()
    node.pass_time(8)
    check_spans(node)
    events = [event for each in node.named("heartbeat") for event in each.events]
    assert [event.attributes["rankwatch.step"] for event in events] == [*range(MAX_EVENTS)]
    assert {event.attributes["rankwatch.sampled"] for event in events} == {"failed"}
    attempt = node.named("attempt")[0]
    assert all(attempt.start <= event.moment <= attempt.end for event in events)
