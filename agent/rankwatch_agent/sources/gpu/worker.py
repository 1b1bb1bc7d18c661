"""The NVML worker: the only process that calls the driver, so that a call that hangs can be killed.

    python -m rankwatch_agent.sources.gpu.worker [--library PATH] [--nvlink-per-link]

It reads requests from standard input and writes answers to standard output (see `protocol`).
It imports little, because its memory comes on top of the agent's.
"""

from __future__ import annotations

import os
import queue
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from rankwatch_agent.sources.gpu.protocol import MAX_MESSAGE_BYTES, Answer, Failure, Request
from rankwatch_agent.sources.gpu.reading.node import NodeReader

CALL_SECONDS = 2.0
"""Time that a reading in progress gets after the end of input."""
SHUTDOWN_SECONDS = 2.0
"""Time that the shutdown of the driver gets after that."""
_LENGTH = struct.Struct(">I")
_USAGE = "usage: python -m rankwatch_agent.sources.gpu.worker [--library PATH] [--nvlink-per-link]"


class Requests:
    """Standard input, read by a thread of its own, which sees the end of input while the driver hangs."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._received: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._closing = threading.Event()
        self.status = 0
        """Exit status: 1 where the input was not a request."""
        threading.Thread(target=self._receive, name="requests", daemon=True).start()

    def next(self) -> Request | None:
        """Return the next request; None at the end of input."""
        request = self._received.get()
        if request is None or self._ended.is_set():  # nobody waits for older requests any more
            self._closing.set()
            return None
        return request

    def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(Request)
        try:
            while (message := self._message()) is not None:
                self._received.put(decoder.decode(message))
        except (msgspec.MsgspecError, OSError) as error:
            print(f"rankwatch NVML worker: not a request: {error}", file=sys.stderr, flush=True)
            self.status = 1
        self._ended.set()
        self._received.put(None)
        # The process ends even if a driver call hangs: ctypes lets this thread run during a call.
        if self._closing.wait(CALL_SECONDS):
            time.sleep(SHUTDOWN_SECONDS)
        os._exit(self.status)

    def _message(self) -> bytes | None:
        head = self._stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > MAX_MESSAGE_BYTES:
            raise msgspec.DecodeError(f"{length} bytes were announced")
        message = self._stream.read(length)
        return message if len(message) == length else None


def serve(requests: Requests, answers: BinaryIO, reader: NodeReader) -> None:
    """Answer until the end of input, or until a new process is needed."""
    encoder = msgspec.msgpack.Encoder()
    while requests.next() is not None:
        message = encoder.encode(reader.read())
        if len(message) > MAX_MESSAGE_BYTES:
            failure = Failure(message=f"the reading has {len(message)} bytes, too many to send")
            message = encoder.encode(Answer(failure=failure))
        try:
            answers.write(_LENGTH.pack(len(message)) + message)
            answers.flush()
        except OSError:
            return  # the agent is gone
        if reader.needs_new_process:
            return


class Options(NamedTuple):
    library: Path | None = None
    nvlink_per_link: bool = False


def parse_options(arguments: Sequence[str]) -> Options:
    """Parse the arguments; raises ValueError for others. argparse would cost 1 MiB."""
    match list(arguments):
        case []:
            return Options()
        case ["--nvlink-per-link"]:
            return Options(nvlink_per_link=True)
        case ["--library", path, *rest] if path:
            return parse_options(rest)._replace(library=Path(path))
        case _:
            raise ValueError(_USAGE)


def main(arguments: Sequence[str]) -> int:
    """Run the worker; returns its exit status."""
    try:
        options = parse_options(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the worker too, but the agent ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    requests = Requests(os.fdopen(0, "rb"))
    reader = NodeReader(library=options.library, nvlink_per_link=options.nvlink_per_link)
    serve(requests, answers, reader)
    reader.close()
    os._exit(requests.status)  # an ordinary exit would wait for a thread that hangs in the driver


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
