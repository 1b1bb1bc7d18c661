"""Phases on the clock of a simulated GPU."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from rankwatch import hooks
from rankwatch.automatic.phases import TimedPhase
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.device.parts import MOST_EVERY, WaitKey
from rankwatch.device.timeline import MOST_MARKS, MOST_STEPS
from support.device.lone import PAIR, LoneRank, near
from support.device.machine import EventBase, Operation

KEY = WaitKey(1, 1, 0)


def test_phase(rank: LoneRank) -> None:
    """A phase is recorded after a later step, once the GPU has passed its end, with its own step's number."""
    rank.forward(0.030)
    assert rank.phases() == []
    rank.resolve()
    assert rank.phases() == [("forward", near(0.030), 0)]


def test_device_without_a_stream(rank: LoneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that answers no more, as after an error of CUDA, ends the timing and not the training."""

    rank.forward(0.030)
    fails = Mock(side_effect=RuntimeError("CUDA error: device-side assert triggered"))
    monkeypatch.setattr(rank.run.device._shown, "follow", fails)  # type: ignore[union-attr]
    rank.forward(0.030)
    rank.forward(0.030)
    assert rank.run.steps_completed == 3
    assert rank.errors() == 1


def test_nested_phases(rank: LoneRank) -> None:
    """The time of an inner phase does not count for the outer one."""
    with rank.run.step(), rank.run.phase("optimizer"):
        with rank.run.phase("forward"):
            rank.compute(0.010)
        with rank.run.phase("backward"):
            rank.compute(0.020)
        rank.compute(0.005)
    rank.resolve()
    assert {name: own for name, own, _ in rank.phases()} == {
        "optimizer": near(0.005),
        "forward": near(0.010),
        "backward": near(0.020),
    }


def test_idle_device(rank: LoneRank) -> None:
    """Work of the host counts only as far as the device is idle for it."""
    with rank.run.step():
        with rank.run.phase("forward"):
            rank.compute(0.030)
            rank.host.spend(0.020)
        rank.host.spend(0.025)
        with rank.run.phase("backward"):
            rank.compute(0.010)
    rank.resolve()
    step = rank.records(RecordKind.DEVICE_STEP)[0]
    assert step.end - step.start == near(0.055)
    assert rank.phases()[0][1] == near(0.030)


def test_reused_events(rank: LoneRank) -> None:
    """A long run creates no new events."""
    for _ in range(200):
        rank.forward(0.001)
        rank.device_finishes()
    assert rank.machine.events_made <= 10


@pytest.mark.parametrize(("steps", "phases"), [(3 * MOST_STEPS, 10), (1, MOST_MARKS)])
def test_gpu_that_never_finishes(rank: LoneRank, steps: int, phases: int) -> None:
    """Marks that the GPU does not pass, or that no step ends, are dropped and counted."""
    rank.machine.current().enqueue(Operation(0.0, arrivals=2))
    for _ in range(steps):
        with rank.run.step():
            for _ in range(phases):
                with rank.run.phase("forward"):
                    pass
    timeline = rank.timeline
    assert len(timeline._marks) <= MOST_MARKS
    assert len(timeline._steps) <= MOST_STEPS
    dropped = rank.writer.integers[Now.DEVICE_MARKS_DROPPED]
    assert dropped > 0
    assert rank.machine.events_made == dropped + len(timeline._marks)


def test_steps_after_dropped_marks(rank: LoneRank) -> None:
    """The step whose marks were dropped is not known; the following ones are."""
    with rank.run.step():
        for _ in range(MOST_MARKS + 10):
            with rank.run.phase("forward"):
                pass
    rank.forward(0.010)
    rank.resolve()
    assert rank.unknown_steps() == [0]
    assert rank.phases()[-1] == ("forward", near(0.010), 1)


def test_refused_events(rank: LoneRank) -> None:
    """CUDA refuses events after an error on the GPU. The refusal is counted, and only the trainer's own
    exception propagates."""
    rank.machine.broken = True
    with pytest.raises(KeyError), rank.run.step(), rank.run.phase("forward"):
        raise KeyError
    assert rank.errors() == 4
    assert len(rank.records(RecordKind.STEP)) == 1
    rank.machine.broken = False
    rank.forward(0.010)
    rank.resolve()
    assert rank.phases() == [("forward", near(0.010), 1)]


def test_failing_query(rank: LoneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that fails is counted, and must not block the steps behind it."""

    def fails_once(_: EventBase) -> bool:
        monkeypatch.undo()
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(EventBase, "query", fails_once)
    for _ in range(3):
        rank.forward(0.001)
    rank.resolve()
    assert rank.errors() == 1
    assert [step for *_, step in rank.phases()] == [0, 1, 2]


def test_foreign_thread(rank: LoneRank) -> None:
    """Another thread that waits, as for a checkpoint, is not the training thread."""
    with rank.run.step(), ThreadPoolExecutor(1) as other:
        assert not other.submit(rank.timeline.wait_began, KEY).result()
        assert rank.timeline.wait_began(KEY)
        rank.timeline.wait_ended()


def test_moments(rank: LoneRank) -> None:
    """Records lie where the device was on the host's clock, although the host ran far ahead."""
    began = rank.host.now
    for _ in range(10):
        rank.forward(0.030)
    rank.resolve()
    steps = rank.records(RecordKind.DEVICE_STEP)[:10]
    assert [each.payload[0] for each in steps] == list(range(10))
    for number, each in enumerate(steps):
        assert each.start == near(began + 0.030 * number)
        assert each.end == near(began + 0.030 * (number + 1))


def test_moments_after_pause(rank: LoneRank) -> None:
    """No step lies before its host enqueued it, or after it was seen to be over."""
    for _ in range(5):
        enqueued = rank.host.now
        rank.forward(0.030)
        rank.host.spend(0.5)
        rank.idle_step()
        last = rank.records(RecordKind.DEVICE_STEP)[-1]
        assert enqueued <= last.start <= last.end <= rank.host.now
        rank.device_finishes()


def test_device_shown_on_side_stream(tmp_path: Path) -> None:
    """The compute stream is the current one where a step begins, and not the side stream on which the first
    collective runs, as that of FSDP."""
    rank = LoneRank(tmp_path, shown=False)
    side = rank.machine.stream()
    rank.peer_comes(0.0)
    for number in range(3):
        rank.wait_for_data()
        with rank.run.step(), rank.run.phase("forward"):
            rank.compute(0.010)
            if not number:
                with rank.machine.on(side):
                    rank.collective("all_gather", PAIR, 0.0)
    rank.resolve()
    forward = [each[1:] for each in rank.phases() if each[0] == "forward"]
    assert forward == [(near(0.010), step) for step in (1, 2)]


def test_another_compute_stream(rank: LoneRank) -> None:
    """Training that goes on on another stream, as in `with torch.cuda.stream(...)`, is followed there."""
    for _ in range(3):
        rank.forward(0.010)
    with rank.machine.on(rank.machine.stream()):
        for _ in range(3):
            rank.wait_for_data()
            rank.forward(0.030)
    rank.resolve()
    own = [own for name, own, _ in rank.phases() if name == "forward"]
    assert own == [near(seconds) for seconds in (0.010, 0.010, 0.010, 0.030, 0.030, 0.030)]


def test_torch_that_was_built_for_gpus_where_there_is_none(tmp_path: Path) -> None:
    """Steps and waits on the CPU do not reach the driver: it may be missing, and forks after it fail."""
    rank = LoneRank(tmp_path, shown=False)
    rank.machine.in_use = False
    with rank.run.step():
        rank.waits.begins()
    rank.run.finish()
    assert len(rank.records(RecordKind.STEP)) == 1
    assert rank.errors() == 0


def test_forked_child(rank: LoneRank) -> None:
    """A child that is forked calls nothing of CUDA, where its parent has initialised it."""
    with rank.run.step(), rank.run.phase("forward"):
        rank.compute(0.010)
        rank.run.silence()
        rank.timeline.forget()  # as `rankwatch.hooks` has it done in each child
        rank.machine.in_use = False
        made, rank.machine.broken = rank.machine.events_made, True
        with rank.run.phase("backward"):
            rank.waits.begins()
    with rank.run.step(), rank.run.phase("forward"):
        pass
    assert rank.machine.events_made == made
    assert rank.errors() == 0


def test_abandoned_step(rank: LoneRank) -> None:
    """What comes after a step that nobody ends, such as an evaluation of hours, keeps few events."""
    rank.forward(0.010)
    rank.device_finishes()
    rank.run.begin_step()
    rank.run._steps.abandon()
    for _ in range(MOST_MARKS // 2):
        with rank.run.phase("evaluation"):
            rank.compute(0.001)
    assert rank.machine.events_made < MOST_MARKS // 4
    rank.forward(0.010)
    rank.resolve()
    assert rank.writer.integers[Now.DEVICE_MARKS_DROPPED] == 0
    forward = [each[1:] for each in rank.phases() if each[0] == "forward"]
    assert forward == [(near(0.010), 0), (near(0.010), 1)]


def test_long_evaluation_while_the_device_is_behind(rank: LoneRank) -> None:
    """The step before it is recorded although the device had not finished it when it ended."""
    rank.forward(0.010)
    for _ in range(MOST_MARKS):
        with rank.run.phase("evaluation"):
            rank.compute(0.0001)
            rank.host.spend(0.001)
    rank.resolve()
    assert rank.phases()[0] == ("forward", near(0.010), 0)
    assert rank.writer.integers[Now.DEVICE_MARKS_DROPPED] == 0


def test_steps_after_the_end_of_the_run(rank: LoneRank) -> None:
    """They are not timed: nobody shows their waits any more."""
    rank.forward(0.010)
    rank.device_finishes()
    rank.run.finish()
    made = rank.machine.events_made
    for _ in range(3):
        rank.step(0.010)
    rank.resolve()
    assert rank.machine.events_made == made
    assert [each.payload[0] for each in rank.records(RecordKind.DEVICE_STEP)] == [0]


def test_collectives_that_cannot_be_seen(rank: LoneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a torch of the future does not let us see collectives, waits are not taken for own work."""
    pytest.importorskip("torch")
    changed = Mock(side_effect=AttributeError("torch has changed"))
    monkeypatch.setattr("rankwatch.collectives.CollectiveHook", changed)
    hooks._install(rank.run, "record collectives", lambda: hooks._record_collectives(rank.run, rank.writer))
    rank.forward(0.010)
    rank.resolve()
    assert 0 in rank.unknown_steps()
    assert Reader(rank.writer.path).now().capabilities[Capability.WAITS] is Unseen.HOOK_FAILED


def test_step_that_is_dropped_as_it_ends(rank: LoneRank) -> None:
    """Nobody waits for its time on the device."""
    rank.machine.current().enqueue(Operation(0.0, arrivals=2))
    for _ in range(MOST_STEPS + 1):
        rank.idle_step()
    flags = [each.payload[1] for each in rank.records(RecordKind.STEP)]
    assert flags == [layout.STEP_ON_DEVICE] * MOST_STEPS + [0]


def short_steps(
    rank: LoneRank, numbers: Iterable[int], seconds: float = 0.0005, *, finishes: bool = True
) -> None:
    """Steps of a wait for data and of four phases, of which the last meets the peer. finishes: the device has
    finished each before the next one."""
    for number in numbers:
        rank.wait_for_data(seconds / 2)
        with rank.run.step(number):
            for name in ("forward", "backward", "optimizer"):
                with rank.run.phase(name):
                    rank.compute(seconds)
            with rank.run.phase("communication"):
                rank.peer_comes(0.0)
                rank.collective("all_reduce", PAIR, 0.0)
        if finishes:
            rank.device_finishes()


def timed(rank: LoneRank) -> list[int]:
    """Numbers of the steps whose phases were timed."""
    return [number for name, _, number in rank.phases() if name == "forward"]


def test_short_steps(rank: LoneRank) -> None:
    """Of these only each n-th has the events of its phases, but all have their waits and their wait for data:
    own time is known of each, and events take half a percent of the host's time."""
    short_steps(rank, range(8))
    before = rank.machine.events_recorded
    short_steps(rank, range(8, 104))
    recorded = rank.machine.events_recorded - before
    assert timed(rank)[:2] == [0, 1], "it is chosen once the first is resolved"
    every = timed(rank)[-1] - timed(rank)[-2]
    assert every == 8
    assert {number % every for number in timed(rank)[4:]} == {0}
    assert recorded <= 96 * 6 + 96 / every * 4
    assert [number for name, _, number in rank.phases() if name == "data_wait"] == list(range(1, 103))
    assert [number for _, _, number in rank.recorded_waits()] == list(range(103))
    assert rank.unknown_steps() == []


def test_steps_that_get_long(rank: LoneRank) -> None:
    """The phases of long steps are all timed, as soon as one is seen to be long, which is two steps later."""
    short_steps(rank, range(41))
    short_steps(rank, range(41, 80), seconds=0.1)
    assert [each for each in timed(rank) if each > 40] == list(range(44, 79))


def test_empty_steps_before_long_ones(rank: LoneRank) -> None:
    """Steps without phases do not keep those of the following ones from being timed."""
    for _ in range(3):
        rank.idle_step()
    short_steps(rank, range(3, 6), seconds=0.1)
    rank.resolve()
    assert timed(rank) == [3, 4, 5]


@pytest.mark.parametrize("stride", [1, 10, MOST_EVERY])
def test_numbers_of_short_steps(rank: LoneRank, stride: int) -> None:
    """Some count in batches. Some begin again with each epoch, of fewer steps than lie between two."""
    short_steps(rank, range(0, 320 * stride, stride), seconds=2e-5)
    before = len(timed(rank))
    assert 320 / MOST_EVERY <= before <= 3 + 320 / MOST_EVERY
    for _ in range(128):
        short_steps(rank, range(1, 4), seconds=2e-5)
    assert len(timed(rank)) - before == pytest.approx(384 / MOST_EVERY, abs=1)


def test_short_steps_of_short_epochs(tmp_path: Path) -> None:
    """All ranks time the same steps, however late each GPU shows that they are short."""
    timed_by_rank = []
    for behind in (0, 5):
        rank = LoneRank(tmp_path / str(behind))
        for step in range(10 * MOST_EVERY):
            short_steps(rank, [step % 10], seconds=2e-5, finishes=step >= behind)
        found = rank.records(RecordKind.DEVICE_STEP)
        timed_by_rank.append(
            [at for at, each in enumerate(found) if not int(each.payload[2]) & layout.UNTIMED_PHASES]
        )
    first, second = ([each for each in steps if each > 10] for steps in timed_by_rank)
    assert first == second == list(range(MOST_EVERY, 10 * MOST_EVERY - 1, MOST_EVERY))


def test_short_steps_whose_end_is_seen_later(rank: LoneRank) -> None:
    """Such as those of a training without a change of its code: they have the time up to the end of the
    optimizer, whether their phases are timed or not."""
    steps, optimizer = rank.run._steps, TimedPhase(rank.run, "optimizer")
    for _ in range(2 * MOST_EVERY):
        steps.begin()
        for name in ("forward", "backward"):
            with rank.run.phase(name):
                rank.compute(5e-4)
        rank.peer_comes(0.0)
        rank.collective("all_reduce", PAIR, 0.0)
        optimizer.begin(rank.host.now)
        rank.compute(5e-4)
        ended = rank.host.now
        optimizer.end(ended)
        steps.show_ended(ended)
        rank.compute(5e-4)
        steps.end(at=ended)
        rank.device_finishes()
    found = rank.records(RecordKind.DEVICE_STEP)
    assert len(found) == 2 * MOST_EVERY - 1
    assert any(int(each.payload[2]) & layout.UNTIMED_PHASES for each in found)
    assert [each.end - each.start for each in found] == [near(1.5e-3)] * len(found)


def test_idle_compute_stream_after_a_busy_one(rank: LoneRank) -> None:
    """The new stream does not wait for the old one, so the step has only the time of the new one."""
    rank.forward(0.100)
    rank.wait_for_data()
    with rank.machine.on(rank.machine.stream()), rank.run.step(), rank.run.phase("forward"):
        rank.compute(0.010)
    rank.resolve()
    seconds = [each.end - each.start for each in rank.records(RecordKind.DEVICE_STEP)]
    assert seconds[:2] == [near(0.100), near(0.010)]
