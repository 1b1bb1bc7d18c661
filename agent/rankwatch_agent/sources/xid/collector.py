"""Collector `xid`: exports the XID errors that the collectors `gpu` and `kernel_log` counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.xid.counter import XidCount, XidCounter
from rankwatch_agent.sources.xid.meanings import SEVERITIES

_ERRORS = metric("rankwatch_gpu_xid_errors_total")
_LAST = metric("rankwatch_gpu_xid_last_timestamp_seconds")
_EVENTS = metric("rankwatch_gpu_xid_events_total")
_INFO = metric("rankwatch_xid_info")

_OTHER_CODES = "other"


class XidCollector:
    """Exports counts by GPU and code, counts by GPU and severity, and what each code that occurred means."""

    name = "xid"

    def __init__(self, *, inventory: GpuInventory, xids: XidCounter, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._inventory = inventory
        self._xids = xids

    def collect(self) -> Collection:
        """The counts; raises NotApplicable where no GPU is known and no error occurred."""
        gpus = self._inventory.gpus()
        for gpu in gpus:
            self._xids.identify(gpu.pci_bus_id, gpu.uuid)
        counts = self._xids.counts()
        if not gpus and not counts:
            raise NotApplicable("no GPU is known and no XID error occurred")
        return Collection((*_errors(counts), *self._events(gpus, counts), *self._meanings(counts)))

    def _events(self, gpus: Iterable[GpuIdentity], counts: Iterable[XidCount]) -> Iterator[Series]:
        """Every severity of every GPU, 0 before its first error: increase() needs a sample before it."""
        severities = self._xids.severities()
        names = dict.fromkeys((*(gpu.uuid for gpu in gpus), *(each.gpu for each in counts)))
        for gpu in names:
            for severity in SEVERITIES:
                yield Series(_EVENTS, (gpu, severity), severities.get((gpu, severity), 0))

    def _meanings(self, counts: Iterable[XidCount]) -> Iterator[Series]:
        for xid in sorted({each.xid for each in counts if each.xid is not None}):
            meaning, severity, action = self._xids.meaning(xid)
            yield Series(_INFO, (str(xid), severity, action, meaning), 1)


def _errors(counts: Iterable[XidCount]) -> Iterator[Series]:
    for gpu, xid, errors, last in counts:
        labels = (gpu, _OTHER_CODES if xid is None else str(xid))
        yield Series(_ERRORS, labels, errors)
        if last is not None:
            yield Series(_LAST, labels, last)
