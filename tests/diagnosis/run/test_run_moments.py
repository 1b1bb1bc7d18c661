"""Boxes are read one after another, while their ranks go on: nobody is blamed for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch.conventions.states import RankState
from rankwatch.conventions.vocabulary import Lifecycle
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.run.boxes import Boxes, read_boxes
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.waiting import Recorders, judge_waiting
from support.diagnosis.run_boxes import UPTIME_SECONDS, RankBox, boxes_seen, stalled_for

STANDS = (State.HANG, State.DESYNC)


def judged(boxes: Boxes, *, stall: float = 5.0) -> HangVerdict:
    """Whom they wait for."""
    return judge_waiting(boxes, Recorders(), stall=stall, complete=False)


def test_late_rank_is_named(tmp_path: Path) -> None:
    """A rank that does not come for longer than the limit is named. And for less than that nobody."""
    stalled_for(tmp_path, 8.0)
    assert judged(boxes_seen(tmp_path)).ranks == (1,)
    assert judged(boxes_seen(tmp_path), stall=10.0).state not in STANDS


@pytest.mark.parametrize("late", [(0, 2), (1,)])
def test_reading_takes_time(late: tuple[int, ...], tmp_path: Path) -> None:
    """No wait is older because some boxes, of who waits or is waited for, are read 7 seconds later."""
    stalled_for(tmp_path, 8.0)
    seen = {rank: 0.0 if rank in late else 7.0 for rank in range(3)}
    found = judged(boxes_seen(tmp_path, seen))
    assert (found.state in STANDS, found.ranks) == (False, ())


def judged_while(directory: Path, changes: Callable[[list[RankBox]], None]) -> HangVerdict:
    """The verdict where rank 1 has not come for 8 seconds, but this happens while the boxes are read."""
    boxes = stalled_for(directory, 8.0)
    changes(boxes)
    return judged(boxes_seen(directory))


def test_collective_ends_while_read(tmp_path: Path) -> None:
    """Words are older than records: what they call open has its record, and nothing else is open."""
    found = judged_while(tmp_path, lambda boxes: boxes[0].completes(6, 8.0, 0.0))
    assert not [each for each in found.groups if "recv" in each.operation]
    assert 2 not in found.ranks


def test_receive_ends_while_read(tmp_path: Path) -> None:
    """Its record comes before the words are taken back; without a peer it would accuse everyone."""
    found = judged_while(tmp_path, lambda boxes: boxes[0].receives(8.0, 0.0))
    assert not [each for each in found.groups if "recv" in each.operation]


def test_last_arrival(tmp_path: Path) -> None:
    """A rank that has called, with words not yet of an open call, makes nobody else the root cause."""
    assert not {0, 2} & set(judged_while(tmp_path, lambda boxes: boxes[1].enqueues(6)).ranks)


def test_just_served(tmp_path: Path) -> None:
    """Rank 1 came a moment ago and has left the collective; rank 0 was read before it had."""
    boxes = stalled_for(tmp_path, 8.0)
    boxes[1].completes(6, 0.01, 0.0)
    boxes[1].enqueues(6)
    found = judged(boxes_seen(tmp_path))
    assert (found.state in STANDS, found.ranks) == (False, ())


def test_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set makes no wait old. A box of this host is read by the clock that goes on."""
    monkeypatch.setattr("socket.gethostname", lambda: "node")
    real, uptime = time.time, time.monotonic
    stalled_for(tmp_path, 100.0)
    monkeypatch.setattr("time.time", lambda: real() + 3600.0)
    monkeypatch.setattr("time.monotonic", lambda: uptime() + UPTIME_SECONDS)
    found = read_boxes(find_run(tmp_path).boxes, copied=None)
    assert all(abs(each.seen_wall - real()) < 600.0 for each in found.by_rank.values())


def test_overwritten_step(tmp_path: Path) -> None:
    """A step counts as progress where its record is overwritten. The words tell when the last one ended."""
    box = RankBox(tmp_path, 0, world=1)
    box.steps(6, 3.0, 2.0)
    for _ in range(2_000):
        box.completes(5, 900.0, 900.0)
    found = read_boxes(find_run(tmp_path).boxes, copied=None).by_rank[0]
    assert found.last_progress == pytest.approx(box.now - 2.0)


def test_holes_in_ring(tmp_path: Path) -> None:
    """Threads may end between taking a slot and filling it; the final state is read behind these."""
    box = RankBox(tmp_path, 0, world=1)
    for step in range(3):
        box.writer.next_slot()
        box.steps(step, 3.0 - step, 2.5 - step)
    box.says(Lifecycle.FINISHED, 0.0)
    (found,) = read_boxes(find_run(tmp_path).boxes, copied=None).by_rank.values()
    assert found.state is RankState.FINISHED
