"""`wait_tensor` while the hook is installed: it tells when a functional collective blocked the thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.collectives import CollectiveHook, tensor_waits
from rankwatch.collectives.call import Call
from rankwatch.collectives.groups import Group
from rankwatch.collectives.operators import Operator
from rankwatch.collectives.tensor_waits import TensorWaits
from support.agent.process import until
from support.jobs.gloo import Recording, gloo
from support.training.blackbox import Read, of_kind

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
c10d: Any = pytest.importorskip("torch._C._distributed_c10d")

wait_tensor = torch.ops._c10d_functional.wait_tensor


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


@pytest.fixture
def hook(recording: Recording) -> Iterator[CollectiveHook]:
    with gloo():
        installed = CollectiveHook(recording.writer, recording.failures, None)
        yield installed
        installed.remove()


@pytest.fixture
def waits(recording: Recording) -> Iterator[TensorWaits]:
    alone = TensorWaits(recording.failures)
    yield alone
    alone.remove()


class Awaited(dist.Work):  # type: ignore[misc,name-defined]
    """The work that belongs to a tensor; runs `during` while a thread waits for it."""

    def __init__(self, tensor: Any, during: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.during = during
        c10d._register_work(tensor, self)

    def wait(self, *_: Any) -> bool:
        self.during()
        return True


def call(recording: Recording, tensors: Sequence[Any]) -> Call:
    """A collective on these tensors that was enqueued just now."""
    writer = recording.writer
    operator = Operator(
        ["tensors", "process_group", "async_op"], writer.name_number("all_reduce"),
        point_to_point=False, functional=True,
    )  # fmt: skip
    group = Group(writer, writer.name_number("default_pg"), None)
    return Call(writer, group, operator, (list(tensors), None), time.monotonic())


def records(recording: Recording) -> list[Read]:
    return of_kind(recording.writer.path, RecordKind.COLLECTIVE)


def flags(record: Read) -> int:
    return int(record.payload[3])


def waited(record: Read) -> float:
    return record.payload[4]


def reduce_scatter(size: int) -> Any:
    """A functional one; its output must be waited for."""
    group = dist.group.WORLD.group_name
    return torch.ops._c10d_functional.reduce_scatter_tensor(torch.ones(size), "sum", 1, group)


def test_reduce_scatters_are_timed_by_the_waits_for_their_outputs(
    recording: Recording, hook: CollectiveHook
) -> None:
    """Several at once, in any order; a view of an output will do, and a second wait adds nothing."""
    outputs = [reduce_scatter(size) for size in (1, 2, 3)]
    for each in reversed(outputs):
        wait_tensor(each.view(-1)[:1])
        wait_tensor(each)
    found = records(recording)
    assert [each.payload[:2] for each in found] == [(12, 2), (8, 1), (4, 0)]
    for each in found:
        assert each.start < waited(each) < each.end
        assert not flags(each) & (layout.UNTIMED | layout.FAILED)
    assert recording.errors == 0
    assert hook._tensor_waits._awaited == {}


def test_a_reduce_scatter_that_nobody_waits_for_has_no_duration(
    recording: Recording, hook: CollectiveHook
) -> None:
    """It counts once its output is freed, or the hook is taken out: no thread is seen to wait after that."""
    group = dist.group.WORLD
    output = torch.ones(1)
    work = group._reduce_scatter_base(output, torch.ones(1))
    following = group._reduce_scatter_base(torch.ones(1), torch.ones(1))
    del work
    assert records(recording) == []
    del output
    following.wait()
    hook.remove()
    first, second = sorted(records(recording), key=lambda each: each.payload[1])
    assert flags(first) & layout.UNTIMED
    assert (first.end, waited(first)) == (first.start, 0.0)
    assert not flags(second) & layout.UNTIMED


def test_the_wait_counts_from_its_begin_whoever_sees_the_end_first(
    recording: Recording, waits: TensorWaits
) -> None:
    """The future on its thread, or the thread that waits: there is one record."""
    for first in ("future", "wait"):
        tensor = torch.ones(2)
        waited_for = call(recording, [tensor])
        waits.expect(waited_for, [tensor])
        complete = waited_for.complete
        Awaited(tensor, (lambda done=complete: done(None)) if first == "future" else lambda: None)
        began = time.monotonic()
        wait_tensor(tensor)
        complete(None)
        found = records(recording)[-1]
        assert waited_for.enqueued == found.start < began < waited(found) < found.end, first
    assert len(records(recording)) == 2
    assert recording.errors == 0


def test_a_wait_for_what_is_complete_blocks_nothing(recording: Recording, waits: TensorWaits) -> None:
    """Its record is written, without a wait."""
    tensor = torch.ones(2)
    done = call(recording, [tensor])
    waits.expect(done, [tensor])
    done.complete(None)
    wait_tensor(tensor)
    (only,) = records(recording)
    assert waited(only) == 0.0


def test_a_wait_that_fails_raises_as_it_would_have(recording: Recording, waits: TensorWaits) -> None:
    """The collective is told as failed; where it has a future, that is to tell."""

    def fail() -> None:
        raise RuntimeError("connection closed by peer")

    for by_future in (False, True):
        tensor = torch.ones(2)
        failing = call(recording, [tensor])
        if not by_future:
            failing.wait_only()
        waits.expect(failing, [tensor])
        Awaited(tensor, fail)
        with pytest.raises(RuntimeError, match="closed by peer"):
            wait_tensor(tensor)
        (only,) = records(recording)
        assert flags(only) & layout.FAILED


@pytest.mark.parametrize("what", ["wait_began", "wait_ended"])
def test_our_own_failures_are_counted_and_the_wait_goes_on(
    recording: Recording, hook: CollectiveHook, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """At its begin and at its end."""

    def fail(*_: Any, **__: Any) -> Any:
        raise ArithmeticError(what)

    monkeypatch.setattr(Call, what, fail)
    output = reduce_scatter(2)
    assert wait_tensor(output).tolist() == [1.0, 1.0]
    assert recording.errors == 1


def test_what_may_be_waited_for_is_bounded(
    recording: Recording, waits: TensorWaits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound no wait is seen, and the collective is recorded as ever."""
    monkeypatch.setattr(tensor_waits, "MOST_AWAITED", 2)
    tensors = [torch.ones(1) for _ in range(3)]
    calls = [call(recording, [each]) for each in tensors]
    for each, tensor in zip(calls, tensors, strict=True):
        waits.expect(each, [tensor])
    assert list(waits._unresolved) == calls[:2]
    for each in calls:
        each.complete(None)
    assert len(records(recording)) == 3
    assert waits._unresolved == {}


def test_of_two_that_write_to_one_tensor_the_later_is_waited_for(
    recording: Recording, waits: TensorWaits
) -> None:
    """Whichever way they will be told to end; storages are not asked for before a thread waits."""
    for by_future in (False, True):
        tensor, other = torch.ones(2), torch.ones(2)
        earlier, later, last = (call(recording, [tensor]) for _ in range(3))
        waits.expect(earlier, [tensor])
        waits.expect(last, [other])
        if not by_future:
            later.wait_only()
        waits.expect(later, [tensor])
        assert (waits._awaited == {}) == by_future
        Awaited(tensor)
        wait_tensor(tensor)
        for each in (earlier, later, last):
            each.complete(None)
        mine = sorted(records(recording)[-3:], key=lambda each: each.start)
        assert [waited(each) > 0.0 for each in mine] == [False, True, False]
    assert (waits._awaited, waits._unresolved, recording.errors) == ({}, {}, 0)


def test_one_that_ends_while_it_is_entered_leaves_nothing_behind(recording: Recording) -> None:
    """Its future ends on another thread, between any two steps of this one."""
    ended = call(recording, [torch.ones(1)])

    class EndsMeanwhile(dict[int, Call]):
        def get(self, *key: Any) -> Any:
            ended.complete(None)
            return super().get(*key)

    awaited = EndsMeanwhile()
    ended.expect(awaited, [1, 2])
    assert awaited == {}
    assert len(records(recording)) == 1


def test_nothing_is_followed_after_the_hook_is_taken_out_or_in_a_forked_child(
    recording: Recording, hook: CollectiveHook
) -> None:
    """Waits go on as before."""
    output = reduce_scatter(2)
    hook.forget()
    assert wait_tensor(output).tolist() == [1.0, 1.0]
    assert records(recording) == []
    hook.remove()
    assert wait_tensor(reduce_scatter(3)).tolist() == [1.0, 1.0, 1.0]
    assert records(recording) == []
    assert recording.errors == 0


def test_a_collective_awaited_by_its_future_leaves_nothing_behind(
    recording: Recording, hook: CollectiveHook
) -> None:
    """Sparse tensors, which have no storage, are no failure."""
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # torch 2.11 warns of an undecided check
        sparse = torch.sparse_coo_tensor([[0, 2]], torch.ones(2), (4,))
        dist.all_reduce(sparse, async_op=True).wait()
        until(lambda: len(records(recording)) == 2, "the records")
    assert hook._tensor_waits._awaited == {}
    assert recording.errors == 0
