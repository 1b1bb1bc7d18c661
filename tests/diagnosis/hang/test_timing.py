"""Ranks that were asked one after another, while the run may move: who is named, and when nobody is.

Times are seconds after the first call. A collective is (name, called, ended); without an end it is pending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.job import HangSnapshot
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from support.diagnosis.hang_jobs import parsed

START = 1_795_000_000.0
Call = tuple[str, float, float | None]
READY: Call = ("all_reduce", 0.0, 0.01)
WAITING: list[Call] = [READY, ("all_reduce", 1.0, None)]


def snapshot(
    rank: int, calls: Sequence[Call], taken: float, *, world: int = 4, gloo: bool = False
) -> HangSnapshot:
    """The recorder of a rank of one group, as it was at `taken`: later calls and ends are not in it."""
    entries = [
        _entry(record, name, called, None if ended is None or ended > taken else ended, gloo=gloo)
        for record, (name, called, ended) in enumerate(calls)
        if called <= taken
    ]
    collectives = messages = 0
    for entry in entries:
        collectives += not entry["is_p2p"]
        messages += entry["is_p2p"]
        entry |= {"collective_seq_id": collectives, "p2p_seq_id": messages, "op_id": collectives + messages}
    ranks = {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}
    config = {"": {"name": "", "desc": "", "ranks": "[]"}} if gloo else {"0": ranks}
    document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
    return parsed(document | {"time_seconds": START + taken}, rank)


def verdict_on(
    calls: Mapping[int, Sequence[Call]],
    taken: Callable[[int], float] | float,
    *,
    gloo: bool = False,
    broken: Mapping[int, str] = MappingProxyType({}),
) -> HangVerdict:
    """The verdict on the calls of each rank, which was asked at this time."""
    at = taken if callable(taken) else lambda _: taken
    snapshots = [snapshot(rank, each, at(rank), gloo=gloo) for rank, each in calls.items()]
    return diagnose(snapshots, broken=broken, stall_seconds=5.0)


def _entry(record: int, name: str, called: float, ended: float | None, *, gloo: bool) -> dict[str, Any]:
    nanoseconds = int((START + called) * 1e9)
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": f"{'gloo' if gloo else 'nccl'}:{name}",
        "time_created_ns": nanoseconds,
        "input_sizes": [[8]],
        "output_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed" if ended is not None and not gloo else "scheduled",
        "time_discovered_completed_ns": 0 if ended is None or gloo else int((START + ended) * 1e9),
        "retired": ended is not None,
        "is_p2p": "->" in name or "<-" in name,
    }


def paused(rank: int, back: float | None) -> list[Call]:
    """All call at 1 s but rank 2, which comes at `back` or never; the next step is one second long."""
    if back is None:
        return [READY] if rank == 2 else [READY, ("all_reduce", 1.0, None)]
    return [
        READY,
        ("all_reduce", back if rank == 2 else 1.0, back + 0.01),
        ("all_reduce", back + 1.0, back + 1.02 if rank < 3 else None),
    ]


def asked(order: Sequence[int], first: float, every: float, back: float | None, *, gloo: bool) -> HangVerdict:
    """The verdict on ranks that are asked in this order."""
    calls = {rank: paused(rank, back) for rank in order}
    return verdict_on(calls, lambda rank: first + order.index(rank) * every, gloo=gloo)


@pytest.mark.parametrize("gloo", [False, True], ids=["nccl", "gloo"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 3, 1, 0), (3, 2, 0, 1), (0, 1, 3, 2)])
def test_rank_that_returns_meanwhile(order: Sequence[int], *, gloo: bool) -> None:
    """It makes nobody a root cause: some ranks are still seen in their wait of twenty seconds, others not."""
    for first in (20.2, 20.6, 20.95, 21.0, 21.5, 21.9):
        for every in (0.01, 0.3, 1.0):
            verdict = asked(order, first, every, 21.0, gloo=gloo)
            assert verdict.ranks in ((), (2,)), (first, every)
            if verdict.ranks:  # it was asked before it came back
                assert first + order.index(2) * every < 21.0


@pytest.mark.parametrize("gloo", [False, True], ids=["nccl", "gloo"])
def test_absent_rank_is_named_in_any_order(*, gloo: bool) -> None:
    """It is named once it has been away for as long as a stall when it was asked."""
    for order in ((0, 1, 2, 3), (2, 3, 1, 0), (3, 2, 0, 1)):
        assert asked(order, 7.0, 0.7, None, gloo=gloo).ranks == (2,)
        assert asked(order, 2.0, 0.7, None, gloo=gloo).ranks == ()


def test_host_far_ahead_of_its_device() -> None:
    """It enqueued twenty seconds ago what all devices came to now, and is not stuck in what others left."""
    calls: list[Call] = [READY, ("all_reduce", 1.0, 21.0), ("all_reduce", 1.01, 22.0)]
    assert verdict_on(dict.fromkeys(range(4), calls), lambda rank: 20.99 if rank == 0 else 21.3).ranks == ()


def test_stuck_rank_is_named() -> None:
    """Its device or link hangs in what others completed long ago; they wait for it in the next operation."""
    others: list[Call] = [READY, ("all_reduce", 1.0, 1.1), ("all_reduce", 1.2, None)]
    verdict = verdict_on({0: others, 1: WAITING, 2: others, 3: others}, lambda rank: 10.0 + rank)
    assert (verdict.state, verdict.ranks) == (State.HANG, (1,))


@pytest.mark.parametrize(("taken", "ranks"), [(13.0, ()), (20.0, (1,))])
def test_stuck_gloo_rank(taken: float, ranks: tuple[int, ...]) -> None:
    """Gloo records no ends: an operation is over once the last has called it, and stuck only long after."""
    calls: dict[int, list[Call]] = {
        rank: [READY, ("all_reduce", 10.0 if rank == 3 else 1.0, None if rank == 1 else 10.01)]
        for rank in range(4)
    }
    verdict = verdict_on(calls, taken, gloo=True)
    assert verdict.ranks == ranks
    if ranks:
        assert verdict.state is State.HANG
        reasons: Any = verdict.evidence["reasons"]
        assert reasons["1"].startswith("is stuck in all_reduce number 2 of ")


@pytest.mark.parametrize(("asked", "ranks"), [(21.2, ()), (20.9, (1,))])
def test_receiver_that_came_later(asked: float, ranks: tuple[int, ...]) -> None:
    """The send was seen to wait for twenty seconds, and the receive is over when the receiver is asked."""
    sender = snapshot(0, [READY, ("send 0->1", 1.0, 21.0)], 20.9, world=2)
    receiver = snapshot(1, [READY, ("recv 1<-0", 20.99, 21.0)], asked, world=2)
    assert diagnose([sender, receiver], stall_seconds=5.0).ranks == ranks


def test_several_ranks_in_a_broadcast() -> None:
    """Ranks in a broadcast that its root has left are not named: data goes from rank to rank."""
    root: list[Call] = [READY, ("broadcast", 1.0, 1.1)]
    waiting: list[Call] = [READY, ("broadcast", 1.0, None)]
    assert verdict_on({0: root, 1: root, 2: waiting, 3: waiting}, 60.0).ranks == ()


@pytest.mark.parametrize(("moved", "ranks"), [(21.0, ()), (1.5, (2,))])
def test_idle_gloo_rank_while_another_moves(moved: float, ranks: tuple[int, ...]) -> None:
    """It may wait in a receive, of which gloo records nothing, for the rank that has just come back."""
    calls = {0: WAITING, 1: WAITING, 2: [READY], 3: [*WAITING, ("all_reduce", moved, None)]}
    assert verdict_on(calls, lambda rank: 20.0 + rank, gloo=True).ranks == ranks


@pytest.mark.parametrize(("gloo", "ranks"), [(True, ()), (False, (2,))], ids=["gloo", "nccl"])
def test_idle_rank_beside_a_lost_dump(gloo: bool, ranks: tuple[int, ...]) -> None:
    """Over Gloo it may wait in a receive for the lost one, which may be a victim: neither is named."""
    calls = {0: WAITING, 1: WAITING, 2: [READY]}
    assert verdict_on(calls, 60.0, gloo=gloo, broken={3: "lost"}).ranks == ranks
