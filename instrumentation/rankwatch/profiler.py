"""Records the steps for which a rank was asked to profile, and keeps the slowest; see `rankwatch.profiling`.

A process loads it only where `--profile-on-slow` is set.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from rankwatch.automatic.patching import Replacement, watch
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import warn
from rankwatch.failures import Failures
from rankwatch.profiling import (
    MOST_BYTES,
    MOST_BYTES_IN_ALL,
    MOST_REQUESTS,
    SUFFIX,
    TRACE_SUFFIX,
    VALID_SECONDS,
    request_path,
)
from rankwatch.steps import Steps

_LOOK_SECONDS = 10.0
_COARSE_SECONDS = 1.0
"""More than the clock of files lags behind."""
_WINDOW_STEPS = 20
_WINDOW_SECONDS = 120.0
_WARM_UP_STEPS = 1
"""Steps in which the profiler starts up, and which are not judged."""


class _Recorded(NamedTuple):
    """A step that was profiled."""

    seconds: float
    step: int
    profiler: Any


class SlowStepProfiler:
    """Serves requests for the traces of one rank. All is done in the training thread, between two steps.

    count: traces to keep for each request. trusted: users whose requests count.
    A failure of the profiler, or one of the user's own that begins to record, ends it for good.
    """

    def __init__(
        self,
        writer: Writer,
        steps: Steps,
        failures: Failures,
        *,
        count: int,
        trusted: Collection[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer, self._steps, self._failures = writer, steps, failures
        self._count = count
        self._trusted = tuple(dict.fromkeys(trusted))
        self._clock = clock
        self._next_look = 0.0
        self._served = time.time() - _COARSE_SECONDS
        """Unix time of the newest request that was served; at first that of the start."""
        self._requests_left = MOST_REQUESTS
        self._recording: tuple[Any, Any, float] | None = None
        """Profiler, annotation of the step, and when it began."""
        self._window: list[_Recorded] | None = None
        self._window_ends = (0, 0.0)
        self._to_write: list[_Recorded] = []
        self._foreign: Replacement | None = None

    def step_ended(self) -> None:
        """Look after each step, and at the end of the run, what is to be recorded or written."""
        if self._window is None and not self._to_write and self._clock() < self._next_look:
            return
        try:
            self._continue()
        except Exception as error:  # noqa: BLE001 - torch's profiler may do anything; training must go on
            self._give_up(error)

    def close(self) -> None:
        """End with the run: write what was recorded."""
        try:
            if self._recording is not None:
                self._stop()
            if self._window is not None:
                self._judge()
            while self._to_write:
                self._write(self._to_write.pop())
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)
        self._requests_left = 0
        if self._foreign is not None:
            self._foreign.undo()

    def _continue(self) -> None:
        if self._window is None and not self._to_write:
            self._next_look = self._clock() + _LOOK_SECONDS
            if self._requests_left and self._requested():
                self._requests_left -= 1
                self._window = []
                self._window_ends = (_WARM_UP_STEPS + _WINDOW_STEPS, self._clock() + _WINDOW_SECONDS)
                self._start()
        elif self._window is not None:
            began = self._recording[2] if self._recording is not None else 0.0
            seconds, profiler = self._clock() - began, self._stop()
            self._window.append(_Recorded(seconds, self._steps.current, profiler))
            self._drop_fast_ones()
            steps_left, ends = self._window_ends
            self._window_ends = steps_left - 1, ends
            if steps_left > 1 and self._clock() < ends:
                self._start()
            else:
                self._judge()
        else:  # one a step, so that no step has to wait for all of them
            self._write(self._to_write.pop())

    def _requested(self) -> bool:
        """Return True if a trusted user has left a request since the last one was served."""
        identity = self._writer.identity
        if identity is None:
            return False
        newest = 0.0
        for user in self._trusted:
            try:
                path = request_path(self._writer.directory, identity.run, identity.rank, user)
                status = self._writer.boxes.status_of(path.name)
            except OSError:
                continue
            if status.st_uid == user:
                newest = max(newest, status.st_mtime)
        if newest <= self._served or newest < time.time() - VALID_SECONDS:
            return False
        self._served = newest
        return True

    def _start(self) -> None:
        torch: Any = sys.modules["torch"]

        if torch.autograd._profiler_enabled():
            raise RuntimeError("the script's own profiler is recording")
        if self._foreign is None:
            self._foreign = watch(torch.autograd.profiler.profile, "_prepare_trace", began=self._others_start)
        profiler = torch.profiler.profile(record_shapes=False, with_stack=False, profile_memory=False)
        step = self._steps.current + 1
        annotation = torch.autograd.profiler.record_function(f"ProfilerStep#{step}")
        # Set first: `start` calls `_others_start`, which has to know its own.
        self._recording = (profiler, annotation, self._clock())
        profiler.start()
        annotation.__enter__()
        self._recording = (profiler, annotation, self._clock())

    def _stop(self) -> Any:
        assert self._recording is not None
        profiler, annotation, _ = self._recording
        self._recording = None
        annotation.__exit__(None, None, None)
        profiler.stop()
        return profiler

    def _others_start(self, starting: Any) -> None:
        """Give way to the script's own profiler, which begins: it would fail beside ours."""
        if self._recording is not None and getattr(self._recording[0], "profiler", None) is not starting:
            self._give_up(RuntimeError("the script's own profiler begins to record"))

    def _drop_fast_ones(self) -> None:
        """Hold no more than what may be kept: each one holds all events of a step."""
        assert self._window is not None
        warm_up, judged = self._window[:_WARM_UP_STEPS], self._window[_WARM_UP_STEPS:]
        judged.sort(key=lambda each: each.seconds, reverse=True)
        self._window = [each._replace(profiler=None) for each in warm_up] + judged[: self._count]

    def _judge(self) -> None:
        assert self._window is not None
        self._to_write, self._window = self._window[_WARM_UP_STEPS:], None
        self._next_look = self._clock() + _LOOK_SECONDS

    def _write(self, recorded: _Recorded) -> None:
        run, traces = self._writer.beside(SUFFIX)
        name = f"rank{self._writer.path.stem}_step{recorded.step:09}{TRACE_SUFFIX}"
        partial = f".partial-{name}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(traces, 0o755, dir_fd=run.fileno())
        with run.folder(traces) as folder:
            try:
                recorded.profiler.export_chrome_trace(folder.path_of(partial))
                size = folder.status_of(partial).st_size
                used = sum(folder.status_of(each).st_size for each in folder.names()) - size
                if size > min(MOST_BYTES, MOST_BYTES_IN_ALL - used):
                    warn("rankwatch keeps no trace of step %d: it has %d bytes", recorded.step, size)
                    return
                os.chmod(partial, 0o644, dir_fd=folder.fileno())  # the agent is another user
                folder.rename(partial, name)
            finally:
                folder.remove(partial)

    def _give_up(self, error: Exception) -> None:
        """Record nothing any more. What runs is stopped, whatever that raises."""
        self._failures.note("profile slow steps", error)
        recording, self._recording = self._recording, None
        self._window, self._to_write = None, []
        self._requests_left, self._next_look = 0, float("inf")
        if recording is not None:
            profiler, annotation, _ = recording
            for end in (lambda: annotation.__exit__(None, None, None), profiler.stop):
                try:
                    end()
                except Exception as also:  # noqa: BLE001 - as above
                    self._failures.note("stop the profiler", also)
