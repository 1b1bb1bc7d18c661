"""Everything that is read of a GPU, in order: the only list of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rankwatch_agent.sources.gpu.protocol import Gpu, Sample
from rankwatch_agent.sources.gpu.reading import (
    clocks,
    ecc,
    fabric,
    identity,
    load,
    memory,
    mig,
    pcie,
    power,
    processes,
    recovery,
    temperature,
    throttle,
)
from rankwatch_agent.sources.gpu.reading.device import Device, FieldKey
from rankwatch_agent.sources.gpu.reading.features import GpuLostError
from rankwatch_agent.sources.gpu.reading.fields import FieldReader
from rankwatch_agent.sources.gpu.reading.gpm import Gpm
from rankwatch_agent.sources.gpu.reading.nvlink import Nvlink, link_fields
from rankwatch_agent.sources.gpu.reading.suspect import Suspicion

_FIELDS: dict[FieldKey, str] = {
    **throttle.FIELDS,
    **temperature.FIELDS,
    **pcie.FIELDS,
    **ecc.FIELDS,
    **recovery.FIELDS,
}


class GpuReader:
    """Reads one GPU; lives as long as the worker, over losses and reloads of the driver."""

    def __init__(self, device: Device, gpm: Gpm) -> None:
        self.device = device
        self._gpm = gpm
        self._nvlink = Nvlink()
        self._field_reader = FieldReader()
        self._fields: dict[FieldKey, str] = {}
        self._fields_for: tuple[int, tuple[int, ...]] | None = None
        self._topics: tuple[Callable[[Device], Iterable[Sample]], ...] = (
            identity.read,
            load.read,
            memory.read,
            temperature.read,
            power.read,
            clocks.read,
            throttle.read,
            pcie.read,
            self._nvlink.read,
            fabric.read,
            ecc.read,
            recovery.read,
            processes.read,
            gpm.read,
            mig.Mig(gpm).read,
            Suspicion().read,
        )

    def read(self, driver_major: int) -> Gpu:
        """Ask for everything; a GPU that is lost meanwhile is so in the answer. Raises DriverError."""
        gpu = self.device
        gpu.begin()
        try:
            mig.read_mode(gpu)
            self._nvlink.find_active(gpu)
            self._field_reader.read(gpu, self._wanted_fields(driver_major))
            samples = tuple(sample for topic in self._topics for sample in topic(gpu))
        except GpuLostError as error:
            return self.lost(str(error))
        return self._gpu(samples)

    def lost(self, reason: str) -> Gpu:
        """What is left of a lost GPU."""
        self.device.lost_reason = reason
        self._gpm.forget(self.device.uuid)
        return self._gpu(tuple(identity.read(self.device)))

    def _gpu(self, samples: tuple[Sample, ...]) -> Gpu:
        gpu = self.device
        up = not gpu.lost_reason
        return Gpu(
            uuid=gpu.uuid,
            pci_bus_id=gpu.identity.pci_bus_id,
            index=gpu.index,
            minor_number=gpu.identity.minor_number,
            model=gpu.identity.model,
            up=up,
            lost_reason=gpu.lost_reason,
            mig_uuids=gpu.mig_uuids if up else (),
            pids=gpu.pids if up else (),
            samples=samples,
            unsupported=gpu.features.unsupported(),
            supported=gpu.features.supported(),
        )

    def _wanted_fields(self, driver_major: int) -> dict[FieldKey, str]:
        wanted_for = (driver_major, self.device.links)
        if wanted_for != self._fields_for:
            newer = throttle.NEWER_FIELDS if driver_major >= throttle.NEWER_FIELDS_SINCE_DRIVER else {}
            self._fields = {**_FIELDS, **newer, **link_fields(self.device.links)}
            self._fields_for = wanted_for
        return self._fields
