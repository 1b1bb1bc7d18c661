"""PyTorch's flight recorder, served on a unix socket by PyTorch's own worker server.

The server is a C++ thread: it answers while Python hangs. The agent asks it; nothing is pushed.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

SUFFIX = ".sock"
_SOCKET_PATH_BYTES = 107  # sun_path of sockaddr_un, less its NUL


def reserve_entries(env: MutableMapping[str, str]) -> None:
    """Ask for a ring of 2,000 entries (the usual advice) unless somebody has asked for another size."""
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in env:  # the name before torch 2.8
        env.setdefault("TORCH_FR_BUFFER_SIZE", "2000")


def serve(path: Path) -> Any:
    """A running worker server; raises RuntimeError or OSError where there can be none."""
    from torch._C._distributed_c10d import _WorkerServer

    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        raise OSError(f"socket path {path} is longer than {_SOCKET_PATH_BYTES} bytes")
    path.unlink(missing_ok=True)
    return _WorkerServer(str(path))
