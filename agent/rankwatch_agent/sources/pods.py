"""Collector `pods`: which pod uses which GPU, as the kubelet lists it.

It needs no access to the Kubernetes API.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.gpu.inventory import GpuFinder, GpuInventory
from rankwatch_agent.sources.shared import NodeShared

if TYPE_CHECKING:
    from rankwatch_agent.sources.pod_resources import PodDevice


SOURCE = "kubernetes"
MAX_CALL_SECONDS = 10.0
"""A kubelet of a full node answers in a third of a second."""
_DEADLINE_SHARE = 0.8
"""Part of the collector's deadline that the call may use."""


# The allocation of GPUs changes with a job, not every second.
@source(interval_seconds=30.0, deadline_seconds=10.0)
def pods(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield PodsCollector(socket=config.kubelet_socket, inventory=shared.inventory, schedule=schedule)


class PodsCollector:
    """Calls the kubelet once per run. Nothing stays open between two runs."""

    name = "pods"

    def __init__(self, *, socket: Path, inventory: GpuInventory, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._socket = socket
        self._inventory = inventory
        self._seen = False
        self._failures = 0

    def collect(self) -> Collection:
        """Return the allocations of all GPUs. Raises NotApplicable where there is no kubelet, CollectError.

        The count of failures appears with the next run that succeeds, since a collector that fails has no
        series.
        """
        try:
            self._check_socket()
            from rankwatch_agent.sources.pod_resources import ask_kubelet, parse_answer

            timeout_seconds = min(MAX_CALL_SECONDS, _DEADLINE_SHARE * self.deadline_seconds)
            devices = parse_answer(ask_kubelet(self._socket, timeout_seconds))
        except ImportError as error:
            self._failures += 1
            raise CollectError(f"could not ask the kubelet at {self._socket}: {error}") from None
        except CollectError:
            self._failures += 1
            raise
        return Collection(tuple(self._series(devices)))

    def _check_socket(self) -> None:
        try:
            self._socket.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and not self._seen:
                raise NotApplicable(f"there is no kubelet ({self._socket})") from None
            if error.errno in (errno.EACCES, errno.EPERM) and not self._seen:
                raise NotApplicable(f"the agent has no access to {self._socket}") from None
            raise CollectError(f"could not find the kubelet at {self._socket}: {error.strerror}") from None
        self._seen = True  # from now on its absence is a failure

    def _series(self, devices: Sequence[PodDevice]) -> Iterator[Series]:
        finder = GpuFinder(self._inventory.gpus(), self._inventory.exported())
        found: dict[tuple[str, ...], None] = {}
        unmatched = 0
        for device in devices:
            gpu = finder.by_device_id(device.device_id)
            if gpu is None:
                unmatched += 1
            else:
                found[*gpu, device.namespace, device.pod, device.container] = None
        for labels in found:
            yield sample("rankwatch_gpu_pod_info", labels, 1)
        yield sample("rankwatch_gpu_allocations_unmatched", (SOURCE,), unmatched)
        yield sample("rankwatch_attribution_failures_total", (SOURCE,), self._failures)
