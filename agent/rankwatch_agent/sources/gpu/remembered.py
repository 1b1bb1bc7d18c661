"""Which GPUs this node has had: a worker forgets those that were lost before it was started."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Gpu, Sample

MOST_GPUS = 256
"""Remembered, lost ones among them; more than any node has had."""

_UP = metric("rankwatch_gpu_up").name
_INFO = metric("rankwatch_gpu_info").name


class GpuMemory:
    """The last identity of every GPU. Used by one thread."""

    def __init__(self) -> None:
        self._known: dict[str, Gpu] = {}

    def with_lost(self, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
        """These GPUs, and after them, as lost, those that were seen once and are not among them."""
        present = {gpu.uuid: gpu for gpu in gpus}
        missing = tuple(gpu for uuid, gpu in self._known.items() if uuid not in present)
        for uuid, gpu in present.items():
            if uuid in self._known or len(self._known) < MOST_GPUS:
                self._known[uuid] = _lost(gpu)
        return (*present.values(), *missing)


def _lost(gpu: Gpu) -> Gpu:
    """The GPU with nothing left but its identity."""
    identity = tuple(sample for sample in gpu.samples if sample.metric == _INFO)
    return msgspec.structs.replace(
        gpu,
        up=False,
        lost_reason="the driver does not show it any more",
        pids=(),
        samples=(Sample(_UP, (gpu.uuid,), 0.0), *identity),
    )
