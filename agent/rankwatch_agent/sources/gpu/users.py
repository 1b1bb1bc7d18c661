"""Whose processes are on which GPU: a black box may name any, and the driver knows better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rankwatch_agent.sources.gpu.inventory import GpuIdentity

_MPS = "nvidia-cuda-mps"
"""How the names of NVIDIA's servers begin that compute for processes of other users."""
_MOST_STATUS_BYTES = 1 << 14


def gpu_users(gpus: Iterable[GpuIdentity], procfs: Path) -> Mapping[str, frozenset[int]]:
    """UUID -> the ids of the users whose processes are on a GPU, or on one with this MIG instance.

    A GPU is left out where that cannot be told: no process was seen on it, or one that serves others.
    """
    found: dict[str, frozenset[int]] = {}
    for gpu in gpus:
        processes = [each for each in (_name_and_user(procfs, pid) for pid in gpu.pids) if each is not None]
        if processes and not any(name.startswith(_MPS) for name, _ in processes):
            users = frozenset(user for _, user in processes)
            found |= dict.fromkeys((gpu.uuid, *gpu.mig_uuids), users)
    return found


def _name_and_user(procfs: Path, pid: int) -> tuple[str, int] | None:
    """None where the process has ended, or is hidden."""
    try:
        with (procfs / str(pid) / "status").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MOST_STATUS_BYTES).splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return fields["Name"], int(fields["Uid"].split("\t")[0])
    except (OSError, KeyError, ValueError):
        return None
