"""Collectives of real rank processes, through their black boxes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.conditions import RunConditions
from support.training.ranks import go_on, kill, rank, settled, state, values

pytestmark = pytest.mark.process

COLLECTIVES = """
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
box = run._writer
world, all_reduce = box.name_number("default_pg"), box.name_number("all_reduce")
table = box.integers
table[Now.GROUP_NAME], table[Now.GROUP_SIZE] = world, 4
table[Now.GROUP_MEMBERS], table[Now.GROUPS] = box.name_number("0-3"), 1
def reduce(number, seconds, size=1 << 20):
    now = time.monotonic()
    table[Now.GROUP_ENQUEUED] = number + 1
    values = (layout.COLLECTIVE, size, number, world, 0, 0.0)
    box.append(RecordKind.COLLECTIVE, all_reduce, now - seconds, now, *values)
def enqueue(number):
    table[Now.GROUP_ENQUEUED] = number + 1
    box.floats[Now.GROUP_OLDEST] = time.monotonic()
"""
GROUP = ("default_pg", "0-3")
AT = (*GROUP, "all_reduce")


def test_ranks_are_compared(tmp_path: Path, collector: RanksCollector) -> None:
    """Ranks of a node are compared. Wait by rank, transfer by node, from two processes: the last arriver does
    not wait and gives the transfer."""
    with (
        rank(tmp_path, COLLECTIVES + "reduce(0, 0.5)\nreduce(1, 0.5)\nready()", number=0, world=4),
        rank(tmp_path, COLLECTIVES + "reduce(0, 0.1)\nreduce(1, 0.7)\nready()", number=1, world=4),
    ):
        collection = collector.collect()
    assert set(values(collection, "rankwatch_collectives_total").items()) == {
        (("job", number, *AT), 2.0) for number in ("0", "1")
    }
    waits = {("job", "0", *AT): pytest.approx(0.4), ("job", "1", *AT): pytest.approx(0.2)}
    assert values(collection, "rankwatch_collective_wait_seconds_total") == waits
    large = ("job", *AT, "large")
    assert values(collection, "rankwatch_collective_transfers_total") == {large: 2.0}
    assert values(collection, "rankwatch_collective_transfer_seconds_total") == {large: pytest.approx(0.6)}
    assert values(collection, "rankwatch_collective_bus_bytes_total") == {large: 2 * (1 << 20) * 1.5}


PLACE = ("job", "0", *GROUP, "black_box")


def last(collection: Collection) -> tuple[dict[tuple[str, ...], float], ...]:
    """The last collectives that were enqueued and completed."""
    name = "rankwatch_collective_last_{}"
    return values(collection, name.format("enqueued")), values(collection, name.format("completed"))


def test_position_of_hanging_rank(tmp_path: Path, collector: RanksCollector) -> None:
    """Last enqueued, last completed, and since when the oldest one is open."""
    before = time.time()
    with rank(tmp_path, COLLECTIVES + "reduce(0, 0.1)\nenqueue(1)\nready()"):
        collection = collector.collect()
    assert last(collection) == ({PLACE: 2.0}, {PLACE: 1.0})
    oldest = values(collection, "rankwatch_collective_oldest_incomplete_timestamp_seconds")
    assert list(oldest) == [PLACE]
    assert before - 1.0 < oldest[PLACE] < time.time() + 1.0


def test_position_of_ended_ranks(tmp_path: Path, collector: RanksCollector) -> None:
    """A lost rank's position stays, as what the others wait for; a finished rank's does not."""
    finishes = COLLECTIVES + "reduce(0, 0.1)\nready()\nrun.finish()\nready()"
    with (
        rank(tmp_path, COLLECTIVES + "reduce(0, 0.1)\nenqueue(1)\nready()", number=0, world=2) as lost,
        rank(tmp_path, finishes, number=1, world=2) as finished,
    ):
        collector.collect()
        kill(lost)
        go_on(finished)
        for _ in range(2):
            collection = collector.collect()
    assert state(collection) == {"0": "lost", "1": "finished"}
    assert last(collection) == ({PLACE: 2.0}, {PLACE: 1.0})


def test_ended_rank_is_left_out(tmp_path: Path, collector: RanksCollector) -> None:
    """A rank that ended is not waited for. The others are compared without it, and not kept for ever."""
    code = COLLECTIVES + "reduce(0, 0.1)\nready()\nreduce(1, 0.5)\nready()"
    with (
        rank(tmp_path, code, number=0, world=2) as lost,
        rank(tmp_path, code, number=1, world=2) as living,
    ):
        collector.collect()
        kill(lost)
        collector.collect()
        go_on(living)
        collection = collector.collect()
    assert values(collection, "rankwatch_collective_transfers_total") == {("job", *AT, "large"): 2.0}


def test_restarted_rank_is_compared(tmp_path: Path, collector: RanksCollector) -> None:
    """From its first collective on: numbers begin anew with the process; totals go on."""
    code = COLLECTIVES + "reduce(0, {})\nready()"
    for _ in range(2):
        with (
            rank(tmp_path, code.format(0.3), number=0, world=2),
            rank(tmp_path, code.format(0.1), number=1, world=2),
        ):
            collection = collector.collect()
    assert values(collection, "rankwatch_collective_transfers_total") == {("job", *AT, "large"): 2.0}
    waits = values(collection, "rankwatch_collective_wait_seconds_total")
    assert waits["job", "0", *AT] == pytest.approx(0.4)


def test_stalled_run_is_suspect(tmp_path: Path) -> None:
    """A rank that stands still makes its run suspect. With what the black box tells about it."""
    conditions, moment = RunConditions(), [time.monotonic()]
    collector = RanksCollector(directory=tmp_path, conditions=conditions, monotonic=lambda: moment[0])
    code = COLLECTIVES + "steps(20, 0.01)\nreduce(0, 0.1)\nready()"
    with rank(tmp_path, code, number=3, world=4) as process:
        collector.collect()
        (healthy,) = conditions.runs["job"].ranks
        moment[0] = healthy.last_progress  # its steps take 10 ms: a busy machine is late by more than five
        collector.collect()
        assert conditions.runs["job"].suspected_since is None
        moment[0] += 600.0
        collector.collect()
        run = conditions.runs["job"]
        assert run.suspected_since == moment[0]
        (told,) = run.suspects()
        assert (told.rank, told.pid, told.state) == (3, process.pid, "running")
        assert told.path == tmp_path / "job" / "3.blackbox"
        assert [group.members for group in told.groups] == ["0-3"]
        assert conditions.counted == {told.path: {AT}}
        kill(process)
        collector.collect()
    assert [each.rank for each in conditions.runs["job"].lost] == [3]
    assert conditions.runs["job"].suspected_since is None


def test_killed_before_first_record(tmp_path: Path, collector: RanksCollector) -> None:
    """It is kept as lost: it has no sign of life but its start, and that was just now."""
    with rank(tmp_path, "ready()") as process:
        collector.collect()
        kill(process)
    for _ in range(2):
        assert state(settled(collector, lambda each: bool(state(each)))) == {"0": "lost"}
