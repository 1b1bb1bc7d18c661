"""A rank on a simulated GPU: the real run and the real hooks, called where the real ones are called.

The order of calls on streams is that of torch 2.13: `ProcessGroupNCCL.cpp` (`collective`, `syncStream`,
`WorkNCCL::wait`) and `torch/distributed/distributed_c10d.py` (`batch_isend_irecv`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.writer import Writer
from rankwatch.collectives.device_waits import DeviceWaits
from rankwatch.collectives.groups import Group, Groups
from rankwatch.collectives.host_waits import WorkWaits
from rankwatch.conventions.vocabulary import PHASES
from rankwatch.device.parts import WaitKey
from rankwatch.hooks import _watch_gpu
from rankwatch.identity import Identity
from rankwatch.members import members_text
from rankwatch.run import Run
from support.device.machine import Machine, Operation, Stream

WAKE_SECONDS = 10e-6
"""From the end of what a host waits for until it goes on."""
ENQUEUE_SECONDS = 10e-6
"""Of the host, for one operation."""
_COLLECTIVE, _COALESCED = 0, 17
"""Values of `c10d::OpType`."""


class Members(NamedTuple):
    """A process group."""

    name: str
    ranks: tuple[int, ...]


class Network:
    """Where the ranks of a job meet: each transfer is one operation of all its ranks."""

    def __init__(self) -> None:
        self._open: dict[object, tuple[Operation, int]] = {}

    def meet(self, key: object, ranks: int, seconds: float) -> Operation:
        """The transfer of this name, which the first of so many ranks creates."""
        operation, left = self._open.get(key) or (Operation(seconds, ranks), ranks)
        if left > 1:
            self._open[key] = operation, left - 1
        else:
            self._open.pop(key, None)
        return operation


class NamedGroups(Groups):
    """The groups of a rank with their rows in its black box, without torch's registry of groups."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self._of: dict[Members, Group] = {}

    def of(self, process_group: Any) -> Group:
        """As the original."""
        group = self._of.get(process_group)
        if group is None:
            members: Members = process_group
            group = self._enter(members.name, members_text(members.ranks), len(members.ranks))
            self._of[members] = group
        return group


class WorkBase:
    """`c10d.Work` of an asynchronous operation."""

    def __init__(self, rank: Rank, operation: Operation, kind: int) -> None:
        self.rank = rank
        self.operation = operation
        self._kind = kind

    def _get_op_type(self) -> int:
        return self._kind

    def block(self) -> None:
        """`WorkNCCL::synchronizeStream`, as the callers in C++ reach it: the current stream waits."""
        rank, operation = self.rank, self.operation
        rank.machine.current().follow(operation)


class Rank:
    """One rank: its process, its run, and the calls of torch that its program makes.

    pace: what the rank's own work takes, over what it should; see the attributes.
    """

    def __init__(
        self,
        number: int,
        network: Network,
        directory: Path,
        identity: Identity,
        *,
        began: float,
        seed: int = 0,
    ) -> None:
        self.number = number
        self.network = network
        self.machine = Machine(began)
        self.host = self.machine.host
        self.random = random.Random(f"{seed}-{number}")
        self.noise = 0.0
        """Standard deviation of what an operation takes, relative."""
        self.compute_factor = 1.0
        """Of the seconds of each operation on the device."""
        self.host_per_compute = 0.0
        """Seconds on the host for each second of work that it enqueues."""
        self.link_factors: dict[int, float] = {}
        """Rank -> factor of the seconds of each transfer it takes part in."""
        self.own_seconds = 0.0
        """On the device, of the rank's own operations."""
        self._nccl: dict[tuple[Members, int], Stream] = {}
        self._counts: dict[object, int] = {}
        writer = Writer(directory, identity, phases=PHASES)
        self.writer = writer
        self.groups = NamedGroups(writer)
        self.run = Run(identity, writer, PHASES, on_gpu=True, clock=self.host.clock)
        self.distributed = SimpleNamespace(
            _broadcast_coalesced=self._broadcast_coalesced, ProcessGroup=_group_class()
        )
        self.work_class: Any = type("Work", (WorkBase,), {"wait": lambda work: work.block()})
        self._hook(writer)

    def _hook(self, writer: Writer) -> None:
        """As `rankwatch.hooks` and `CollectiveHook` do."""
        run, torch = self.run, self.machine.torch
        assert run.device is not None
        self.timeline = run.device
        self.gpu = _watch_gpu(run, writer, self.timeline, torch)
        run.after_steps(self.timeline.resolve)
        broadcast = writer.name_number("broadcast")
        self.waits = DeviceWaits(self.gpu, self.groups, run._failures, broadcast, torch, self.distributed)
        self.waiting = WorkWaits(self.work_class, run._failures, self.waits)

    # -- own work ---------------------------------------------------------------------------------

    def compute(self, seconds: float) -> None:
        """Enqueue an operation on the current stream."""
        machine = self.machine
        self.host.spend(ENQUEUE_SECONDS + self.host_per_compute * seconds)
        factor = self.compute_factor * max(0.1, 1.0 + self.noise * self.random.gauss(0.0, 1.0))
        took = seconds * factor
        self.own_seconds += took
        machine.issue(lambda: machine.current().enqueue(Operation(took)))

    def wait_for_device(self, device: int | None = None) -> Iterator[Operation]:
        """`tensor.item()`, or `torch.cuda.synchronize()`."""
        yield self.machine.current(device).enqueue(Operation(0.0))

    # -- collectives ------------------------------------------------------------------------------

    def collective(
        self, name: str, members: Members, seconds: float, *, asynchronous: bool = False, output: Any = None
    ) -> Any:
        """Enqueue a collective as the kernel of `CollectiveHook` does; returns its work if asynchronous."""
        self.host.spend(ENQUEUE_SECONDS)
        key = WaitKey(self.writer.name_number(name), self.groups.of(members).number, 0)
        device = self.machine.device
        waits = self.waits.enqueues(device, key, asynchronous=asynchronous, output=output)
        try:
            return self._enqueue(name, members, seconds, asynchronous)
        finally:
            if waits:
                self.waits.ends()

    def _enqueue(self, name: str, members: Members, seconds: float, asynchronous: bool) -> Any:
        """On the current stream, or an asynchronous one on the group's own stream, which waits first."""
        machine = self.machine
        if not asynchronous:
            machine.issue(lambda: machine.current().enqueue(self._transfer(members, seconds)))
            return None
        nccl = self._after_current(members)
        return self.work_class(self, nccl.enqueue(self._transfer(members, seconds)), _COLLECTIVE)

    def _transfer(self, members: Members, seconds: float) -> Operation:
        count = self._counts[members] = self._counts.get(members, 0) + 1
        return self.network.meet((members, count), len(members.ranks), seconds * self._link(members.ranks))

    def _link(self, ranks: Sequence[int]) -> float:
        return max((self.link_factors.get(each, 1.0) for each in ranks), default=1.0)

    def _after_current(self, members: Members) -> Stream:
        """The group's own stream on the current device, which waits for the current one (`syncStream`)."""
        current = self.machine.current()
        key = members, current.device_index
        if key not in self._nccl:
            self._nccl[key] = self.machine.stream()
        self._nccl[key].follow(current.enqueue(Operation(0.0)))
        return self._nccl[key]

    def exchange(
        self,
        members: Members,
        sends: Sequence[tuple[int, object]],
        receives: Sequence[tuple[int, object]],
        seconds: float,
    ) -> Any:
        """`batch_isend_irecv` under NCCL: the parts run at once, and their closing work is returned.

        Each send and receive is (peer, name of the transfer).
        """
        parts = [("send", self.number, peer, tag) for peer, tag in sends]
        parts += [("recv", peer, self.number, tag) for peer, tag in receives]
        group = self.distributed.ProcessGroup()
        group._start_coalescing()
        for name, source, target, _ in parts:
            self.host.spend(ENQUEUE_SECONDS)
            flags = layout.POINT_TO_POINT | layout.BLOCKING
            key = WaitKey(self.writer.name_number(name), self.groups.of(members).number, flags)
            received = target == self.number
            peer = members.ranks.index(source if received else target)
            self.waits.enqueues(
                self.machine.device,
                key,
                asynchronous=True,
                output=None,
                message=layout.message(peer, received=received),
            )
        return group._end_coalescing(lambda: self._transfer_all(members, parts, seconds))

    def _transfer_all(
        self, members: Members, parts: Sequence[tuple[str, int, int, object]], seconds: float
    ) -> Any:
        nccl = self._after_current(members)
        begun = nccl.enqueue(Operation(0.0))
        for _, source, target, tag in parts:
            took = seconds * self._link((source, target))
            transfer = self.network.meet((source, target, tag), 2, took)
            transfer.arrive(self.host.now, (begun,))
            nccl.follow(transfer)
        return self.work_class(self, nccl.enqueue(Operation(0.0)), _COALESCED)

    def functional(self, name: str, members: Members, seconds: float) -> Callable[[], None]:
        """`_c10d_functional::*`: an asynchronous collective; returns `wait_tensor` of its output."""
        output = _Output()
        work = self.collective(name, members, seconds, asynchronous=True, output=output)

        def wait_tensor() -> None:
            waits = self.waits.begins_for(output)
            work.block()
            if waits:
                self.waits.ends()

        return wait_tensor

    def broadcast_buffers(self, members: Members, seconds: float) -> None:
        """`DistributedDataParallel._distributed_broadcast_coalesced`."""
        self.distributed._broadcast_coalesced(members, seconds)

    def _broadcast_coalesced(self, members: Members, seconds: float) -> None:
        """`torch/csrc/distributed/c10d/comm.cpp`, `broadcast_coalesced`: broadcasts, waited for in C++."""
        self.collective("broadcast", members, seconds, asynchronous=True).block()

    def host_barrier(self, members: Members, seconds: float) -> Iterator[Operation]:
        """A barrier of gloo: the host waits in `Work.wait`."""
        count = self._counts["host", members] = self._counts.get(("host", members), 0) + 1
        operation = self.network.meet(("host", members, count), len(members.ranks), seconds)
        operation.arrive(self.host.now, ())
        waits = self.waits.begins()
        yield operation
        if waits:
            self.waits.ends()


def _group_class() -> Any:
    """`c10d.ProcessGroup` of a process as far as batches of messages use it; its methods can be replaced."""

    class ProcessGroup:
        def _start_coalescing(self) -> None:
            pass

        def _end_coalescing(self, issue: Callable[[], Any]) -> Any:
            return issue()

    return ProcessGroup


class _Output:
    """The output of a functional collective, as `DeviceWaits` knows tensors."""

    def __init__(self) -> None:
        self._cdata = id(self)

    def untyped_storage(self) -> _Output:
        return self


def run_together(programs: Sequence[tuple[Rank, Iterator[Operation]]]) -> None:
    """Run the hosts of all ranks, each until it waits for an operation whose end is not known yet."""
    waiting: list[tuple[Rank, Iterator[Operation], Operation | None]] = [(*each, None) for each in programs]
    while waiting:
        left = []
        moved = False
        for rank, program, operation in waiting:
            while operation is None or operation.known:
                moved = True
                if operation is not None:
                    rank.host.now = max(rank.host.now, operation.end + WAKE_SECONDS)
                operation = next(program, None)
                if operation is None:
                    break
            else:
                left.append((rank, program, operation))
        assert moved, "the ranks wait for each other for ever"
        waiting = left
