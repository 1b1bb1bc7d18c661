"""NVML, loaded and initialised; it may go away and come back."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.features import DriverError, describe

_INFO = metric("rankwatch_gpu_driver_info").name


class DriverSession:
    """From nvmlInit to nvmlShutdown, again and again."""

    def __init__(self, library: Path | None) -> None:
        """`library` stands for libnvidia-ml.so.1 where the system's loader does not find it."""
        self._library = library
        self._preloaded: Any = None
        self._was_open = False
        self._versions = ("", "", "")
        self.is_open = False
        self.driver_major = 0
        self.outdated = False
        """The driver was replaced under the library in this process: only a new process can use it."""

    def open(self) -> None:
        """Initialise unless it is; raises DriverError."""
        if self.is_open:
            return
        self._preload()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            code = error.value
            self.outdated = self._was_open and code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
            raise DriverError(f"could not initialise NVML: {describe(code)}", code=code) from None
        self.is_open = self._was_open = True
        self._versions = (
            _text(pynvml.nvmlSystemGetDriverVersion),
            _text(pynvml.nvmlSystemGetNVMLVersion),
            _cuda(),
        )
        major = self._versions[0].partition(".")[0]
        self.driver_major = int(major) if major.isdecimal() else 0

    def close(self) -> None:
        """Shut down; the driver may be gone already."""
        if self.is_open:
            self.is_open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return  # nothing is left to shut down

    def info(self) -> Sample:
        """Versions of the driver; empty where it does not tell."""
        return Sample(_INFO, self._versions, 1.0)

    def _preload(self) -> None:
        # pynvml knows only the name libnvidia-ml.so.1; the loader takes a loaded library of that name
        if self._library is None or self._preloaded is not None:
            return
        try:
            self._preloaded = ctypes.CDLL(str(self._library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise DriverError(
                f"could not load {self._library}: {error}", code=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
            ) from None


def _text(function: Any) -> str:
    try:
        return str(function())
    except (pynvml.NVMLError, UnicodeDecodeError):
        return ""


def _cuda() -> str:
    """The newest CUDA of the driver: 12040 is 12.4 (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR)."""
    try:
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"
