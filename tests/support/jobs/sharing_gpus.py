"""Ranks under NCCL on few GPUs. Each gets a host name of its own: else NCCL refuses two ranks on one GPU
("Duplicate GPU detected" in its init.cc). They reach each other through sockets on loopback."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.jobs.launching import environment

_OVER_SOCKETS = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_MNNVL_ENABLE": "0",
}


def require_nccl() -> None:
    """Skips the test where PyTorch has no NCCL or sees no GPU."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.distributed.is_nccl_available():
        pytest.skip("this PyTorch has no NCCL")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")


@contextlib.contextmanager
def ranks_sharing_gpus(
    arguments: Sequence[str], directory: Path, *, ranks: int, **variables: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of Python with these arguments and the environment of torchrun, one per rank; killed at the
    end. LOCAL_RANK is 0: a job takes GPU `RANK % torch.cuda.device_count()`."""
    shared = environment(directory, **_OVER_SOCKETS, **variables, WORLD_SIZE=str(ranks))
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(ranks):
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**shared, "RANK": str(number), "LOCAL_RANK": "0", "NCCL_HOSTID": f"host-{number}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        yield processes
