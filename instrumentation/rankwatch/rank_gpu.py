"""The GPU of this rank as torch reports it: which one it is, and what the allocator of its memory holds."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer

MAX_ATTEMPTS = 100
"""Steps after which torch is queried. A rank that uses no GPU by then is not expected to use one later."""

_PLAIN_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PREFIXES = ("GPU-", "MIG-")
_MAX_BYTES = 63
"""Longest name in the black box."""
SAMPLE_SECONDS = 10.0
"""Shortest time between two samples. One copies a few hundred counters of the host, and no GPU is asked."""


def has_cuda() -> bool:
    """Return True if torch is loaded and was built for GPUs. Asks no driver, and initialises nothing."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.version.cuda or torch.version.hip)


def is_gpu_uuid(text: object) -> bool:
    """Return True if this is the UUID of a GPU or MIG instance in the form of `nvidia-smi -L`."""
    return (
        isinstance(text, str)
        and text.startswith(_PREFIXES)
        and text.isascii()
        and text.isprintable()
        and len(text) <= _MAX_BYTES
    )


class RankGpu:
    """Queries torch after each step until the GPU is known. Never makes torch initialise CUDA.

    cuda: `torch.cuda`. uuid: of the GPU, where the run was told. found: takes the index of the device.
    """

    def __init__(
        self,
        writer: Writer,
        cuda: Any,
        *,
        uuid: str | None = None,
        found: Callable[[int], object] = lambda device: None,
    ) -> None:
        self._writer = writer
        self._cuda = cuda
        self._uuid = uuid
        self._found = found
        if uuid is not None:
            writer.set_gpu(uuid)
        self._attempts_left = MAX_ATTEMPTS

    def resolve(self) -> None:
        """Write the GPU into the black box once it is known. After an error of torch it does not try
        again."""
        if not self._attempts_left:
            return
        left, self._attempts_left = self._attempts_left - 1, 0
        uuid = self._find(last=not left)
        if uuid is None:
            self._attempts_left = left
        elif uuid:
            self._writer.set_gpu(uuid)

    def _find(self, *, last: bool) -> str | None:
        """Return the UUID; None if the rank uses no GPU yet, empty if this torch does not report it."""
        cuda = self._cuda
        if not cuda.is_initialized():
            return None
        current = cuda.current_device()
        allocated = {device: self._allocated_bytes(device) for device in range(cuda.device_count())}
        # The current device is not enough: with `tensor.to("cuda:3")` it stays 0 on every rank.
        device = max(allocated, key=lambda each: (allocated[each], each == current))
        if not allocated[device] and not last:
            return None
        self._found(device)
        if self._uuid is not None:
            return ""
        properties = cuda.get_device_properties(device)
        return _with_prefix(str(getattr(properties, "uuid", "")), str(properties.name))

    def _allocated_bytes(self, device: int) -> int:
        """Return the bytes on the device that tensors of this process occupy."""
        try:
            return int(self._cuda.memory_allocated(device))
        except RuntimeError:  # an allocator of the trainer without statistics
            return 0


def _with_prefix(uuid: str, model: str) -> str:
    """Return the UUID as NVML writes it, with a prefix. Torch leaves the prefix out; the name of the model
    shows if this is a MIG instance."""
    if _PLAIN_UUID.fullmatch(uuid):
        return f"MIG-{uuid}" if " MIG " in model else f"GPU-{uuid}"
    return uuid if is_gpu_uuid(uuid) else ""


class AllocatorMemory:
    """Samples the allocator of the rank's device into the now block. Never makes torch initialise CUDA.

    cuda: `torch.cuda`. device: index of the rank's device; the current one while that is not known.
    """

    def __init__(
        self,
        writer: Writer,
        cuda: Any,
        *,
        device: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._cuda = cuda
        self._device = device
        self._clock = clock
        self._next = 0.0

    def resolve(self) -> None:
        """Take a sample if the last one is old enough."""
        moment = self._clock()
        if moment >= self._next:
            self._next = moment + SAMPLE_SECONDS
            self.sample()

    def sample(self) -> None:
        """Take a sample; nothing while CUDA is not in use."""
        if not self._cuda.is_initialized():
            return
        device = self._device()
        found = self._cuda.memory_stats_as_nested_dict(
            self._cuda.current_device() if device is None else device
        )
        if not found:
            return
        words = self._writer.integers
        words[Now.ALLOCATOR_ALLOCATED] = _bytes(found, "allocated_bytes", "current")
        words[Now.ALLOCATOR_RESERVED] = _bytes(found, "reserved_bytes", "current")
        words[Now.ALLOCATOR_PEAK] = _bytes(found, "allocated_bytes", "peak")
        words[Now.ALLOCATOR_RETRIES] = int(found.get("num_alloc_retries", 0))
        words[Now.ALLOCATOR_OUT_OF_MEMORY] = int(found.get("num_ooms", 0))
        self._writer.floats[Now.ALLOCATOR_SAMPLED] = self._clock()


def _bytes(found: Mapping[str, Any], name: str, which: str) -> int:
    return int(found.get(name, {}).get("all", {}).get(which, 0))
