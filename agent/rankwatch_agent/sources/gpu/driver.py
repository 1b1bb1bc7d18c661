"""The driver as the agent uses it: a worker when it is wanted, none when it hangs or is to be released."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from rankwatch.conventions import DriverState
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.gpu.protocol import Answer, Request
from rankwatch_agent.sources.gpu.worker_process import WorkerEndedError, WorkerProcess, WorkerTimeoutError

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
"""Pause after a worker was lost, doubled each time: a driver that hangs is not asked in a tight loop."""
START_SECONDS = 20.0
"""Least deadline of a worker's first answer: without persistence mode the driver initialises every GPU."""
END_SECONDS = 1.5
"""What a worker is given to shut the driver down in order; it may be in the middle of a reading."""
KILL_SECONDS = 0.5

_COLLECT = msgspec.msgpack.encode(Request())


class DriverFacts(NamedTuple):
    """What is known without asking the driver."""

    state: DriverState
    unresponsive: int
    """Calls that did not return in time since the agent started."""
    starts: int
    """Workers started."""
    visible: int
    """GPUs that answered last; 0 in every state but `in_use`."""


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
        self._asking = threading.Lock()  # held during a question: whoever holds it owns the worker
        self._worker: WorkerProcess | None = None
        self._answered_once = False  # by the present worker
        self._unkillable: WorkerProcess | None = None
        self._wanted = True
        self._closed = False
        self._facts = DriverFacts(DriverState.STARTING, 0, 0, 0)
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._not_before = float("-inf")

    def facts(self) -> DriverFacts:
        """State and counts; never waits."""
        return self._facts

    def collect(self, deadline_seconds: float) -> Answer:
        """The worker's answer.

        Raises NotApplicable while the driver is released, CollectError where the worker hangs (it is
        killed), ends, or is not to be asked yet.
        """
        with self._asking:
            if not self._wanted:
                raise NotApplicable("the driver is released; SIGUSR2 makes the agent take it up again")
            worker = self._ready_worker()
            if not self._answered_once:
                deadline_seconds = max(deadline_seconds, self._start_seconds)
            try:
                reply = worker.ask(_COLLECT, deadline_seconds, lambda: self._wanted)
                answer = msgspec.msgpack.decode(reply, type=Answer)
            except WorkerTimeoutError:
                raise self._gave_up(worker, deadline_seconds) from None
            except (WorkerEndedError, msgspec.MsgspecError) as error:
                self._drop(worker)
                self._pause()
                self._note(DriverState.UNAVAILABLE)
                raise CollectError(f"{error}; it is started again") from None
            self._answered(answer)
            return answer

    def release(self) -> None:
        """Let go of the driver, so that it can be unloaded; returns when the worker is gone or given up."""
        self._wanted = False  # a question in progress ends at this
        with self._asking:
            self._end_worker()
            self._note(DriverState.RELEASED)
        logger.info("the GPU driver is released")

    def resume(self) -> None:
        """Take the driver up again at the next collection; one that is not released stays as it is."""
        if self._closed or self._wanted:
            return  # a question in progress may take its whole deadline: nobody waits for it here
        with self._asking:
            self._wanted = True
            self._not_before = float("-inf")
            self._note(DriverState.STARTING)
        logger.info("the GPU driver is taken up again")

    def close(self) -> None:
        """End the worker for good."""
        self._closed = True
        self._wanted = False
        with self._asking:
            self._end_worker()

    def _ready_worker(self) -> WorkerProcess:
        stuck = self._unkillable
        if stuck is not None:
            if not stuck.gone():
                raise CollectError(
                    f"driver unresponsive: worker {stuck.pid} hangs in the kernel and cannot be killed"
                )
            stuck.close()
            self._unkillable = None
        if self._worker is not None and self._worker.gone():  # it leaves when only a new process can go on
            self._drop(self._worker)
        if self._worker is None:
            left = self._not_before - self._monotonic()
            if left > 0:
                raise CollectError(f"{_STATE_TEXT[self._facts.state]}: tried again in {left:.0f} s")
            self._worker, self._answered_once = WorkerProcess(self._command), False
            self._facts = self._facts._replace(starts=self._facts.starts + 1)
        return self._worker

    def _answered(self, answer: Answer) -> None:
        self._answered_once = True
        self._pause_seconds = FIRST_PAUSE_SECONDS
        reading = answer.reading
        if reading is None:
            self._note(DriverState.UNAVAILABLE)
        else:
            self._note(DriverState.IN_USE, visible=sum(gpu.up for gpu in reading.gpus))

    def _gave_up(self, worker: WorkerProcess, deadline_seconds: float) -> CollectError | NotApplicable:
        """Drop a worker that did not answer; the error to raise."""
        if not self._wanted:  # asked to stop meanwhile: no fault of the driver
            return NotApplicable("the driver is being released")
        self._drop(worker)
        self._pause()
        self._facts = self._facts._replace(unresponsive=self._facts.unresponsive + 1)
        self._note(DriverState.UNRESPONSIVE)
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

    def _drop(self, worker: WorkerProcess) -> None:
        self._worker = None
        if worker.gone() or worker.kill(self._kill_seconds):
            worker.close()
        else:
            self._unkillable = worker

    def _pause(self) -> None:
        self._not_before = self._monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    def _note(self, state: DriverState, visible: int = 0) -> None:
        if state is DriverState.IN_USE and self._facts.state is not DriverState.IN_USE:
            logger.info("the GPU driver answers: %d GPUs", visible)
        self._facts = self._facts._replace(state=state, visible=visible)


_STATE_TEXT = {
    DriverState.UNRESPONSIVE: "driver unresponsive",
    DriverState.UNAVAILABLE: "the driver's worker failed",
    DriverState.STARTING: "the driver was not asked yet",
    DriverState.IN_USE: "the driver's worker was lost",
    DriverState.RELEASED: "the driver is released",
}
