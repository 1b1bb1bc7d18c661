"""The hook at the dispatcher: what it sees, what it leaves alone, and what its own failures cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.collectives import CollectiveHook, call
from rankwatch.collectives.groups import Group
from rankwatch.collectives.operators import OPERATIONS, Operator
from support.agent.process import until
from support.jobs.gloo import Recording, gloo
from support.processes.lines import lines_run
from support.training.blackbox import Read, of_kind

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


@pytest.fixture
def world() -> Iterator[Any]:
    with gloo() as group:
        yield group


@pytest.fixture
def hook(recording: Recording, world: Any) -> Iterator[CollectiveHook]:
    installed = CollectiveHook(recording.writer, recording.failures, None)
    yield installed
    installed.remove()


def records(recording: Recording, count: int) -> list[Read]:
    """The records of collectives, once there are as many."""
    until(lambda: len(of_kind(recording.writer.path, RecordKind.COLLECTIVE)) >= count, "the records")
    return of_kind(recording.writer.path, RecordKind.COLLECTIVE)


def test_every_operator_of_this_torch_that_takes_a_group_is_known() -> None:
    """A new collective of PyTorch's must not go unseen."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")]
    with_group = {
        name.removeprefix("c10d::")
        for name in names
        if "ProcessGroup" in str(getattr(torch.ops.c10d, name.removeprefix("c10d::")).default._schema)
    }
    assert with_group
    assert with_group <= OPERATIONS.keys()


def test_collectives_are_seen_in_inference_mode_and_under_a_dispatch_mode(
    recording: Recording, hook: CollectiveHook
) -> None:
    """Each once."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, operator: Any, types: Any, arguments: Any = (), named: Any = None
        ) -> Any:
            return operator(*arguments, **(named or {}))

    with torch.inference_mode():
        dist.all_reduce(torch.ones(3))
    with Mode():
        dist.all_reduce(torch.ones(5))
    dist.all_reduce(torch.ones(7, requires_grad=True).detach())
    sizes = [each.payload[0] for each in records(recording, 3)]
    assert sizes == [12, 20, 28]


def test_what_does_not_travel_is_not_recorded(recording: Recording, hook: CollectiveHook) -> None:
    """Fake tensors, and such without memory."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta"):
        pytest.skip(f"torch {torch.__version__} has no collectives of tensors without memory")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2, device="meta"))
    dist.all_reduce(torch.ones(4))
    (only,) = records(recording, 1)
    assert only.payload[:2] == (16, 0)
    assert recording.groups[0].enqueued == 1
    assert recording.errors == 0


def test_a_refused_collective_raises_as_it_would_have(recording: Recording, hook: CollectiveHook) -> None:
    """It leaves no record, no number and nothing under way."""
    with pytest.raises((RuntimeError, ValueError)):
        dist.group.WORLD.allreduce([torch.ones(1), torch.ones(2)])
    (group,) = recording.groups
    assert (group.enqueued, group.oldest) == (0, 0.0)
    dist.barrier()
    (only,) = records(recording, 1)
    assert (only.name, only.payload[1]) == ("barrier", 0)


@pytest.mark.parametrize(
    ("part", "what"), [(Operator, "tensor"), (Operator, "input_bytes"), (Group, "collective_in_flight")]
)
def test_a_failure_before_the_collective_is_counted_and_the_collective_runs(
    recording: Recording, hook: CollectiveHook, monkeypatch: pytest.MonkeyPatch, part: type, what: str
) -> None:
    """Whatever part of ours fails."""

    def fail(*_: Any) -> Any:
        raise ArithmeticError(what)

    monkeypatch.setattr(part, what, fail)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0, 1.0]
    assert recording.errors == 1


def test_a_failure_behind_the_collective_is_counted_too(
    recording: Recording, hook: CollectiveHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the thread of the backend, where the collective completes; and where its wait ends."""

    def fail(*_: Any) -> Any:
        raise ArithmeticError

    monkeypatch.setattr(call, "_failed", fail)
    dist.all_reduce(torch.ones(2))
    until(lambda: recording.errors == 1, "the failure to be counted")
    monkeypatch.setattr(recording.writer, "collective", fail)
    dist.group.WORLD._reduce_scatter_base(torch.ones(1), torch.ones(1)).wait()
    assert recording.errors == 2
    until(lambda: recording.groups[0].oldest == 0.0, "nothing is shown as under way")


@pytest.mark.parametrize("part", ["_work_of", "_waiting.follow"])
def test_a_collective_that_we_fail_to_follow_does_not_look_hung(
    recording: Recording, hook: CollectiveHook, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """It runs, and the failure counts."""
    owner, _, name = f"hook.{part}".rpartition(".")
    monkeypatch.setattr({"hook": hook, "hook._waiting": hook._waiting}[owner], name, None)
    tensor = torch.ones(2)
    dist.group.WORLD._reduce_scatter_base(torch.ones(1), torch.ones(1)).wait()
    dist.all_reduce(tensor, async_op=True).wait()
    assert tensor.tolist() == [1.0, 1.0]
    assert recording.errors == 2
    assert recording.groups[0].oldest == 0.0


def test_the_wait_for_an_asynchronous_collective_is_told_where_it_comes_before_the_end(
    recording: Recording, hook: CollectiveHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the work or of the output. Here the future is late, and finds the record written."""
    late: list[Any] = []
    complete = hook._complete
    monkeypatch.setattr(hook, "_complete", lambda *ended: late.append(ended))
    name = dist.group.WORLD.group_name
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", name))
    until(lambda: len(late) == 2, "the futures")
    for ended in late:
        complete(*ended)
    found = records(recording, 2)
    assert [each.payload[0] for each in found] == [4, 8]
    assert all(each.start < each.payload[4] < each.end for each in found)
    assert (recording.groups[0].oldest, recording.errors) == (0.0, 0)


def test_on_a_gpu_the_arrival_and_the_tables_are_noted(recording: Recording, world: Any) -> None:
    """No record: when it completes nobody sees. An arrival that fails costs only itself."""
    arrivals: list[float] = []

    def arrive() -> None:
        arrivals.append(time.monotonic())
        raise RuntimeError("no event")

    class OnGpu:
        is_cpu, is_cuda, is_meta, is_sparse, nbytes = False, True, False, False, 8

    hook = CollectiveHook(recording.writer, recording.failures, arrive)
    try:
        number = recording.writer.name_number("all_reduce")
        operator = Operator(["tensors", "process_group"], number, point_to_point=False)
        for _ in range(2):
            assert hook._begin(operator, ([OnGpu()], world.boxed())) is None
        send = Operator(
            ["tensors", "process_group"], recording.writer.name_number("send"), point_to_point=True
        )
        assert hook._begin(send, ([OnGpu()], world.boxed())) is None
    finally:
        hook.remove()
    (group,) = recording.groups
    assert (group.name, group.enqueued, group.oldest, group.operation) == ("default_pg", 2, 0.0, "send")
    assert (len(arrivals), recording.errors) == (3, 3)
    assert of_kind(recording.writer.path, RecordKind.COLLECTIVE) == []


def test_a_collective_that_nobody_waits_for_costs_the_training_thread_little(
    recording: Recording, hook: CollectiveHook
) -> None:
    """DDP issues such: 93 lines of ours each, with torch 2.13; the least, as some complete right here."""
    large = torch.ones(1 << 20)
    until(lambda: lines_run(lambda: dist.group.WORLD.allreduce([large])) <= 96, "one that costs so little")
    until(lambda: recording.groups[0].oldest == 0.0, "their ends")


def test_a_hook_that_is_taken_out_sees_nothing_more(recording: Recording, world: Any) -> None:
    """Nor does it cost anything."""
    hook = CollectiveHook(recording.writer, recording.failures, None)
    dist.all_reduce(torch.ones(1))
    hook.remove()
    dist.all_reduce(torch.ones(1))
    assert len(records(recording, 1)) == 1
    assert recording.groups[0].enqueued == 1


def test_a_forked_child_leaves_the_groups_of_the_rank_alone(
    recording: Recording, hook: CollectiveHook
) -> None:
    """What was under way in the parent is not under way in the child."""
    dist.all_reduce(torch.ones(1))
    until(lambda: recording.groups[0].oldest == 0.0, "the end of what the parent had under way")
    group = hook._groups.of(dist.group.WORLD)
    group.in_flight("parent's", 5.0)
    recording.writer.detach()
    hook.forget()
    group.in_flight("child's", 6.0)
    assert recording.groups[0].oldest == 5.0
    assert recording.writer.floats[384] == 6.0
