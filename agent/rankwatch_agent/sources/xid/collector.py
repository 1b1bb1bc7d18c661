"""Collector `xid`: the XID errors that NVML events and the kernel log told of.

It reads no source itself: the collectors `gpu` and `kernel_log` note what they find in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.xid.ledger import XidCount, XidLedger
from rankwatch_agent.sources.xid.table import SEVERITIES

_ERRORS = metric("rankwatch_gpu_xid_errors_total")
_LAST = metric("rankwatch_gpu_xid_last_timestamp_seconds")
_EVENTS = metric("rankwatch_gpu_xid_events_total")
_INFO = metric("rankwatch_xid_info")

_OTHER_CODES = "other"


class XidCollector:
    """Counts by GPU and code, by GPU and severity, and the meaning of the codes that occurred."""

    name = "xid"

    def __init__(self, *, inventory: GpuInventory, ledger: XidLedger, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._inventory = inventory
        self._ledger = ledger

    def collect(self) -> Collection:
        """Export the ledger; raises NotApplicable where no GPU is known and no error occurred."""
        gpus = self._inventory.gpus()
        for gpu in gpus:
            self._ledger.learn(gpu.pci_bus_id, gpu.uuid)
        counts = self._ledger.counts()
        if not gpus and not counts:
            raise NotApplicable("no GPU is known and no XID error was seen")
        return Collection((*_errors(counts), *self._events(gpus, counts), *self._meanings(counts)))

    def _events(self, gpus: Iterable[GpuIdentity], counts: Iterable[XidCount]) -> Iterator[Series]:
        """Every severity of every GPU from the start, at 0: rate() needs the sample before the first."""
        severities = self._ledger.severities()
        names = dict.fromkeys((*(gpu.uuid for gpu in gpus), *(each.gpu for each in counts)))
        for gpu in names:
            for severity in SEVERITIES:
                yield Series(_EVENTS, (gpu, severity), severities.get((gpu, severity), 0))

    def _meanings(self, counts: Iterable[XidCount]) -> Iterator[Series]:
        for xid in sorted({each.xid for each in counts if each.xid is not None}):
            meaning, severity, action = self._ledger.meaning(xid)
            yield Series(_INFO, (str(xid), severity, action, meaning), 1)


def _errors(counts: Iterable[XidCount]) -> Iterator[Series]:
    for gpu, xid, errors, last in counts:
        labels = (gpu, _OTHER_CODES if xid is None else str(xid))
        yield Series(_ERRORS, labels, errors)
        if last is not None:
            yield Series(_LAST, labels, last)
