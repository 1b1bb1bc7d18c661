"""PyTorch's flight recorder, served on a unix socket by PyTorch's own worker server.

The server is a C++ thread: it answers while Python hangs. The agent asks it; nothing is pushed.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import MutableMapping
from pathlib import Path

from rankwatch.conventions import environment

SUFFIX = ".sock"
_SOCKET_PATH_BYTES = 107  # sun_path of sockaddr_un, less its NUL
_CLOSE_SECONDS = 2.0


def reserve_entries(env: MutableMapping[str, str], *, of_all_backends: bool) -> None:
    """Ask for a ring of 2,000 entries (the usual advice) unless somebody has asked for another size.

    of_all_backends: whether this torch has the recorder of all backends. An older one has NCCL's alone,
    which knows the variable by its older name only; a newer one takes that too, but warns of it.
    """
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in env:
        env.setdefault("TORCH_FR_BUFFER_SIZE" if of_all_backends else "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")


def records_all_backends() -> bool:
    """Whether this torch's flight recorder is that of all backends, gloo's too: torch 2.8 and later."""
    import torch._C._distributed_c10d as c10d

    return hasattr(c10d, "_dump_fr_trace_json")


def ask_for_timing(env: MutableMapping[str, str]) -> None:
    """Ask NCCL's process groups to time their collectives: without it the flight recorder tells neither
    when one started nor how long it took. They read this once, when they are made.

    Not with one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron sets it): there the events of
    the timing end the overlap of communication and computation (pytorch/pytorch#143890). Not where the
    user has decided, by PyTorch's own variable or by RANKWATCH_NCCL_TIMING=0.
    """
    wanted = env.get(environment.NCCL_TIMING, "1").lower() not in environment.OFF
    decided = "NCCL_ENABLE_TIMING" in env  # the older name
    if wanted and not decided and env.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip() != "1":
        env.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")


class FlightRecorderServer:
    """A running worker server; raises RuntimeError or OSError where there can be none."""

    def __init__(self, path: Path) -> None:
        from torch._C._distributed_c10d import _WorkerServer

        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            raise OSError(f"socket path {path} is longer than {_SOCKET_PATH_BYTES} bytes")
        path.unlink(missing_ok=True)
        self._path = path
        self._server = _WorkerServer(str(path))
        # Never destroyed: its destructor ends the process where its thread still runs, as in a fork.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))

    def close(self) -> None:
        """End the server, but wait for that at most two seconds: the trainer wants to leave."""
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        # A shutdown that comes before the server's thread accepts is lost, and then never returns
        # (torch 2.13): so have one request answered first.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_CLOSE_SECONDS)
            try:
                probe.connect(str(self._path))
                probe.sendall(b"GET /handler/ HTTP/1.0\r\n\r\n")
                answered = bool(probe.recv(1))
            except OSError:
                answered = False
        if answered:
            self._server.shutdown()
