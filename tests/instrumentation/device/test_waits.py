"""Each way in which a compute stream waits for other ranks, on a simulated GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.collectives.device_waits import MOST_STREAMS, DeviceWaits
from support.device.lone import PAIR, LoneRank
from support.device.programs import Reducer
from support.device.sharded import Fsdp2

OWN_SECONDS, LATE_SECONDS = 0.010, 0.050


def near(seconds: float) -> Any:
    """Equal but for the time that the host takes to enqueue, and small copies."""
    return pytest.approx(seconds, abs=5e-4)


def reducer(rank: LoneRank) -> None:
    """The end of DDP's backward pass, in C++."""
    with rank.machine.autograd.backward():
        Reducer(rank, PAIR).bucket_ready(last=True)


def wait_event(rank: LoneRank) -> None:
    """A collective on a side stream, whose event the compute stream waits for."""
    side = rank.machine.stream()
    with rank.machine.on(side):
        rank.collective("all_reduce", PAIR, 0.0)
        event = side.record_event()
    rank.machine.current().wait_event(event)


def chain_of_streams(rank: LoneRank) -> None:
    """A second side stream waits for the first one, and the compute stream for the second."""
    first, second = rank.machine.stream(), rank.machine.stream()
    with rank.machine.on(first):
        rank.collective("all_reduce", PAIR, 0.0)
    second.wait_stream(first)
    rank.machine.current().wait_stream(second)


def asynchronous_on_side_stream(rank: LoneRank) -> None:
    """An asynchronous collective, waited for on a side stream, which the compute stream waits for."""
    side = rank.machine.stream()
    with rank.machine.on(side):
        rank.collective("all_reduce", PAIR, 0.0, asynchronous=True).wait()
    rank.machine.current().wait_stream(side)


def exchange(rank: LoneRank) -> None:
    """A batch of a send and a receive."""
    for source, target in ((0, 1), (1, 0)):
        peer = rank.network.meet((source, target, "x"), 2, 0.0)
        peer.arrive(rank.host.now + LATE_SECONDS, ())
    rank.exchange(PAIR, [(1, "x")], [(1, "x")], 0.0).wait()


WAYS: dict[str, Callable[[LoneRank], object]] = {
    "on the current stream": lambda rank: rank.collective("all_reduce", PAIR, 0.0),
    "on the stream of the group": lambda rank: rank.collective(
        "all_reduce", PAIR, 0.0, asynchronous=True
    ).wait(),
    "functional": lambda rank: rank.functional("all_reduce", PAIR, 0.0)(),
    "broadcast of DDP in C++": lambda rank: rank.broadcast_buffers(PAIR, 0.0),
    "reducer of DDP in C++": reducer,
    "event of a side stream": wait_event,
    "chain of streams": chain_of_streams,
    "asynchronous on a side stream": asynchronous_on_side_stream,
    "exchange": exchange,
}


class Measured(NamedTuple):
    """Own seconds of the phase, and its waits: operation, seconds, flags."""

    own: float
    waits: list[tuple[str, float, int]]


def measure(rank: LoneRank, way: Callable[[LoneRank], object]) -> Measured:
    """Own work, a wait for a late peer, and own work again, in step 1."""
    rank.idle_step()
    rank.device_finishes()
    rank.peer_comes(OWN_SECONDS + LATE_SECONDS)
    with rank.run.step(), rank.run.phase("forward"):
        rank.compute(OWN_SECONDS)
        way(rank)
        rank.compute(OWN_SECONDS)
    rank.resolve()
    found = [
        (each.name, each.payload[0], int(each.payload[8]))
        for each in rank.records(RecordKind.DEVICE_WAIT)
        if each.payload[1] == 1
    ]
    ((own, _),) = [(own, step) for _, own, step in rank.phases() if step == 1]
    assert rank.writer.integers[Now.ERRORS] == 0
    assert rank.machine.synchronisations == 0
    assert not rank.unknown_steps()
    return Measured(own, found)


@pytest.mark.parametrize("way", WAYS)
def test_way_to_wait(rank: LoneRank, way: str) -> None:
    """What the stream waits for a late peer is no own work, and carries the name of the operation."""
    found = measure(rank, WAYS[way])
    assert found.own == near(2 * OWN_SECONDS)
    expected = ("all_reduce", near(LATE_SECONDS), 0)
    if way == "broadcast of DDP in C++":
        expected = ("broadcast", near(LATE_SECONDS), 0)
    elif way == "exchange":
        expected = ("recv", near(LATE_SECONDS - OWN_SECONDS), layout.POINT_TO_POINT | layout.BLOCKING)
    assert [each for each in found.waits if each[1] > 1e-3] == [expected]


def test_side_stream_that_computes(rank: LoneRank) -> None:
    """A wait for a stream without collectives is a wait for own work."""

    def way(_: LoneRank) -> None:
        side = rank.machine.stream()
        rank.collective("all_reduce", PAIR, 0.0)
        side.wait_stream(rank.machine.current())
        with rank.machine.on(side):
            rank.compute(0.020)
        rank.machine.current().wait_stream(side)

    found = measure(rank, way)
    assert found.own == near(2 * OWN_SECONDS + 0.020)
    assert [each[1] for each in found.waits] == [near(LATE_SECONDS)]


def test_fsdp_of_a_slow_rank(rank: LoneRank) -> None:
    """The rank that others wait for hardly waits, although FSDP waits for many events."""

    def way(_: LoneRank) -> None:
        shards = Fsdp2(rank, PAIR, None)
        shards.begin_forward()
        for _ in range(4):
            rank.peer_comes(0.0)
            shards.wait_for_unshard(shards.unshard(), forward=True)
            rank.compute(OWN_SECONDS)
        shards.end_forward()

    found = measure(rank, way)
    assert found.own == near(6 * OWN_SECONDS)
    assert sum(seconds for _, seconds, _ in found.waits) == near(LATE_SECONDS)


def test_replaced_methods(rank: LoneRank) -> None:
    """The methods of torch that are replaced look as before, since libraries ask for their parameters. The
    end of the hooks restores them, and no wait is seen any more."""
    cuda, distributed = rank.machine.torch.cuda, rank.distributed
    methods = [(cuda.Event, each) for each in ("record", "wait")]
    methods += [(cuda.CUDAGraph, each) for each in ("capture_begin", "capture_end", "replay")]
    methods += [(distributed.ProcessGroup, each) for each in ("_start_coalescing", "_end_coalescing")]
    methods.append((distributed, "_broadcast_coalesced"))
    ours = [getattr(*each) for each in methods]
    rank.waits.remove()
    rank.gpu.captures.remove()
    originals = [getattr(*each) for each in methods]
    assert not set(map(id, ours)) & set(map(id, originals))
    for found in (inspect.signature, lambda each: each.__qualname__):
        assert [found(each) for each in ours[:5]] == [found(each) for each in originals[:5]]
    rank.peer_comes(0.0)
    with rank.run.step():
        wait_event(rank)
    rank.resolve()
    assert rank.recorded_waits() == []


def test_compute_stream_that_has_communicated(rank: LoneRank) -> None:
    """Once a stream that collectives ran on becomes the compute stream, its events show own work: a copy that
    follows it is no communication."""
    rank.peer_comes(0.0)
    stream = rank.machine.stream()
    with rank.run.step(), rank.machine.on(stream):
        rank.collective("all_reduce", PAIR, 0.0)
    with rank.machine.on(stream):
        copies = rank.machine.stream()
        for _ in range(2):
            with rank.run.step():
                copies.wait_stream(stream)
                with rank.machine.on(copies):
                    rank.compute(OWN_SECONDS)
                stream.wait_stream(copies)
    rank.resolve()
    assert rank.recorded_waits() == []
    assert len(rank.records(RecordKind.DEVICE_STEP)) >= 3


def test_endless_streams(rank: LoneRank) -> None:
    """Streams that communicate once and never again, as external ones that are made for each step, are
    forgotten; that which is used all the time is not."""
    side = rank.machine.stream()
    with rank.run.step():
        for _ in range(3 * MOST_STREAMS):
            for stream in (side, rank.machine.stream(), rank.machine.stream()):
                rank.peer_comes(0.0)
                with rank.machine.on(stream):
                    rank.collective("all_reduce", PAIR, 0.0)
            assert side.cuda_stream in rank.waits._communicating
        assert len(rank.waits._communicating) == MOST_STREAMS
        rank.machine.current().wait_stream(side)
    rank.resolve()
    ((name, _, _),) = rank.recorded_waits()
    assert name == "all_reduce"


class ImmutableEvent(type):
    """Of a class of which one method cannot be replaced, as of one that is written in C++."""

    def __setattr__(cls, name: str, value: object) -> None:
        if name == "wait":
            raise TypeError("cannot set 'wait' attribute of immutable type 'Event'")
        super().__setattr__(name, value)


def test_error_while_methods_are_replaced(rank: LoneRank) -> None:
    """If one of the methods cannot be replaced, the others are as before."""
    rank.waits.remove()
    torch = rank.machine.torch
    before = torch.cuda.Event = ImmutableEvent("Event", (torch.cuda.Event,), {"record": lambda _: None})
    record = before.record
    with pytest.raises(TypeError, match="immutable"):
        DeviceWaits(rank.gpu, rank.groups, rank.run._failures, 1, torch, rank.distributed)
    assert torch.cuda.Event.record is record


@pytest.mark.parametrize("missing", ["record", "wait"])
def test_torch_without_a_method_of_events(rank: LoneRank, missing: str) -> None:
    """The other methods are replaced and restored, and it is known that waits are not all seen."""
    rank.waits.remove()
    assert rank.waits.complete
    torch = rank.machine.torch
    own = {name: lambda *_: None for name in {"record", "wait"} - {missing}}
    torch.cuda.Event = type("Event", (), own)
    waits = DeviceWaits(rank.gpu, rank.groups, rank.run._failures, 1, torch, rank.distributed)
    assert not waits.complete
    (name,) = own
    assert getattr(torch.cuda.Event, name) is not own[name]
    waits.remove()
    assert getattr(torch.cuda.Event, name) is own[name]


def test_callback_of_the_backward_pass_that_raises(rank: LoneRank) -> None:
    """The trainer that goes on does its own work then, and does not wait until the step ends."""
    rank.peer_comes(0.0)
    with rank.run.step():
        with pytest.raises(KeyError), rank.run.phase("backward"), rank.machine.autograd.backward():
            rank.collective("all_reduce", PAIR, 0.0, asynchronous=True)
            rank.machine.autograd.queue_callback(Mock(side_effect=KeyError))
        with rank.run.phase("optimizer"):
            rank.compute(OWN_SECONDS)
    rank.resolve()
    own = {name: seconds for name, seconds, _ in rank.phases()}
    assert own["optimizer"] == near(OWN_SECONDS)
    assert rank.unknown_steps() == [0]
