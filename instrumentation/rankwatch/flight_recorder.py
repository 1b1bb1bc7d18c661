"""PyTorch's flight recorder, served on a unix socket by PyTorch's own worker server.

The server runs on a C++ thread, so it answers even while Python hangs. The agent pulls; nothing is pushed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankwatch.conventions import environment
from rankwatch.untrusted.folders import Folder
from rankwatch.untrusted.peers import connect
from rankwatch.variables import is_on

_SOCKET_PATH_BYTES = 107  # sun_path of sockaddr_un, less its NUL
_CLOSE_SECONDS = 2.0
_WARNING = 1
"""A log level of torch's C++ code; INFO is one less, ERROR one more."""


def reserve_entries(env: MutableMapping[str, str], *, of_all_backends: bool) -> None:
    """Set the size of the ring to 2,000 entries, as is usually advised, unless the user has set a size.

    of_all_backends: True if the recorder of this torch covers all backends. An older torch records NCCL only
    and reads only the older name of the variable. A newer torch reads that name too, but warns about it.
    """
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in env:
        env.setdefault("TORCH_FR_BUFFER_SIZE" if of_all_backends else "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")


def records_all_backends() -> bool:
    """Return True if this torch's flight recorder covers all backends, gloo included: torch 2.8 and later."""
    import torch._C._distributed_c10d as c10d

    return hasattr(c10d, "_dump_fr_trace_json")


def enable_nccl_timing(env: MutableMapping[str, str]) -> None:
    """Make NCCL's process groups time their collectives. They read the variable once, on creation.

    Without timing the flight recorder shows neither when a collective started nor how long it took.

    Timing stays off with a single hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron sets it),
    because its events would end the overlap of communication and computation (pytorch/pytorch#143890). It
    also stays as the user has set it, by PyTorch's own variable or by RANKWATCH_NCCL_TIMING=0.
    """
    wanted = is_on(environment.NCCL_TIMING, env)
    decided = "NCCL_ENABLE_TIMING" in env  # the older name
    if wanted and not decided and env.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip() != "1":
        env.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")


class FlightRecorderServer:
    """A running worker server. Raises RuntimeError or OSError if it cannot be started."""

    def __init__(self, folder: Folder, name: str) -> None:
        import ctypes

        from torch._C._distributed_c10d import _WorkerServer

        path = folder.path_of(name)
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            raise OSError(f"socket path {path} is longer than {_SOCKET_PATH_BYTES} bytes")
        folder.remove(name)
        self._folder, self._name = folder, name
        with _without_warnings():
            self._server = _WorkerServer(path)
        # Never destroyed: its destructor ends the process if its thread was not joined, as in a forked child.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))

    def close(self) -> None:
        """Stop the server, and wait at most two seconds for it, so that the trainer can exit."""
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        self._folder.remove(self._name)

    def _close(self) -> None:
        # A shutdown before the server's thread accepts is lost and never returns (torch 2.13). So one
        # request must be answered first.
        try:
            with connect(self._folder, self._name, os.geteuid(), _CLOSE_SECONDS) as probe:
                probe.sendall(b"GET /handler/ HTTP/1.0\r\n\r\n")
                answered = bool(probe.recv(1))
        except OSError:
            answered = False
        if answered:
            with _without_warnings():
                self._server.shutdown()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Raise torch's log level from WARNING to ERROR meanwhile.

    Otherwise each worker server prints three warnings that it works as it should. Another level is what the
    user asked for, and stays.
    """
    level = _torch_log_level()
    if level is None or level.value != _WARNING:
        yield
        return
    level.value = _WARNING + 1
    try:
        yield
    finally:
        level.value = _WARNING


def _torch_log_level() -> Any:
    """Return the log level of torch's C++ code, a `c_int`; None where torch was built with another logger."""
    import ctypes

    import torch

    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None
