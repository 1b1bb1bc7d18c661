"""Sends and receives on timelines worked out by hand: who waits for whom, and what a message takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rankwatch_diagnosis.operations.table import NO_PEER, Kind
from rankwatch_diagnosis.straggler.graph.replay import Replay
from support.diagnosis.operations import as_table

C, X = Kind.COMPUTE, Kind.COMMUNICATION
NONE = float("nan")


def row(rank: int, operation: str, start: float, seconds: float, microbatch: int = 0) -> tuple[Any, ...]:
    """A row of a pipeline in which each rank is a stage."""
    kind = X if "send" in operation or "recv" in operation else C
    return (0, rank, operation, kind, start, seconds, rank, 0, microbatch, "", NONE)


def replayed(rows: list[tuple[Any, ...]], faster: dict[int, float] | None = None) -> float:
    """Seconds of the step, with other seconds of some rows."""
    replay = Replay(as_table(rows))
    return float(replay.step_seconds(changed(replay, faster or {}))[0])


def changed(replay: Replay, seconds: dict[int, float]) -> np.ndarray[Any, Any]:
    """The seconds of all rows, with others of some."""
    found = replay.measured.copy()
    found[list(seconds)] = list(seconds.values())
    return found


BATCHES = [
    row(0, "forward", 0.0, 1.0),
    row(0, "forward_send", 1.0, 2.5),
    row(0, "backward_recv", 1.0, 2.5),
    row(0, "backward", 3.5, 1.0),
    row(1, "backward", 0.0, 3.0),
    row(1, "forward_recv", 3.0, 0.5),
    row(1, "backward_send", 3.0, 0.5),
    row(1, "forward", 3.5, 1.0),
]
"""Two ranks that send to each other and receive from each other at once; rank 1 comes last."""


def test_batch() -> None:
    """It is one meeting: its transfer is the shorter of both ends, and the wait goes with its reason."""
    replay = Replay(as_table(BATCHES))
    assert replay.measured[[1, 2, 5, 6]].tolist() == [0.5] * 4
    assert replayed(BATCHES) == 4.5
    assert replayed(BATCHES, {4: 1.0}) == 2.5
    assert replayed(BATCHES, {0: 4.0}) == 5.5


def with_peers(rows: list[tuple[Any, ...]], messages: dict[int, tuple[int, float]]) -> Replay:
    """The replay of a table that shows, by row, the peer of its message and how early it was enqueued."""
    peer, ahead = np.full(len(rows), NO_PEER), np.zeros(len(rows))
    for index, (rank, seconds) in messages.items():
        peer[index], ahead[index] = rank, seconds
    return Replay(replace(as_table(rows), peer=peer, ahead_seconds=ahead))


def test_ring_of_stages() -> None:
    """A rank with two stages receives from its neighbour in the direction in which it sends to it."""
    rows = [
        row(0, "forward", 0.0, 1.0),
        row(0, "send", 1.0, 2.5),
        row(0, "recv", 3.5, 3.5),
        row(0, "forward", 7.0, 1.0, 1),
        row(1, "backward", 0.0, 3.0),
        row(1, "recv", 3.0, 0.5),
        row(1, "forward", 3.5, 3.0),
        row(1, "send", 6.5, 0.5),
    ]
    replay = with_peers(rows, {1: (1, 0.0), 2: (1, 0.0), 5: (0, 0.0), 7: (0, 0.0)})
    assert replay.communication.partner[[1, 2, 5, 7]].tolist() == [5, 7, 1, 2]
    assert replay.step_seconds(replay.measured)[0] == 8.0
    assert replay.step_seconds(changed(replay, {4: 1.0}))[0] == 6.0


def test_message_that_is_waited_for_later() -> None:
    """A send that was enqueued before a pass leaves before that pass, and the next one after it has gone."""
    rows = [
        row(0, "forward", 0.0, 1.0),
        row(0, "forward", 1.0, 1.0, 1),
        row(0, "send", 2.0, 0.5),
        row(0, "forward", 2.5, 3.0, 2),
        row(0, "send", 5.5, 0.0),
        row(1, "recv", 0.0, 2.5),
        row(1, "forward", 2.5, 1.0),
        row(1, "recv", 3.5, 0.5, 1),
        row(1, "forward", 4.0, 1.0, 1),
    ]
    replay = with_peers(rows, {2: (1, 1.0), 4: (1, 3.0), 5: (0, 0.0), 7: (0, 0.0)})
    assert replay.measured[[2, 4, 5, 7]].tolist() == [1.5, 0.5, 1.5, 0.5]
    ends = replay.row_ends(replay.measured)
    assert ends.tolist() == [1.0, 2.0, 2.5, 5.5, 5.5, 2.5, 3.5, 4.0, 5.0]
    slower = replay.row_ends(changed(replay, {1: 4.0}))
    assert slower[[5, 7]].tolist() == [2.5, 5.5], "only the second one waits for that pass"


def test_messages_on_one_stream() -> None:
    """The messages of a rank travel one after the other, so what a message waits for is no transfer."""
    rows = [
        row(0, "forward", 0.0, 1.0),
        row(0, "forward", 1.0, 1.0, 1),
        row(0, "send", 2.0, 2.0),
        row(0, "forward", 4.0, 1.0, 2),
        row(0, "send", 5.0, 1.0),
        row(1, "recv", 0.0, 4.0),
        row(1, "recv", 4.0, 2.0, 1),
    ]
    replay = with_peers(rows, {2: (1, 1.0), 4: (1, 3.0), 5: (0, 0.0), 6: (0, 0.0)})
    assert replay.measured[[2, 4, 5, 6]].tolist() == [3.0, 2.0, 3.0, 2.0]


def test_batch_with_two_peers() -> None:
    """A rank that sends to one and receives from another waits for both, and the others for it alone."""
    rows = [
        row(0, "forward", 0.0, 1.0),
        row(0, "forward_send", 1.0, 0.5),
        row(1, "forward", 0.0, 1.0),
        row(1, "forward_recv", 1.0, 4.5),
        row(1, "forward_send", 1.0, 4.5),
        row(1, "forward", 5.5, 1.0, 1),
        row(2, "forward", 0.0, 5.0),
        row(2, "forward_recv", 5.0, 0.5),
    ]
    assert replayed(rows) == 6.5
    assert replayed(rows, {6: 2.0}) == 3.5
    assert replayed(rows, {0: 3.0}) == 6.5


def test_rendezvous() -> None:
    """A send waits for a receiver that comes late."""
    rows = [
        row(0, "forward", 0.0, 1.0),
        row(0, "forward_send", 1.0, 2.5),
        row(0, "forward", 3.5, 1.0, 1),
        row(1, "backward", 0.0, 3.0),
        row(1, "forward_recv", 3.0, 0.5),
    ]
    assert replayed(rows) == 4.5
    assert replayed(rows, {3: 1.0}) == 2.5


def test_buffered_send() -> None:
    """A send that is over before the receive begins did not wait for it, and never will."""
    rows = [
        row(0, "forward", 0.0, 1.0),
        row(0, "forward_send", 1.0, 0.5),
        row(0, "forward", 1.5, 4.0, 1),
        row(1, "backward", 0.0, 3.0),
        row(1, "forward_recv", 3.0, 0.01),
    ]
    assert replayed(rows) == 5.5
    assert replayed(rows, {3: 5.0}) == pytest.approx(5.5)
    assert replayed(rows, {0: 4.0}) == 8.5


def pipeline(left_out: str) -> list[tuple[Any, ...]]:
    """Four microbatches through two stages; the first stage takes twice as long."""
    rows, free = [], [0.0, 0.0]
    for microbatch in range(4):
        rows.append(row(0, "forward", free[0], 2.0, microbatch))
        begin = free[0] + 2.0
        end = max(begin, free[1]) + 0.125
        rows.append(row(0, "forward_send", begin, end - begin))
        rows.append(row(1, "forward_recv", free[1], end - free[1]))
        rows.append(row(1, "forward", end, 1.0, microbatch))
        free = [end, end + 1.0]
    return [each for each in rows if not each[2].endswith(left_out)]


@pytest.mark.parametrize("left_out", ["nothing", "send", "recv"])
def test_one_end(left_out: str) -> None:
    """With one end of the messages recorded, the other stage's passes tell what a row waited for."""
    rows = pipeline(left_out)
    took = max(each[4] + each[5] for each in rows)
    assert replayed(rows) == pytest.approx(took, rel=0.05)
    first = {index: 1.0 for index, each in enumerate(rows) if each[1] == 0 and each[2] == "forward"}
    assert replayed(rows, first) == pytest.approx(4 * 1.125 + 1.0, rel=0.05)


def test_overlapping_clocks() -> None:
    """A row that begins a tenth of a millisecond early comes after the one before."""
    rows = [row(0, "forward", 0.0, 1.0), row(0, "forward", 0.9999, 1.0, 1), row(0, "backward", 1.8999, 1.0)]
    assert replayed(rows) == pytest.approx(2.8999, abs=1e-3)
    assert replayed(rows, {0: 2.0}) == pytest.approx(3.8999, abs=1e-3)
    at_once = [row(0, "forward", 0.0, 1.0), row(0, "backward", 0.5, 1.0)]
    assert np.isclose(replayed(at_once, {0: 0.1}), 1.0)
