"""Which features a GPU has, as its driver says, and what an error of the driver means.

A feature is one question to the driver: power, memory_temperature, ... One that a GPU has not is asked
for again only seldom, so that a GPU without it costs nothing.
"""

from __future__ import annotations

import pynvml

ASK_AGAIN_CYCLES = 60
"""Collections until an unsupported feature is asked for again: a new mode or driver may have brought it."""

UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
DRIVER_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)


class ReadingError(Exception):
    """Base of what ends a reading early.

    ReadingError
    ├── GpuLostError      one GPU is lost; the others go on
    └── DriverError       the driver as a whole cannot be used
    """


class GpuLostError(ReadingError):
    """The GPU is off the bus."""


class DriverError(ReadingError):
    """The driver cannot be used; `absent` where there is none."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        """NVML's error, None where it is none of NVML's."""
        self.absent = code in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


def describe(code: int) -> str:
    """An error of the driver in its own words."""
    try:
        return str(pynvml.NVMLError(code))
    except UnicodeDecodeError:
        return f"NVML error {code}"


class Features:
    """What one GPU can tell. Used by one thread."""

    def __init__(self) -> None:
        self._cycle = 0
        self._supported: set[str] = set()
        self._ask_again: dict[str, int] = {}

    def begin(self) -> bool:
        """A new collection; True where everything is to be asked for again."""
        self._cycle += 1
        return self._cycle % ASK_AGAIN_CYCLES == 0

    def wanted(self, feature: str) -> bool:
        """Whether it is worth a call."""
        return self._ask_again.get(feature, 0) <= self._cycle

    def answered(self, feature: str) -> None:
        """The GPU has it."""
        self._supported.add(feature)
        self._ask_again.pop(feature, None)

    def refused(self, feature: str) -> None:
        """The driver says that the GPU has it not."""
        self._supported.discard(feature)
        self._ask_again[feature] = self._cycle + ASK_AGAIN_CYCLES

    def supported(self) -> tuple[str, ...]:
        """In order of the alphabet; names that begin with _ are one way of several to the same feature."""
        return tuple(sorted(name for name in self._supported if not name.startswith("_")))

    def unsupported(self) -> tuple[str, ...]:
        """In order of the alphabet."""
        return tuple(sorted(name for name in self._ask_again if not name.startswith("_")))
