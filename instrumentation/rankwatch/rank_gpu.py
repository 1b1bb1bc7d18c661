"""The GPU of this rank, as torch reports it once the rank has begun to use one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rankwatch.blackbox.writer import Writer

MAX_ATTEMPTS = 100
"""Steps after which torch is queried. A rank that uses no GPU by then is not expected to use one later."""

_PLAIN_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PREFIXES = ("GPU-", "MIG-")
_MAX_BYTES = 63
"""Longest name in the black box."""


def is_gpu_uuid(text: object) -> bool:
    """True if this is the UUID of a GPU or MIG instance in the form of `nvidia-smi -L`."""
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
        """The UUID; None if the rank uses no GPU yet, empty if this torch does not report it."""
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
        """Bytes on the device that tensors of this process occupy."""
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
