"""Checkpoint operations (save, verify, load, upload) and their stages."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.checkpoint_paths import CheckpointPaths, place_of
from rankwatch.errors import UsageError, shown
from rankwatch.failures import Failures, error_text, guarded
from rankwatch.spans import Span
from rankwatch.steps import as_whole

_MOST_SAVES = 64
"""Saves that are followed at a time: a program may begin and never end them."""


class CheckpointLog:
    """Writes the records of checkpoint operations, with the moments at which they began and ended."""

    def __init__(self, writer: Writer, failures: Failures) -> None:
        self._writer = writer
        self._failures = failures
        self._saves: set[float] = set()
        """When each save began that is under way, monotonic."""
        self._paths = CheckpointPaths(writer)

    @guarded("record the beginning of a checkpoint")
    def began(self, operation: str, moment: float, *, step: int, waited: bool = False) -> None:
        """Record that an operation begins; one that never ends was cut off. Without this call it is unknown
        until its end. waited: training has just waited for the save before it."""
        saves = operation == "save"
        overlaps = saves and (waited or bool(self._saves))
        if len(self._saves) >= _MOST_SAVES:
            self._saves.clear()
        if saves:
            self._saves.add(moment)
        name = self._writer.name_number(operation)
        kind, payload = RecordKind.CHECKPOINT_BEGAN, layout.CHECKPOINT_BEGAN
        self._writer.append(kind, name, moment, moment, payload, self._whole(step, -1), overlaps)

    @guarded("record a stage of a checkpoint")
    def stage(
        self,
        operation: str,
        stage: str,
        began: float,
        ended: float,
        *,
        step: int,
        size: int = 0,
        failed: bool = False,
    ) -> None:
        """Record a stage. Moments are on the monotonic clock. size: bytes of the checkpoint so far."""
        number = self._writer.name_number(stage[: layout.NAME_SIZE])
        self._write(operation, began, ended, size, step, number, failed, 0.0)

    @guarded("record a checkpoint")
    def operation(
        self,
        operation: str,
        began: float,
        ended: float,
        *,
        step: int,
        blocked_seconds: float,
        size: int = 0,
        failed: bool = False,
        beside: bool = False,
        path: object = None,
        error: str = "",
    ) -> None:
        """Record an operation, after its stages.

        blocked_seconds: of the training thread. beside: it ended after training had gone on. path: of the
        checkpoint. error: why it failed, in one line.
        """
        self._saves.discard(began)
        step = self._whole(step, -1)
        outcome = (layout.FAILED_BESIDE if beside else layout.FAILED_BLOCKING) if failed else layout.SUCCEEDED
        self._write(operation, began, ended, size, step, 0, outcome, blocked_seconds)
        if not failed and operation in ("save", "verify"):
            self._writer.integers[Now.CHECKPOINT_STEP] = step
            self._writer.floats[Now.CHECKPOINT_ENDED] = ended
        place = place_of(path)
        if place or error:
            self._paths.add(operation, step, place, ended, failed=failed, error=error)

    @guarded("note the new path of a checkpoint")
    def renamed(self, source: str, target: str) -> None:
        """Follow a file or a folder to its new name; do nothing unless the note has it."""
        self._paths.renamed(source, target)

    @guarded("note the paths of checkpoints")
    def note_paths(self) -> None:
        """Write the note of paths, once the box has its place."""
        self._paths.write()

    def _write(
        self, operation: str, began: float, ended: float, size: int, step: int, *values: float
    ) -> None:
        name = self._writer.name_number(operation)
        numbers = max(0, self._whole(size, 0)), self._whole(step, -1)
        self._writer.append(RecordKind.CHECKPOINT, name, began, ended, layout.CHECKPOINT, *numbers, *values)

    def _whole(self, number: object, otherwise: int) -> int:
        """Return a number that the caller has set. One that is none must not cost the record."""
        if (whole := as_whole(number)) is None:
            self.wrong(f"{shown(number)} is no number of bytes or of a step")
            return otherwise
        return whole

    def wrong(self, message: str) -> None:
        """Count and log wrong use that only shows once an operation ends: it never raises."""
        self._failures.note("follow a checkpoint", UsageError(message))


class Stage(AbstractContextManager[None]):
    """One stage of a checkpoint operation: serialize, write, fsync, ..."""

    def __init__(self, operation: CheckpointOperation, name: str) -> None:
        self._operation = operation
        self._name = name
        self._began = time.monotonic()

    def begin(self) -> Stage:
        """Begin the stage."""
        self._began = time.monotonic()
        return self

    def end(self, *, failed: bool = False) -> None:
        """End the stage and record it."""
        self._operation.record_stage(self._name, self._began, failed=failed)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(failed=kind is not None)


class CheckpointOperation(AbstractContextManager["CheckpointOperation"]):
    """One save, verify, load or upload. An exception marks it failed and propagates.

    On the training thread it is also phase `checkpoint`. On another thread (asynchronous checkpoints) it
    does not affect the phases of the step.
    """

    def __init__(self, log: CheckpointLog, phase: Span, name: str, step: int, path: object = None) -> None:
        self._log = log
        self._blocks = threading.current_thread() is threading.main_thread()
        self._phase: AbstractContextManager[None] = phase if self._blocks else nullcontext()
        self.name = name
        self.step = step
        self.bytes = 0
        """Size of the checkpoint, set by the caller."""
        self.path = path
        """File or folder of the checkpoint, set by the caller."""
        self._failed = False
        self._error = ""
        self._began = 0.0
        self._unblocked: float | None = None
        """When training went on beside the operation."""

    def stage(self, name: str) -> Stage:
        """Return a stage, to be used as a context manager."""
        return Stage(self, name)

    def failed(self, reason: str) -> None:
        """Mark the operation failed without an exception."""
        self._failed = True
        self._error = error_text(reason)

    def record_stage(self, name: str, began: float, *, failed: bool) -> None:
        """Record a stage that began at `began`, on the monotonic clock, and ends now."""
        self._log.stage(
            self.name, name, began, time.monotonic(), step=self.step, size=self.bytes, failed=failed
        )

    def begin(self) -> CheckpointOperation:
        """Begin the operation."""
        self._phase.__enter__()
        self._began = time.monotonic()
        self._log.began(self.name, self._began, step=self.step)
        return self

    def unblock(self) -> None:
        """Let training go on while the operation continues in another thread, which then calls `end`."""
        self._unblocked = time.monotonic()
        self._phase.__exit__(None, None, None)
        self._phase = nullcontext()

    def end(self, *, failed: bool = False) -> None:
        """End the operation and record it."""
        ended = time.monotonic()
        began, self._began = self._began, 0.0
        if not began:
            self._log.wrong(f"the {self.name} has not begun, or has ended already")
            return
        until = ended if self._unblocked is None else self._unblocked
        self._log.operation(
            self.name,
            began,
            ended,
            step=self.step,
            blocked_seconds=until - began if self._blocks else 0.0,
            size=self.bytes,
            failed=self._failed or failed,
            beside=not self._blocks or self._unblocked is not None,
            path=self.path,
            error=self._error,
        )
        self._phase.__exit__(None, None, None)

    def __enter__(self) -> CheckpointOperation:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._error = error_text(error)
        self.end(failed=kind is not None)
