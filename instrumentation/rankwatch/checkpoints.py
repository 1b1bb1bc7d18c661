"""Checkpoint operations (save, verify, load) and their stages."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.failures import Failures, guarded
from rankwatch.spans import Span


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
    """One save, verify or load. An exception marks it failed and propagates.

    On the training thread it is also phase `checkpoint`. On another thread (asynchronous checkpoints) it
    does not affect the phases of the step.
    """

    def __init__(self, writer: Writer, failures: Failures, phase: Span, name: str, step: int) -> None:
        self._writer = writer
        self._failures = failures
        on_training_thread = threading.current_thread() is threading.main_thread()
        self._phase: AbstractContextManager[None] = phase if on_training_thread else nullcontext()
        self.name = name
        self.step = step
        self.bytes = 0
        """Size of the checkpoint, set by the caller."""
        self._failed = False
        self._began = 0.0

    def stage(self, name: str) -> Stage:
        """Return a stage, to be used as a context manager."""
        return Stage(self, name)

    def failed(self, reason: str) -> None:
        """Mark the operation failed without an exception."""
        self._failed = True
        self._reason = reason

    @guarded("record a stage of a checkpoint")
    def record_stage(self, name: str, began: float, *, failed: bool) -> None:
        """Record a stage that began at `began`, on the monotonic clock, and ends now."""
        self._write(self._writer.name_number(name), began, time.monotonic(), failed)

    def begin(self) -> CheckpointOperation:
        """Begin the operation."""
        self._phase.__enter__()
        self._began = time.monotonic()
        return self

    def end(self, *, failed: bool = False) -> None:
        """End the operation and record it."""
        self._finish(self._failed or failed)
        self._phase.__exit__(None, None, None)

    def __enter__(self) -> CheckpointOperation:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(failed=kind is not None)

    @guarded("record a checkpoint")
    def _finish(self, failed: bool) -> None:
        ended = time.monotonic()
        self._write(0, self._began, ended, failed)
        if not failed and self.name != "load":
            self._writer.integers[Now.CHECKPOINT_STEP] = self.step
            self._writer.floats[Now.CHECKPOINT_ENDED] = ended

    def _write(self, stage: int, began: float, ended: float, failed: bool) -> None:
        operation = self._writer.name_number(self.name)
        self._writer.append(
            RecordKind.CHECKPOINT,
            operation,
            began,
            ended,
            layout.CHECKPOINT,
            self.bytes,
            self.step,
            stage,
            failed,
        )
