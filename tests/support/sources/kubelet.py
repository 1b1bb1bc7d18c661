"""A kubelet for tests: a real gRPC server on a unix socket, and the wire form of its answers.

The bytes are put together by hand, so that a wrong field number in the agent cannot go unnoticed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc


def text(number: int, value: str | bytes) -> bytes:
    """A field of strings, bytes or messages."""
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(raw)) + raw


def number(field: int, value: int) -> bytes:
    """A field of whole numbers."""
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    raw = bytearray()
    while value > 0x7F:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    raw.append(value)
    return bytes(raw)


def devices(resource: str, *ids: str) -> bytes:
    """Devices of a device plugin, on NUMA node 1."""
    topology = text(1, number(1, 1))
    return text(2, text(1, resource) + b"".join(text(2, each) for each in ids) + text(3, topology))


def claim(device: str = "", *, driver: str = "gpu.nvidia.com", cdi: Iterable[str] = ()) -> bytes:
    """A device claimed by Dynamic Resource Allocation."""
    resource = b"".join(text(1, text(1, each)) for each in cdi)
    resource += text(2, driver) + text(3, "node-a") + text(4, device)
    return text(5, text(2, "claim") + text(3, "team") + text(4, resource))


def pod(name: str, *parts: bytes, namespace: str = "team", container: str = "main") -> bytes:
    """A pod with one container, which also has exclusive processors and huge pages."""
    others = number(3, 7) + text(4, text(1, "hugepages-2Mi") + number(2, 1 << 21))
    resources = text(1, container) + b"".join(parts) + others
    return text(1, text(1, name) + text(2, namespace) + text(3, resources))


class Kubelet:
    """Answers `List` with `answer` or `error`, or not at all while it `hangs`."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.answer = b""
        self.error: grpc.StatusCode | None = None
        self.calls = 0
        self._released = threading.Event()
        self._released.set()
        self._server: Any = None

    def start(self) -> None:
        """Listens on the socket."""
        handler = grpc.unary_unary_rpc_method_handler(self._list)
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=2),
            handlers=(grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),),
        )
        assert self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """Stops listening and releases hung calls."""
        self._released.set()
        self._server.stop(None).wait()
        self.socket.unlink(missing_ok=True)

    def restart(self) -> None:
        """Restarts with a new socket of the same name."""
        self.stop()
        self.start()

    def hang(self) -> None:
        """Stops answering."""
        self._released.clear()

    def answer_again(self) -> None:
        """Releases hung calls and answers again."""
        self._released.set()

    def _list(self, request: bytes, context: Any) -> bytes:
        self.calls += 1
        self._released.wait()
        if self.error is not None:
            context.abort(self.error, "as the test wants it")
        return self.answer


@contextmanager
def kubelet(directory: Path) -> Iterator[Kubelet]:
    """Runs a kubelet that listens below the directory."""
    running = Kubelet(directory / "kubelet.sock")
    running.start()
    try:
        yield running
    finally:
        running.stop()
