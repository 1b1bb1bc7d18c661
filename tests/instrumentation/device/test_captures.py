"""Captures and replays of CUDA graphs on a simulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.device.cuda import Captures
from support.device.lone import PAIR, LoneRank, near


def test_capture(rank: LoneRank) -> None:
    """During the capture of a CUDA graph no event is recorded or queried, and the step has no own time."""
    graph = rank.machine.torch.cuda.CUDAGraph()
    rank.forward(0.010)
    made = rank.machine.events_made
    graph.capture_begin()
    assert rank.writer.integers[Now.CAPTURING] == 1
    rank.forward(0.010)
    graph.capture_end()
    assert rank.machine.events_made == made
    assert rank.writer.integers[Now.CAPTURING] == 0
    with rank.run.step(), rank.run.phase("forward"):
        graph.replay()
    rank.resolve()
    assert rank.errors() == 0
    assert 1 not in [each.payload[0] for each in rank.records(RecordKind.DEVICE_STEP)]
    steps = [each.payload for each in rank.records(RecordKind.STEP)]
    promised = [number for number, flags in steps if int(flags) & layout.STEP_ON_DEVICE]
    assert promised == [0, 2, 3], "the agent does not wait for times that do not come"
    assert rank.phases() == [("forward", near(0.010), 0), ("forward", near(0.010), 2)]


def test_capture_in_step(rank: LoneRank) -> None:
    """A capture within a step hides its marks, so that the step has no own time."""
    graph = rank.machine.torch.cuda.CUDAGraph()
    with rank.run.step():
        graph.capture_begin()
        with rank.run.phase("forward"):
            rank.compute(0.010)
        graph.capture_end()
    rank.idle_step()
    rank.resolve()
    assert rank.errors() == 0
    assert rank.unknown_steps() == [0]


def captured_collective(rank: LoneRank) -> Any:
    """A graph that holds a collective."""
    graph = rank.machine.torch.cuda.CUDAGraph()
    graph.capture_begin()
    rank.collective("all_reduce", PAIR, 0.0)
    graph.capture_end()
    return graph


def test_graph_with_collectives(rank: LoneRank) -> None:
    """The waits inside a replayed graph are not seen, so the step has no own time."""
    graph = captured_collective(rank)
    for number in range(2):
        with rank.run.step():
            if number:
                rank.peer_comes(0.1)
                graph.replay()
    rank.resolve()
    assert rank.unknown_steps() == [1]


def test_replay_between_steps(rank: LoneRank) -> None:
    """Waits in a graph that is replayed between two steps, as by an evaluation, lie in neither of them."""
    graph = captured_collective(rank)
    rank.step(0.010)
    rank.host.spend(0.001)
    rank.peer_comes(0.0)
    graph.replay()
    rank.host.spend(0.001)
    rank.step(0.010)
    rank.resolve()
    assert rank.unknown_steps() == []


def test_replay_after_the_wait_for_a_batch(rank: LoneRank) -> None:
    """A step begins with the wait for its batch, so a graph that is replayed before `step` is called belongs
    to it. One that is replayed after a step's end belongs to none, also if that end is given later."""
    graph = captured_collective(rank)
    for _ in rank.run.batches([1]):
        rank.peer_comes(0.0)
        graph.replay()
        rank.host.spend(0.001)
        rank.run._steps.begin()
        rank.compute(0.010)
        with rank.run.phase("forward"):
            rank.compute(0.010)
    rank.run._steps.end()
    rank.run._steps.begin()
    with rank.run.phase("forward"):
        rank.compute(0.010)
    ended = rank.host.now
    rank.host.spend(0.001)
    rank.peer_comes(0.0)
    graph.replay()
    rank.run._steps.end(at=ended)
    rank.resolve()
    assert rank.unknown_steps() == [0]


def test_capture_that_nobody_ends(rank: LoneRank) -> None:
    """A capture that is over without `capture_end` counts no longer once a step has ended: the next steps are
    timed, and the recorder may be asked. One that goes on counts, on whatever stream."""
    graph, side = rank.machine.torch.cuda.CUDAGraph(), rank.machine.stream()
    with rank.machine.on(side):
        graph.capture_begin()
    rank.idle_step()
    assert rank.writer.integers[Now.CAPTURING] == 1
    rank.machine._capture = None  # as CUDA does where the stream is destroyed
    rank.idle_step()
    assert rank.writer.integers[Now.CAPTURING] == 0
    rank.step(0.010)
    rank.resolve()
    assert 2 in [each.payload[0] for each in rank.records(RecordKind.DEVICE_STEP)]
    assert rank.errors() == 0


def test_second_begin_of_a_capture(rank: LoneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """If CUDA refuses to begin a capture again, the first one goes on."""
    cuda = rank.machine.torch.cuda
    rank.gpu.captures.remove()
    begin = cuda.CUDAGraph.capture_begin

    def refuses(graph: Any) -> None:
        if rank.machine._capture is not None:
            raise RuntimeError("CUDA error: operation not permitted")
        begin(graph)

    monkeypatch.setattr(cuda.CUDAGraph, "capture_begin", refuses)
    captures = Captures(rank.writer, rank.machine.torch, lambda: None)
    graph = cuda.CUDAGraph()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="not permitted"):
        graph.capture_begin()
    assert captures.going_on()
    graph.capture_end()
    assert not captures.going_on()


@pytest.mark.parametrize("missing", ["capture_begin", "capture_end", "replay"])
def test_torch_without_a_method_of_graphs(tmp_path: Path, missing: str) -> None:
    """Its graphs work as before, and no event is queried during a capture of the training thread."""
    rank = LoneRank(tmp_path, without=missing)
    assert rank.gpu.captures.partly_visible
    graph = rank.machine.torch.cuda.CUDAGraph()
    rank.step(0.010)
    with rank.machine.capturing():
        for _ in range(2):
            rank.forward(0.010)
    for name in {"capture_begin", "capture_end", "replay"} - {missing}:
        getattr(graph, name)()
    assert rank.errors() == 0


def test_methods_of_the_installed_torch() -> None:
    """It has the methods that show captures, replays and events, so nothing is said to be invisible."""
    cuda: Any = pytest.importorskip("torch").cuda
    graph, event = cuda.CUDAGraph, cuda.Event
    assert all(
        map(callable, (graph.capture_begin, graph.capture_end, graph.replay, event.record, event.wait))
    )


def test_interrupted_capture(rank: LoneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a capture waits for a question to be answered: none is under way then."""
    monkeypatch.setattr(rank.writer, "wait_for_questions", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        rank.machine.torch.cuda.CUDAGraph().capture_begin()
    assert rank.writer.integers[Now.CAPTURING] == 0
    assert not rank.gpu.captures.going_on()
