"""The hook at the dispatcher: what it records, what it ignores, and the effect of its own failures."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.collectives import CollectiveHook, call
from rankwatch.collectives.call import OPERATIONS, Operator
from rankwatch.collectives.groups import Group
from rankwatch.device.cuda import Gpu
from rankwatch.device.timeline import DeviceTimeline
from support.agent.process import until
from support.jobs.gloo import Recording
from support.processes.lines import lines_run
from support.training.blackbox import Read, of_kind

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")


def records(recording: Recording, count: int) -> list[Read]:
    """The records of collectives, once there are at least `count`."""
    until(lambda: len(of_kind(recording.writer.path, RecordKind.COLLECTIVE)) >= count, "the records")
    return of_kind(recording.writer.path, RecordKind.COLLECTIVE)


def test_known_operators() -> None:
    """Every operator of this torch that takes a group is known, so that a new collective is not missed."""
    names = [name.partition("::") for name in torch._C._dispatch_get_all_op_names()]
    with_group = {
        name
        for library, _, name in names
        if library == "c10d" and "ProcessGroup" in str(getattr(torch.ops.c10d, name).default._schema)
    }
    assert with_group
    assert with_group <= OPERATIONS.keys()


def test_modes_of_torch(recording: Recording, hook: CollectiveHook) -> None:
    """A collective is recorded once in inference mode, under a dispatch mode, and without gradients."""
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


def test_tensors_without_data(recording: Recording, hook: CollectiveHook) -> None:
    """Collectives of fake tensors and meta tensors send nothing and are not recorded."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta"):
        pytest.skip(f"torch {torch.__version__} has no collectives of meta tensors")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2, device="meta"))
    dist.all_reduce(torch.ones(4))
    (only,) = records(recording, 1)
    assert only.payload[:2] == (16, 0)
    assert recording.groups[0].enqueued == 1
    assert recording.errors == 0


def test_refused_collective(recording: Recording, hook: CollectiveHook) -> None:
    """It raises as it does without the hook, and leaves no record, no number and nothing in flight."""
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
def test_own_failure_before_collective(
    recording: Recording, hook: CollectiveHook, monkeypatch: pytest.MonkeyPatch, part: type, what: str
) -> None:
    """A failure of the hook is counted, and the collective runs."""
    monkeypatch.setattr(part, what, Mock(side_effect=ArithmeticError(what)))
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0, 1.0]
    assert recording.errors == 1


def test_own_failure_after_collective(
    recording: Recording, hook: CollectiveHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted, on the backend's thread that completes the collective and at the end of a wait."""
    fail = Mock(side_effect=ArithmeticError)
    monkeypatch.setattr(call, "_failed", fail)
    dist.all_reduce(torch.ones(2))
    until(lambda: recording.errors == 1, "the failure to be counted")
    monkeypatch.setattr(recording.writer, "collective", fail)
    dist.group.WORLD._reduce_scatter_base(torch.ones(1), torch.ones(1)).wait()
    assert recording.errors == 2
    until(lambda: recording.groups[0].oldest == 0.0, "nothing is shown as in flight")


@pytest.mark.parametrize("owner, name", [("", "_work_of"), ("_work_waits", "follow")])
def test_own_failure_to_follow(
    recording: Recording, hook: CollectiveHook, monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    """The collective runs and does not look hung, and the failure is counted."""
    monkeypatch.setattr(getattr(hook, owner) if owner else hook, name, None)
    tensor = torch.ones(2)
    dist.group.WORLD._reduce_scatter_base(torch.ones(1), torch.ones(1)).wait()
    dist.all_reduce(tensor, async_op=True).wait()
    assert tensor.tolist() == [1.0, 1.0]
    assert recording.errors == 2
    assert recording.groups[0].oldest == 0.0


def test_wait_before_future(
    recording: Recording, hook: CollectiveHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a wait for the work or the output ends first, it writes the record, and the late future does not."""
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


class OnGpu:
    """A tensor of a GPU, as far as the hook looks."""

    is_cpu, is_cuda, is_meta, is_sparse, nbytes = False, True, False, False, 8
    device = SimpleNamespace(index=0)

    def untyped_storage(self) -> Any:
        return SimpleNamespace(_cdata=id(self))


class NoEvents:
    """A compute stream on which CUDA refuses every event."""

    handle = 7

    def event(self) -> None:
        raise RuntimeError("no event")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: {"is_current": True, "current": self.handle}.get(name, False)


def test_error_while_hooks_are_installed(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one hook cannot be installed, none stays."""
    wait = torch._C._distributed_c10d.Work.wait
    changed = Mock(side_effect=AttributeError("torch has changed"))
    monkeypatch.setattr("rankwatch.collectives.hook.TensorWaits", changed)
    with pytest.raises(AttributeError, match="torch has changed"):
        CollectiveHook(recording.writer, recording.failures, None)
    assert torch._C._distributed_c10d.Work.wait is wait


def test_collective_on_gpu(recording: Recording, world: Any) -> None:
    """The tables are updated, also where events are refused; that is counted. There is no record of the
    collective, because its completion is not seen."""
    stream: Any = NoEvents()
    timeline = DeviceTimeline(recording.writer, recording.failures)
    timeline.use(stream)
    timeline.step_began(0.0)
    captures: Any = SimpleNamespace(going_on=lambda: False)
    gpu = Gpu(timeline, captures, torch)
    gpu.device, gpu.stream = 0, stream
    hook = CollectiveHook(recording.writer, recording.failures, gpu)
    reduce_number, send_number = map(recording.writer.name_number, ("all_reduce", "send"))
    reduce = Operator(["tensors", "process_group", "async_op"], reduce_number, point_to_point=False)
    send = Operator(["tensors", "process_group"], send_number, point_to_point=True)
    with ExitStack() as stack:
        stack.callback(hook.remove)
        call, waits = hook._begin(reduce, ([OnGpu()], world.boxed(), False))
        assert call is None
        assert waits is not None
        waits.ends()
        for operator in (reduce, send):
            assert hook._begin(operator, ([OnGpu()], world.boxed())) == (None, None)
    (group,) = recording.groups
    assert (group.name, group.enqueued, group.oldest, group.operation) == ("default_pg", 2, 0.0, "send")
    assert recording.errors == 3
    assert of_kind(recording.writer.path, RecordKind.COLLECTIVE) == []


def test_cost_on_training_thread(recording: Recording, hook: CollectiveHook) -> None:
    """A collective that nobody waits for, as of DDP, runs 97 lines of the hook with torch 2.13. The minimum
    of several counts, because some collectives complete on this thread."""
    large = torch.ones(1 << 20)
    until(lambda: lines_run(lambda: dist.group.WORLD.allreduce([large])) <= 100, "one that costs so little")
    until(lambda: recording.groups[0].oldest == 0.0, "their ends")


def test_removed_hook(recording: Recording, world: Any) -> None:
    """It records nothing more."""
    hook = CollectiveHook(recording.writer, recording.failures, None)
    dist.all_reduce(torch.ones(1))
    hook.remove()
    dist.all_reduce(torch.ones(1))
    assert len(records(recording, 1)) == 1
    assert recording.groups[0].enqueued == 1


def test_forked_child(recording: Recording, hook: CollectiveHook) -> None:
    """It does not change the rank's tables, and the parent's collectives are not in flight in it."""
    dist.all_reduce(torch.ones(1))
    until(lambda: recording.groups[0].oldest == 0.0, "the parent has nothing in flight")
    group = hook._groups.of(dist.group.WORLD)
    group.in_flight("parent's", 5.0)
    recording.writer.detach()
    hook.forget()
    group.in_flight("child's", 6.0)
    assert recording.groups[0].oldest == 5.0
    assert recording.writer.floats[384] == 6.0
