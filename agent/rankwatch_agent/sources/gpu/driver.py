"""The NVIDIA driver as the agent uses it: through one worker process at a time.

A driver call can block for ever, and no signal ends it. Only a process can be given up: a worker that misses
its deadline is killed, and the next one starts after a pause.
"""

from __future__ import annotations

import logging
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rankwatch.conventions.states import DriverState
from rankwatch.processes import python
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.gpu.protocol import MAX_MESSAGE_BYTES, Answer, Reading, Request

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
"""Pause after the loss of a worker; it doubles each time, so that a hung driver is not asked in a tight
loop."""
START_SECONDS = 20.0
"""Shortest deadline of a worker's first answer: without persistence mode the driver initialises every GPU."""
END_SECONDS = 1.5
"""Time a worker gets to shut the driver down; it may be in the middle of a reading."""
KILL_SECONDS = 0.5

_POLL_SECONDS = 0.2
"""How often a waiting request checks whether it is still wanted."""
_CHUNK_BYTES = 1 << 18
_LENGTH = struct.Struct(">I")
_COLLECT = msgspec.msgpack.encode(Request())


class DriverStatus(NamedTuple):
    """What is known without asking the driver."""

    state: DriverState
    unresponsive: int
    """Calls that missed their deadline since the agent started."""
    starts: int
    """Workers started."""
    visible: int
    """GPUs in the last answer that are up; 0 in every state but `in_use`."""


class Driver:
    """Asks one worker at a time. Only one thread calls `collect`; any thread may call the rest."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        start_seconds: float = START_SECONDS,
        end_seconds: float = END_SECONDS,
        kill_seconds: float = KILL_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._start_seconds = start_seconds
        self._end_seconds = end_seconds
        self._kill_seconds = kill_seconds
        self._monotonic = monotonic
        self._request_lock = threading.Lock()  # held during a request; its holder owns the worker
        self._worker: _Worker | None = None
        self._answered_once = False  # by the present worker
        self._unkillable: _Worker | None = None
        self._wanted = True
        self._closed = False
        self._status = DriverStatus(DriverState.STARTING, 0, 0, 0)
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._not_before = float("-inf")

    def status(self) -> DriverStatus:
        """State and counts; never waits."""
        return self._status

    def collect(self, deadline_seconds: float) -> Answer:
        """Return the worker's answer.

        Raises NotApplicable while the driver is released. Raises CollectError where the worker hangs (it is
        killed), ends, or may not be asked yet.
        """
        with self._request_lock:
            if not self._wanted:
                raise NotApplicable("the driver is released; SIGUSR2 makes the agent use it again")
            worker = self._ready_worker()
            if not self._answered_once:
                deadline_seconds = max(deadline_seconds, self._start_seconds)
            try:
                reply = worker.request(_COLLECT, deadline_seconds, lambda: self._wanted)
                answer = msgspec.msgpack.decode(reply, type=Answer)
            except _WorkerTimeoutError:
                raise self._give_up(worker, deadline_seconds) from None
            except (_WorkerEndedError, msgspec.MsgspecError) as error:
                self._drop(worker)
                self._pause()
                self._set_state(DriverState.UNAVAILABLE)
                raise CollectError(f"{error}; it will be started again") from None
            self._accept(answer)
            return answer

    def release(self) -> None:
        """Stop using the driver, so that it can be unloaded; returns once the worker is gone or given up."""
        self._wanted = False  # ends a request in progress
        with self._request_lock:
            self._end_worker()
            self._set_state(DriverState.RELEASED)
        logger.info("the GPU driver is released")

    def resume(self) -> None:
        """Use the driver again from the next collection on; does nothing unless it is released."""
        if self._closed or self._wanted:
            return  # a request in progress may take its whole deadline: do not wait for it
        with self._request_lock:
            self._wanted = True
            self._not_before = float("-inf")
            self._set_state(DriverState.STARTING)
        logger.info("the GPU driver is used again")

    def close(self) -> None:
        self._closed = True
        self._wanted = False
        with self._request_lock:
            self._end_worker()

    def _ready_worker(self) -> _Worker:
        stuck = self._unkillable
        if stuck is not None:
            if not stuck.gone():
                raise CollectError(
                    f"driver unresponsive: worker {stuck.pid} hangs in the kernel and cannot be killed"
                )
            stuck.close()
            self._unkillable = None
        if self._worker is not None and self._worker.gone():  # it exits when only a new process can go on
            self._drop(self._worker)
        if self._worker is None:
            left = self._not_before - self._monotonic()
            if left > 0:
                raise CollectError(f"{_STATE_TEXT[self._status.state]}: next try in {left:.0f} s")
            self._worker, self._answered_once = _Worker(self._command), False
            self._status = self._status._replace(starts=self._status.starts + 1)
        return self._worker

    def _accept(self, answer: Answer) -> None:
        self._answered_once = True
        self._pause_seconds = FIRST_PAUSE_SECONDS
        reading = answer.reading
        if reading is None:
            self._set_state(DriverState.UNAVAILABLE)
        else:
            self._set_state(DriverState.IN_USE, visible=sum(gpu.up for gpu in reading.gpus))

    def _give_up(self, worker: _Worker, deadline_seconds: float) -> CollectError | NotApplicable:
        """Drop a worker that did not answer; returns the error to raise."""
        if not self._wanted:  # released meanwhile, which is no fault of the driver
            return NotApplicable("the driver is being released")
        self._drop(worker)
        self._pause()
        self._status = self._status._replace(unresponsive=self._status.unresponsive + 1)
        self._set_state(DriverState.UNRESPONSIVE)
        logger.error(
            "driver unresponsive: no answer within %g s; worker %d was killed, GPU series are left out",
            deadline_seconds,
            worker.pid,
            extra={"event": "driver_unresponsive"},
        )
        return CollectError(f"driver unresponsive: no answer within {deadline_seconds:g} s")

    def _end_worker(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.end(self._end_seconds)
            if not worker.gone():
                logger.warning(
                    "the NVML worker did not shut the driver down within %g s; it is killed",
                    self._end_seconds,
                )
            self._drop(worker)

    def _drop(self, worker: _Worker) -> None:
        self._worker = None
        if worker.gone() or worker.kill(self._kill_seconds):
            worker.close()
        else:
            self._unkillable = worker

    def _pause(self) -> None:
        self._not_before = self._monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    def _set_state(self, state: DriverState, visible: int = 0) -> None:
        if state is DriverState.IN_USE and self._status.state is not DriverState.IN_USE:
            logger.info("the GPU driver answers: %d GPUs", visible)
        self._status = self._status._replace(state=state, visible=visible)


_STATE_TEXT = {
    DriverState.UNRESPONSIVE: "driver unresponsive",
    DriverState.UNAVAILABLE: "the driver's worker failed",
    DriverState.STARTING: "the driver was not asked yet",
    DriverState.IN_USE: "the driver's worker was lost",
    DriverState.RELEASED: "the driver is released",
}


def worker_command(library: Path | None, *, nvlink_per_link: bool = False) -> list[str]:
    """Return the command line that starts a worker."""
    command = python("-m", "rankwatch_agent.sources.gpu.worker")
    command += [] if library is None else ["--library", str(library)]
    return [*command, "--nvlink-per-link"] if nvlink_per_link else command


def read_twice(*, apart_seconds: float, deadline_seconds: float) -> tuple[Reading, Reading, float]:
    """Return two readings by their own worker and the seconds between them, for callers without a `Driver`.

    Raises NotApplicable where there is no driver, CollectError where it fails or misses the deadline.
    """
    ends = time.monotonic() + deadline_seconds
    worker = _Worker(worker_command(None))
    try:
        first, at = _reading(worker, ends), time.monotonic()
        time.sleep(apart_seconds)
        last = _reading(worker, ends)
        return first, last, time.monotonic() - at
    finally:
        worker.kill(KILL_SECONDS)  # its end in order takes longer, and the kernel cleans up
        worker.close()


def _reading(worker: _Worker, ends: float) -> Reading:
    try:
        reply = worker.request(_COLLECT, ends - time.monotonic(), lambda: True)
        answer = msgspec.msgpack.decode(reply, type=Answer)
    except (_WorkerEndedError, _WorkerTimeoutError, msgspec.MsgspecError) as error:
        raise CollectError(f"the GPU driver gives no answer: {error}") from None
    failure = answer.failure
    if failure is not None and failure.absent:
        raise NotApplicable(failure.message)
    if answer.reading is None:
        raise CollectError(f"the GPU driver fails: {'no answer' if failure is None else failure.message}")
    return answer.reading


class _WorkerTimeoutError(CollectError):
    """The worker did not answer in time: a driver call hangs."""


class _WorkerEndedError(CollectError):
    """The worker ended, or its answer breaks the protocol."""


class _Worker:
    """A running worker process. Its methods are called from one thread at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it; raises CollectError where no process can be started."""
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, close_fds=True
            )
        except OSError as error:
            raise CollectError(f"could not start the NVML worker: {error.strerror or error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        os.set_blocking(self._stdin.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, message: bytes, deadline_seconds: float, wanted: Callable[[], bool]) -> bytes:
        """Return the answer to one request.

        Raises _WorkerTimeoutError past the deadline or once it is no longer `wanted`, _WorkerEndedError where
        the worker has ended. The worker cannot be used after either.
        """
        end = time.monotonic() + deadline_seconds
        try:
            os.write(self._stdin.fileno(), _LENGTH.pack(len(message)) + message)
        except OSError:
            raise _WorkerEndedError(f"the NVML worker has ended {self._exit_text()}") from None
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, end, wanted))
        if length > MAX_MESSAGE_BYTES:
            raise _WorkerEndedError(f"the NVML worker announced an answer of {length} bytes")
        return self._read(length, end, wanted)

    def _read(self, size: int, end: float, wanted: Callable[[], bool]) -> bytes:
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        parts = bytearray()
        while len(parts) < size:
            left = end - time.monotonic()
            if left <= 0 or not wanted():
                raise _WorkerTimeoutError("a driver call does not return")
            if not poll.poll(min(left, _POLL_SECONDS) * 1000):
                continue
            read = os.read(self._stdout.fileno(), min(size - len(parts), _CHUNK_BYTES))
            if not read:
                raise _WorkerEndedError(f"the NVML worker ended {self._exit_text()}")
            parts += read
        return bytes(parts)

    def end(self, grace_seconds: float) -> None:
        """Close its input, which makes it shut the driver down and exit. Never raises."""
        self._stdin.close()
        self._wait(grace_seconds)

    def kill(self, grace_seconds: float) -> bool:
        """Kill it; False where it still exists after the grace: in an uninterruptible call (state D)."""
        self._process.kill()
        return self._wait(grace_seconds)

    def gone(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()

    def _wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _exit_text(self) -> str:
        self._wait(1.0)
        code = self._process.returncode
        if code is None:
            return "its output but not itself"
        return f"by signal {-code}" if code < 0 else f"with status {code}"
