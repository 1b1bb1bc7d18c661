"""Which GPU this rank works on, asked of torch once the rank has begun to use one."""

from __future__ import annotations

import re
from typing import Any

from rankwatch.blackbox.writer import Writer

MAX_ATTEMPTS = 100
"""Steps after which torch is asked; a rank that holds no GPU by then will hardly take one."""

_PLAIN_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PREFIXES = ("GPU-", "MIG-")
_MAX_BYTES = 63
"""A name of the black box has no more."""


def is_gpu_uuid(text: object) -> bool:
    """Whether this is the UUID of a GPU or MIG instance in the form of `nvidia-smi -L`."""
    return (
        isinstance(text, str)
        and text.startswith(_PREFIXES)
        and text.isascii()
        and text.isprintable()
        and len(text) <= _MAX_BYTES
    )


class RankGpu:
    """Looks after each step until the GPU is known. Never makes torch initialise CUDA.

    cuda: `torch.cuda`.
    """

    def __init__(self, writer: Writer, cuda: Any) -> None:
        self._writer = writer
        self._cuda = cuda
        self._left = MAX_ATTEMPTS

    def resolve(self) -> None:
        """Write the GPU into the black box once it is known; what torch raises, it raises once."""
        if not self._left:
            return
        left, self._left = self._left - 1, 0
        uuid = self._ask(last=not left)
        if uuid is None:
            self._left = left
        elif uuid:
            self._writer.set_gpu(uuid)

    def _ask(self, *, last: bool) -> str | None:
        """The UUID; None where it is too early to say, empty where this torch does not tell."""
        cuda = self._cuda
        if not cuda.is_initialized():
            return None
        current = cuda.current_device()
        held = {device: self._held(device) for device in range(cuda.device_count())}
        # Not simply the current device: with `tensor.to("cuda:3")` it stays 0 on every rank.
        device = max(held, key=lambda each: (held[each], each == current))
        if not held[device] and not last:
            return None
        properties = cuda.get_device_properties(device)
        return _with_prefix(str(getattr(properties, "uuid", "")), str(properties.name))

    def _held(self, device: int) -> int:
        """Bytes of the device that tensors of this process take."""
        try:
            return int(self._cuda.memory_allocated(device))
        except RuntimeError:  # an allocator of the trainer's own, which keeps no account
            return 0


def _with_prefix(uuid: str, model: str) -> str:
    """As NVML writes it; torch leaves out whether it is a GPU or, by the model's name, a MIG instance."""
    if _PLAIN_UUID.fullmatch(uuid):
        return f"MIG-{uuid}" if " MIG " in model else f"GPU-{uuid}"
    return uuid if is_gpu_uuid(uuid) else ""
