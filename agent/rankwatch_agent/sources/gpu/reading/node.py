"""One reading of everything: the driver, its GPUs, the XID errors since the last one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Answer, Failure, Gpu, Reading, Sample
from rankwatch_agent.sources.gpu.reading.events import WAIT_MILLISECONDS, XidListener
from rankwatch_agent.sources.gpu.reading.features import DriverError
from rankwatch_agent.sources.gpu.reading.gpm import Gpm
from rankwatch_agent.sources.gpu.reading.gpus import GpuTable
from rankwatch_agent.sources.gpu.reading.session import DriverSession

_SUPPORTED = metric("rankwatch_gpu_supported").name
_REJECTED = metric("rankwatch_gpu_readings_rejected_total").name
_LOOK_AGAIN_READINGS = 60
"""While a GPU is lost the driver is initialised anew after so many readings: only that shows a GPU that
was reset or replaced (inferred; NVML lists GPUs in nvmlInit)."""


class NodeReader:
    """Reads the node again and again. Used by one thread."""

    def __init__(
        self,
        *,
        library: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        event_wait_milliseconds: int = WAIT_MILLISECONDS,
    ) -> None:
        self._wall_clock = wall_clock
        self._event_wait_milliseconds = event_wait_milliseconds
        self._session = DriverSession(library)
        self._gpm = Gpm(monotonic=monotonic)
        self._table = GpuTable(self._gpm)
        self._listener = self._new_listener()
        self._readings_with_loss = 0
        self._stuck = False

    @property
    def of_no_use(self) -> bool:
        """Only a new process can go on: the driver was replaced, or a thread hangs in it."""
        return self._stuck or self._session.outdated

    def read(self) -> Answer:
        """Everything the driver tells now; a Failure where it tells nothing of any GPU."""
        try:
            self._session.open()
            gpus = self._read_gpus()
        except DriverError as error:
            events, _ = self._listener.take()
            self.close()
            return Answer(failure=Failure(message=str(error), absent=error.absent, xids=events))
        events, warnings = self._listener.take()
        if not any(gpu.up for gpu in gpus):
            self.close()  # nvmlInit looks again at the next collection
            message = "the driver answers but shows no GPU"
            return Answer(failure=Failure(message=message, xids=events, gpus=gpus))
        warnings += self._table.warnings
        warnings += [text for reader in self._table.readers() for text in reader.device.warnings]
        return Answer(
            reading=Reading(
                gpus=gpus, samples=tuple(self._samples(gpus)), xids=events, warnings=tuple(warnings)
            )
        )

    def close(self) -> None:
        """Shut the driver down, unless a thread hangs in it: then only the end of the process helps."""
        self._table.detach()
        self._readings_with_loss = 0
        if not self._listener.stop():
            self._stuck = True
            return
        self._listener = self._new_listener()
        if self._session.is_open:
            self._gpm.release()
            self._session.close()

    def _new_listener(self) -> XidListener:
        return XidListener(wait_milliseconds=self._event_wait_milliseconds, wall_clock=self._wall_clock)

    def _read_gpus(self) -> tuple[Gpu, ...]:
        if self._readings_with_loss >= _LOOK_AGAIN_READINGS:
            self.close()
            self._session.open()
        missing = self._table.enumerate()
        gpus = tuple(
            reader.lost(missing[reader.device.uuid])
            if reader.device.uuid in missing
            else reader.read(self._session.driver_major)
            for reader in self._table.readers()
        )
        self._readings_with_loss = 0 if all(gpu.up for gpu in gpus) else self._readings_with_loss + 1
        devices = [reader.device for reader in self._table.readers()]
        self._listener.watch(
            {each.uuid: each.handle for each in devices if each.tells_xids and not each.lost_reason}
        )
        return gpus

    def _samples(self, gpus: Iterable[Gpu]) -> Iterable[Sample]:
        yield self._session.info()
        for feature, count in sorted(self._table.rejected.items()):
            yield Sample(_REJECTED, (feature,), count)
        for (model, feature), all_have_it in sorted(supported_by_model(gpus).items()):
            yield Sample(_SUPPORTED, (model, feature), float(all_have_it))


def supported_by_model(gpus: Iterable[Gpu]) -> dict[tuple[str, str], bool]:
    """(model, feature) -> whether every GPU of the model has it, lost ones by what they told before."""
    found: dict[tuple[str, str], bool] = {}
    for gpu in gpus:
        for feature in gpu.supported:
            found.setdefault((gpu.model, feature), True)
        for feature in gpu.unsupported:
            found[gpu.model, feature] = False
    return found
