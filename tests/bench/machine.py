"""Facts about the machine that a figure means nothing without."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("rankwatch", "torch", "prometheus-client", "opentelemetry-sdk")


def describe_machine(procfs: Path = Path("/proc")) -> dict[str, object]:
    """CPU, load, system and versions, ready for JSON; unknown ones are None."""
    return {
        "cpu_count": os.cpu_count(),
        "cpu_usable": len(os.sched_getaffinity(0)),
        "cpu_model": _cpu_model(procfs / "cpuinfo"),
        "load_1_minute": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _cpu_model(cpuinfo: Path) -> str | None:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
