"""Records the fingerprint of the parameters that must be the same on several ranks, every so many steps.

The sums stay on the device until a copy of them, 256 bytes, has come to pinned memory by itself. Agents and
rules compare the records of different ranks; the ranks say nothing to each other.

DistributedDataParallel adds up gradients over its process group, so all of its ranks apply the same update.
FSDP2 on a mesh of two dimensions (HSDP) does so over the first one: ranks that hold the same shard are equal.
A DTensor that is replicated without that sum, as in tensor parallelism, is left out: each rank computes its
gradient by itself, and two kernels may round differently.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.compiling import keep_from_compiler
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.identity import Identity
from rankwatch.members import members_text

_MOST_PENDING = 64
_MOST_FAILURES = 3
_MOST_LAYOUTS = 8
_MASK = (1 << 64) - 1
_DEVICES = ("cpu", "cuda")
_PAYLOAD = layout.FINGERPRINT
_UNKNOWN = Unseen.UNKNOWN_FORMAT
_LOCAL_HOOKS = ("localsgd", "local_sgd")
"""In the names of communication hooks of DDP after which the ranks differ on purpose."""
_DATA_PARALLEL = "dp"


class _Pending(NamedTuple):
    step: int
    members: str
    names: list[str]
    """The first parameter of each group; empty for a group without any."""
    moment: float
    copies: list[Any]
    """For each device the sums, in memory of the host."""
    events: list[tuple[Any, Any]]
    """For each GPU its events before and after."""
    host_seconds: float


class Fingerprints:
    """The fingerprints of one run. Only the training thread calls it.

    every: steps between two of them; 0: none. step: returns the number of the open step, else of the last.
    """

    def __init__(
        self, writer: Writer, identity: Callable[[], Identity], step: Callable[[], int], every: int
    ) -> None:
        self._writer = writer
        self._identity = identity
        self._step = step
        self._every = self._steps_between = every
        self._last = -1
        self._failed = 0
        self._digests: dict[object, tuple[Any, list[int]]] = {}
        self._pending: deque[_Pending] = deque(maxlen=_MOST_PENDING)
        keep_from_compiler(Fingerprints._take, calls=True)
        if not every:
            writer.set_capability(Capability.REPLICAS, Unseen.OFF)

    def is_due(self) -> bool:
        """Return True in a step in which the parameters are to be read, and have not been yet."""
        step = self._step()
        return self._every > 0 and step % self._every == 0 and step != self._last and step >= 0

    def of(self, models: Sequence[Any]) -> None:
        """Read the parameters of these modules, and tensors in iterables, if it is time."""
        if not self.is_due():
            return
        try:
            self._take(models)
        except Exception:
            self._failed += 1
            if self._failed >= _MOST_FAILURES:
                self._every = 0
                self._writer.set_capability(Capability.REPLICAS, Unseen.HOOK_FAILED)
            raise

    def resolve(self) -> None:
        """Record what the devices have delivered since. Never waits."""
        while self._pending:
            first = self._pending[0]
            if not all(after.query() for _, after in first.events):
                return
            self._pending.popleft()
            self._write(first)

    def _take(self, models: Sequence[Any]) -> None:
        torch: Any = importlib.import_module("torch")
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        self._last = self._step()
        found, why = self._replicas(models)
        read = False
        for part in found:
            obstacles = [_obstacle(torch, each) for each in part.tensors]
            tensors = [each for each, reason in zip(part.tensors, obstacles, strict=True) if reason is None]
            names = [each for each, reason in zip(part.names, obstacles, strict=True) if reason is None]
            if tensors:
                read = True
                self._pending.append(self._read(torch, part.members, names, tensors))
            else:
                why = obstacles[0]
        why = None if read else why
        self._writer.set_capability(Capability.REPLICAS, why)
        self.resolve()

    def _replicas(self, models: Sequence[Any]) -> tuple[list[Replicas], Unseen | None]:
        wrapped, plain = [], []
        for number, each in enumerate(models):
            if not hasattr(each, "named_parameters"):
                plain += [(f"{number}.{at}", tensor) for at, tensor in enumerate(each)]
            elif wraps_replicas(each):
                wrapped.append(each)
            else:
                plain += each.named_parameters()
        found, why = replicas_of_modules(wrapped)
        if plain:
            more, why = replicas_of_tensors(plain, self._identity())
            found += more
        return found, why

    def _read(self, torch: Any, members: str, names: list[str], tensors: list[Any]) -> _Pending:
        began = time.monotonic()
        copies, events, first = [], [], [""] * 16
        for device in dict.fromkeys(each.device for each in tensors):
            here = [at for at, each in enumerate(tensors) if each.device == device]
            digest, groups = self._digest([tensors[at] for at in here])
            for at, group in zip(here, groups, strict=True):
                first[group] = first[group] or names[at]
            if device.type == "cuda":
                copy, around = _compute(torch, device, digest, [tensors[at] for at in here])
                copies.append(copy)
                events.append(around)
            else:
                copies.append(digest.compute([tensors[at] for at in here]))
        return _Pending(self._last, members, first, began, copies, events, time.monotonic() - began)

    def _digest(self, tensors: list[Any]) -> tuple[Any, list[int]]:
        from rankwatch.fingerprints.digest import Digest, group_of, layout_of

        key = layout_of(tensors)
        if key not in self._digests:
            if len(self._digests) >= _MOST_LAYOUTS:
                self._digests.clear()
            self._digests[key] = Digest(tensors), group_of(tensors)
        return self._digests[key]

    def _write(self, pending: _Pending) -> None:
        seconds = sum(before.elapsed_time(after) / 1e3 for before, after in pending.events)
        end = pending.moment + max(seconds, pending.host_seconds)
        number = self._writer.name_number(pending.members)
        sums, hashes = [0] * len(pending.names), [0] * len(pending.names)
        for copy in pending.copies:
            both = copy.tolist()
            sums = [(one + other) & _MASK for one, other in zip(sums, both[0], strict=True)]
            hashes = [(one ^ other) & _MASK for one, other in zip(hashes, both[1], strict=True)]
        total, hashed = 0, 0
        for group, name in enumerate(pending.names):
            if name:
                named = self._writer.name_number(name)
                values = pending.step, sums[group], hashes[group], named, group + 1
                self._append(number, pending.moment, pending.moment, values)
            total, hashed = (total + sums[group]) & _MASK, hashed ^ hashes[group]
        self._append(number, pending.moment, end, (pending.step, total, hashed, self._steps_between, 0))

    def _append(self, name: int, start: float, end: float, values: tuple[int, ...]) -> None:
        self._writer.append(RecordKind.FINGERPRINT, name, start, end, _PAYLOAD, *values)


def _compute(torch: Any, device: Any, digest: Any, tensors: list[Any]) -> tuple[Any, tuple[Any, Any]]:
    """Enqueue the sums on the device and a copy of them to the host, between two events."""
    with torch.cuda.device(device):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        sums = digest.compute(tensors)
        copy = torch.empty(sums.shape, dtype=sums.dtype, device="cpu", pin_memory=True)
        copy.copy_(sums, non_blocking=True)
        after.record()
    return copy, (before, after)


def _obstacle(torch: Any, tensor: Any) -> Unseen | None:
    """Return why the bits of a tensor cannot be read; None if they can. The others are read without it."""
    if tensor.device.type not in _DEVICES:
        return Unseen.DEVICE
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return None if plain and tensor.layout is torch.strided and not tensor.is_quantized else _UNKNOWN


class Replicas(NamedTuple):
    """Tensors of this rank that other ranks hold, too."""

    members: str
    """All ranks that hold them; see `rankwatch.members`."""
    names: list[str]
    tensors: list[Any]


def replicas_of_modules(modules: Iterable[Any]) -> tuple[list[Replicas], Unseen | None]:
    """Return what is replicated in these modules, by the ranks that hold it; else why nothing is."""
    found: dict[str, Replicas] = {}
    why: set[Unseen | None] = set()
    for module in modules:
        for name, tensor, ranks, reason in _parameters(module):
            why.add(reason)
            if reason is None:
                members = members_text(ranks)
                part = found.setdefault(members, Replicas(members, [], []))
                part.names.append(name)
                part.tensors.append(tensor)
    if found:
        return list(found.values()), None
    return [], next((each for each in why if each is not None), Unseen.NOT_CALLED)


def replicas_of_tensors(
    named: Iterable[tuple[str, Any]], identity: Identity
) -> tuple[list[Replicas], Unseen | None]:
    """Return the replicas of tensors of which a script says that they are the same on all ranks with the same
    position in all parallel dimensions but the data-parallel ones, or why there are none."""
    named = [(name, each) for name, each in named if each.numel()]
    if not named:
        return [], Unseen.NOT_CALLED
    if any(_is_flat_shard(each) or hasattr(each, "placements") for _, each in named):
        return [], Unseen.SHARDED
    others = {
        name: index
        for name, (index, size) in identity.coordinates.items()
        if size > 1 and not name.startswith(_DATA_PARALLEL)
    }
    if identity.world_size < 2:
        return [], Unseen.ONE_REPLICA
    members = (
        ",".join(f"{name}={index}" for name, index in sorted(others.items()))
        if others
        else members_text(range(identity.world_size))
    )
    return [Replicas(members, [name for name, _ in named], [each for _, each in named])], None


def wraps_replicas(module: Any) -> bool:
    """Return True if the module says by itself which of its parameters are replicated."""
    return any(_is_ddp(each) for each in module.modules()) or any(
        hasattr(each, "placements") or _is_flat_shard(each) for each in module.parameters()
    )


def _parameters(module: Any) -> Iterable[tuple[str, Any, list[int], Unseen | None]]:
    wrapped = [each for each in module.modules() if _is_ddp(each)]
    for each in wrapped:
        yield from _of_ddp(each)
    if not wrapped:
        for name, each in module.named_parameters():
            yield _of_sharded(name, each)


def _of_ddp(module: Any) -> Iterable[tuple[str, Any, list[int], Unseen | None]]:
    ranks = _ranks(module.process_group)
    why = Unseen.ONE_REPLICA if len(ranks) < 2 else Unseen.LOCAL_UPDATES if _updates_locally(module) else None
    ignored = set(getattr(module, "parameters_to_ignore", ()))
    for name, each in module.module.named_parameters():  # a tied parameter comes once
        if name not in ignored and each.numel():
            yield name, each.to_local() if hasattr(each, "to_local") else each, ranks, why


def _of_sharded(name: str, parameter: Any) -> tuple[str, Any, list[int], Unseen | None]:
    placements: Any = getattr(parameter, "placements", ())
    if len(placements) >= 2 and placements[0].is_replicate() and _is_shard(placements[1]):
        ranks = _ranks(parameter.device_mesh.get_group(0))
        local = parameter.to_local()
        if len(ranks) > 1 and local.numel():
            return name, local, ranks, None
    return name, parameter, [], Unseen.SHARDED


def _is_shard(placement: Any) -> bool:
    return placement.is_shard() or type(placement).__name__ == "_StridedShard"


def _is_ddp(module: Any) -> bool:
    parallel: Any = sys.modules.get("torch.nn.parallel.distributed")
    return (
        parallel is not None
        and isinstance(module, parallel.DistributedDataParallel)
        and hasattr(module, "process_group")  # else its constructor has failed
    )


def _is_flat_shard(parameter: Any) -> bool:
    """Return True for the parameters of FSDP version 1."""
    return type(parameter).__name__ == "FlatParameter" or hasattr(parameter, "_is_flat_param")


def _updates_locally(module: Any) -> bool:
    hooks = getattr(module, "_comm_hooks", ())
    names = [getattr(hook, "__qualname__", "").lower() for hook, _ in hooks]
    return any(local in name for name in names for local in _LOCAL_HOOKS)


def _ranks(group: Any) -> list[int]:
    distributed: Any = sys.modules["torch.distributed"]
    return list(distributed.get_process_group_ranks(group))
