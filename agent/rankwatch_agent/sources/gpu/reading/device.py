"""One GPU in the worker: its handle, its identity, and the one way to ask the driver about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import pynvml

from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.features import (
    DRIVER_GONE,
    UNSUPPORTED,
    DriverError,
    Features,
    GpuLostError,
    describe,
)
from rankwatch_agent.sources.gpu.reading.limits import Unit

FieldKey = tuple[int, int]
"""Id of a field (NVML_FI_DEV_...) and its scope: the number of a link, 0 for the GPU."""

_T = TypeVar("_T")


class Identity(NamedTuple):
    """What a GPU is called. It is read once: a lost GPU does not tell even its UUID any more."""

    uuid: str
    pci_bus_id: str
    minor_number: int
    """-1 where the driver does not tell."""
    model: str
    architecture: str
    serial: str
    """Empty where the driver does not tell."""


class Device:
    """A GPU that was seen, and what its topics leave for each other during one reading."""

    def __init__(self, identity: Identity, rejected: dict[str, int]) -> None:
        self.identity = identity
        self.features = Features()
        self.handle: Any = None  # an opaque pointer of the driver
        self.index = 0
        self.lost_reason = ""
        self.tells_xids = False
        self._rejected = rejected
        self.begin()

    @property
    def uuid(self) -> str:
        """The label value that stands for the GPU."""
        return self.identity.uuid

    def begin(self) -> None:
        """Forget what the last reading found."""
        self.lost_reason = ""
        self.warnings: list[str] = []
        self.ask_all = self.features.begin()
        """Whether refused fields are to be asked for again."""
        self.fields: dict[FieldKey, float] = {}
        self.links: tuple[int, ...] = ()
        """Active NVLinks."""
        self.mig_enabled = False
        self.mig_uuids: tuple[str, ...] = ()
        self.pids: tuple[int, ...] = ()
        self.utilization: float | None = None
        self.activity: dict[str, float] = {}
        """GPM activity by unit."""

    def ask(self, feature: str, function: Callable[..., _T], *arguments: object) -> _T | None:
        """What the driver answers about this GPU; None where it does not.

        Raises GpuLostError, DriverError. Every other failure costs only this feature.
        """
        return self.ask_about(self.handle, feature, function, *arguments)

    def ask_about(
        self, handle: object, feature: str, function: Callable[..., _T], *arguments: object
    ) -> _T | None:
        """Like `ask`, of a part of this GPU: a MIG instance."""
        if not self.features.wanted(feature):
            return None
        try:
            answer = function(handle, *arguments)
        except pynvml.NVMLError as error:
            self.failed(feature, error.value)
            return None
        except UnicodeDecodeError:
            self.reject(feature)
            return None
        self.features.answered(feature)
        return answer

    def ask_any(self, feature: str, *questions: tuple[Any, ...]) -> Any:
        """What the first (function, arguments...) that this driver knows answers; None where none does."""
        names = [f"_{function.__name__}" for function, *_ in questions]
        for name, (function, *arguments) in zip(names, questions, strict=True):
            answer = self.ask(name, function, *arguments)
            if answer is not None:
                self.features.answered(feature)
                return answer
        if not any(self.features.wanted(name) for name in names):
            self.features.refused(feature)
        return None

    def failed(self, feature: str, code: int) -> None:
        """Note an error of the driver; raises GpuLostError, DriverError."""
        if code == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise GpuLostError(describe(code))
        if code in DRIVER_GONE:
            raise DriverError(describe(code), code=code)
        if code in UNSUPPORTED:
            self.features.refused(feature)
        else:
            self.warn(f"could not read {feature.lstrip('_')}: {describe(code)}")

    def warn(self, text: str) -> None:
        """A sentence for the log, with the GPU in front."""
        warning = f"GPU {self.uuid}: {text}"
        if warning not in self.warnings:  # 18 links may fail in the same way
            self.warnings.append(warning)

    def reject(self, feature: str) -> None:
        """Count a value that cannot be true."""
        self._rejected[feature] = self._rejected.get(feature, 0) + 1

    def accept(self, feature: str, raw: float, unit: Unit) -> float | None:
        """The value in base units; None, and counted, where it cannot be true."""
        value = unit.base(raw)
        if value is None:
            self.reject(feature)
        return value

    def sample(self, name: str, value: float, *labels: str) -> Sample:
        """A sample of this GPU."""
        return Sample(name, (self.identity.uuid, *labels), value)

    def checked(
        self, name: str, feature: str, raw: float | None, unit: Unit, *labels: str
    ) -> Iterable[Sample]:
        """One sample of a raw value, none where it is unknown or cannot be true."""
        if raw is None:
            return ()
        value = self.accept(feature, raw, unit)
        return () if value is None else (self.sample(name, value, *labels),)

    def field(self, name: str, feature: str, key: FieldKey, unit: Unit, *labels: str) -> Iterable[Sample]:
        """One sample of a field of this reading, none where the driver has it not."""
        return self.checked(name, feature, self.fields.get(key), unit, *labels)
