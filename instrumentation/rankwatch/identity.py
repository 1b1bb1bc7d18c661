"""The identity of this process: run id, rank, world size, local rank and host.

Explicit arguments come first, then the environment of torchrun, then that of SLURM. Without any of them the
process is rank 0 of 1. Every rank derives the same run id by itself, without communication.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankwatch.conventions import environment
from rankwatch.errors import IdentityError

_RUN_BYTES = 100
_RUN_CLASS_BYTES = 32
_UNSAFE = re.compile(r"[^A-Za-z0-9._=@:+-]")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One rank of one run."""

    run: str
    """Run id, the same on all ranks. A safe directory name of at most 100 bytes."""
    rank: int = 0
    """Global rank, 0 <= rank < world_size."""
    world_size: int = 1
    local_rank: int = 0
    """Rank within the node; usually the index of the GPU."""
    host: str = ""
    coordinates: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Position in each parallel dimension: name -> (index, size), e.g. {"dp": (3, 8), "pp": (0, 2)}."""

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise IdentityError(f"rank {self.rank} does not fit a world of {self.world_size}")
        if self.local_rank < 0:
            raise IdentityError(f"local rank {self.local_rank} is negative")
        for name, (index, size) in self.coordinates.items():
            if not 0 <= index < size:
                raise IdentityError(f"coordinate {name}: index {index} does not fit size {size}")


def find_identity(
    env: Mapping[str, str],
    *,
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    host: str | None = None,
    coordinates: Mapping[str, tuple[int, int]] | None = None,
) -> Identity:
    """Return the identity of this process. Raises IdentityError if the values contradict each other."""
    found_rank = _first(rank, env, "RANK", "SLURM_PROCID", default=0)
    return Identity(
        run=_safe(run or _find_run(env)),
        rank=found_rank,
        world_size=_first(world_size, env, "WORLD_SIZE", "SLURM_NTASKS", default=max(1, found_rank + 1)),
        local_rank=_first(local_rank, env, "LOCAL_RANK", "SLURM_LOCALID", default=0),
        host=host or socket.gethostname(),
        coordinates=dict(coordinates or {}),
    )


def as_run_class(text: str) -> str:
    """The class of a run as a label value of at most 32 characters."""
    return _UNSAFE.sub("_", text)[:_RUN_CLASS_BYTES]


def _first(given: int | None, env: Mapping[str, str], *names: str, default: int) -> int:
    if given is not None:
        return given
    for name in names:
        if text := env.get(name):
            try:
                return int(text)
            except ValueError:
                raise IdentityError(f"{name} is {text!r}, expected a whole number") from None
    return default


def _find_run(env: Mapping[str, str]) -> str:
    if run := env.get(environment.RUN):
        return run
    run = env.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":  # torchrun without --rdzv-id sets "none"
        return run
    if slurm := env.get("SLURM_JOB_ID"):
        return f"slurm-{slurm}"
    script = _script()
    if address := env.get("MASTER_ADDR"):
        return f"{script}-{address}-{env.get('MASTER_PORT', '')}"
    return f"{script}-{os.getpid()}"


def _script() -> str:
    """Name of the program: the module of `python -m`, else the file."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(sys.argv[0] if sys.argv else "").stem or "python"


def _safe(run: str) -> str:
    """Return the run id as one path component that is printable everywhere."""
    name = _UNSAFE.sub("_", run)[:_RUN_BYTES].lstrip(".")
    if not name:
        raise IdentityError(f"run id {run!r} has no usable character")
    return name
