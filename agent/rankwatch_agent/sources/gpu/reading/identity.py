"""What a GPU is called: UUID, PCI address, model. The only samples that a lost GPU keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.inventory import normalise_bus_id
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device, Identity
from rankwatch_agent.sources.gpu.reading.features import DRIVER_GONE

_UP = metric("rankwatch_gpu_up").name
_INFO = metric("rankwatch_gpu_info").name
_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "ada",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "rubin",
}
_UNKNOWN = "unknown"
_NO_MINOR_NUMBER = -1

_T = TypeVar("_T")


def read_identity(handle: object) -> Identity:
    """Ask for it once; raises pynvml.NVMLError or UnicodeDecodeError where UUID or address are not told."""
    return Identity(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        pci_bus_id=normalise_bus_id(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        minor_number=_told(pynvml.nvmlDeviceGetMinorNumber, handle, _NO_MINOR_NUMBER),
        model=_told(pynvml.nvmlDeviceGetName, handle, _UNKNOWN),
        architecture=_ARCHITECTURES.get(_told(pynvml.nvmlDeviceGetArchitecture, handle, -1), _UNKNOWN),
        serial=_told(pynvml.nvmlDeviceGetSerial, handle, ""),
    )


def read(gpu: Device) -> Iterable[Sample]:
    """Up or lost, and the names."""
    identity = gpu.identity
    yield gpu.sample(_UP, 0.0 if gpu.lost_reason else 1.0)
    yield gpu.sample(
        _INFO,
        1.0,
        str(gpu.index),
        identity.pci_bus_id,
        identity.model,
        identity.architecture,
        identity.serial,
    )


def _told(function: Callable[[object], _T], handle: object, otherwise: _T) -> _T:
    try:
        return function(handle)
    except UnicodeDecodeError:
        return otherwise
    except pynvml.NVMLError as error:
        if error.value not in (*DRIVER_GONE, pynvml.NVML_ERROR_GPU_IS_LOST):
            return otherwise
        raise
