"""Checkpoints of a training loop that reports none: joined from the files that it writes and reads.

All files that the training thread saves between the same two steps are one checkpoint, because they hold the
same state: model, optimizer, scheduler, random numbers, or `best` beside `last`. Its first file must hold
training state (see `rankwatch.automatic.patches.saving`). The time of an operation is from the beginning of
its first file to the end of its last one; it blocks training for the time of its files.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from rankwatch.checkpoint_paths import common_place, moved, place_of
from rankwatch.conventions.vocabulary import CHECKPOINT
from rankwatch.failures import error_text
from rankwatch.run import Run

LOAD, SAVE = "load", "save"
_MOST_EARLY = 64
"""Operations that are kept before the black box is open, for example loads of pretrained weights."""
_MOST_STAGES = 256
"""Of one operation; the first ones are dropped."""
_LONGEST_GAP_SECONDS = 10.0
"""Between two files that are loaded as one checkpoint. Before the first step no step separates them."""


class _Stage(NamedTuple):
    name: str
    began: float
    ended: float
    size: int
    failed: bool


class ObservedOperation:
    """A save or a load that is not recorded yet. Moments are on the monotonic clock."""

    def __init__(self, name: str, step: int, began: float) -> None:
        self.name = name
        self.step = step
        self.began = self.ended = began
        self.blocked_seconds = 0.0
        self.size = 0
        self.failed = False
        self._error = ""
        self.beside = False
        """It ended after training had gone on."""
        self.path = ""
        """Of the whole checkpoint, where somebody knows it; else it is the common one of its files."""
        self._places: deque[str] = deque(maxlen=_MOST_STAGES)
        self.returned = False
        """Of a lasting operation: the call that began it has returned."""
        self.finished = False
        """Of a lasting operation: what it left to the background is done."""
        self._stages: deque[_Stage] = deque(maxlen=_MOST_STAGES)
        self._waits: deque[tuple[str, float]] = deque(maxlen=1)
        """Stage and beginning of the wait of the training thread that is under way."""
        self._unrecorded = [True]

    def stage(self, name: str, began: float, ended: float, *, size: int = 0, failed: bool = False) -> None:
        """Add a stage of this many bytes."""
        self.size += size
        self._stages.append(_Stage(name, began, ended, self.size, failed))

    def raised(self, error: BaseException | str) -> None:
        """Note that a call raised this exception, or one of which only this text is known: why it failed, if
        so. The first one counts, which is nearest to the cause."""
        self._error = self._error or error_text(error)

    def holds(self, file: object) -> None:
        """Note a file of it, which is given by its path, or is open."""
        self._places.append(place_of(file))

    def lies_at(self, path: object) -> None:
        """Note where its file or folder lies. The first call counts."""
        self.path = self.path or place_of(path)

    def renamed(self, source: str, target: str) -> None:
        """Follow a file or a folder to its new name."""
        self.path = moved(self.path, source, target)
        for _ in range(len(self._places)):
            self._places.append(moved(self._places.popleft(), source, target))

    def wait_begins(self, stage: str, moment: float) -> None:
        """Begin a wait of the training thread for what goes on in the background."""
        self._waits.append((stage, moment))

    def wait_ends(self, moment: float) -> None:
        """End the wait: the thread goes on, or what it waits for has ended, whichever calls this first."""
        try:
            stage, began = self._waits.pop()  # atomic
        except IndexError:
            return
        self.blocked_seconds += moment - began
        self.stage(stage, began, moment)

    def record(self, run: Run) -> None:
        """Write the stages and the operation into the black box. Later calls do nothing."""
        try:
            self._unrecorded.pop()  # atomic: a background thread may end it at the same moment
        except IndexError:
            return
        for name, began, ended, size, failed in self._stages:
            run.checkpoint_log.stage(self.name, name, began, ended, step=self.step, size=size, failed=failed)
        run.checkpoint_log.operation(
            self.name,
            self.began,
            self.ended,
            step=self.step,
            blocked_seconds=self.blocked_seconds,
            size=self.size,
            failed=self.failed,
            beside=self.beside,
            path=self.path or common_place(self._places.copy()),
            error=self._error if self.failed else "",
        )


class Part:
    """A call that is part of an operation: the write of one file, or a whole save of a library."""

    def __init__(self, operation: ObservedOperation, began: float) -> None:
        self.operation = operation
        self.began = began
        self.outer: Part | None = None
        """The call of this thread that made this one."""
        self.phase: AbstractContextManager[None] = nullcontext()
        self.blocks = False
        self.lasting = False

    def lies_at(self, path: object) -> None:
        """Note where its file or folder lies: that of the operation, unless another call made this one."""
        (self.operation.holds if self.outer else self.operation.lies_at)(path)


class Checkpoints:
    """The checkpoint operations of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._run: Run | None = None
        self._joining: ObservedOperation | None = None
        """The operation of this pause between steps; more files may follow."""
        self._waited_at: int | None = None
        """Step after which training has waited for a save that began before that step."""
        self._early: deque[ObservedOperation] = deque(maxlen=_MOST_EARLY)
        self._thread = threading.local()
        self.waiting = False
        """True while `settle` has something to do."""
        self._pause: Callable[[], object] | None = None

    def attach(self, run: Run) -> None:
        """Record into this run from now on, also what was loaded before it began."""
        self._run = run
        run.after_steps(self.settle)
        run.when_ended(self._detach)
        self.settle()

    def pause_before(self, pause: Callable[[], object]) -> None:
        """Have this called when the training thread begins an operation: whatever is timed ends before."""
        self._pause = pause

    def _pause_loop(self) -> None:
        if self._pause is not None:
            self._pause()

    def _detach(self) -> None:
        self._run = None

    def begin(self, name: str, *, lasting: bool = False) -> Part:
        """Begin a call that saves or loads training state. lasting: its operation goes on in the background
        when it returns, until `finish`."""
        outer: Part | None = getattr(self._thread, "part", None)
        if outer is not None:
            part = Part(outer.operation, self.clock())
            part.outer = outer
        elif not _on_training_thread():
            now = self.clock()
            part = Part(self._begun(name, now), now)
            part.operation.beside = True
        else:
            self._pause_loop()
            now = self.clock()
            part = Part(self._begun(name, now) if lasting else self._joined(name, now), now)
            part.blocks, part.lasting = True, lasting
            if self._run is not None:
                part.phase = self._run.phase(CHECKPOINT)
                part.phase.__enter__()
        self._thread.part = part
        return part

    def end(
        self,
        part: Part,
        *,
        stage: str = "",
        size: int = 0,
        error: BaseException | None = None,
        failed: bool = False,
    ) -> None:
        """End a call. stage: what it was, if it is to be recorded as a stage of this many bytes. error: what
        it raised. failed: it has failed, and what it raised is not known."""
        self._thread.part = part.outer
        operation, now = part.operation, self.clock()
        if error is not None:
            operation.raised(error)
            failed = True
        if stage:
            operation.stage(stage, part.began, now, size=size, failed=failed)
        if part.outer is not None:
            return
        part.phase.__exit__(None, None, None)
        self._extend(operation, part.began, now, blocks=part.blocks, failed=failed)
        if part.lasting:
            operation.returned = True
            if operation.finished:
                self._record(operation)
        elif operation is not self._joining and not part.blocks:
            self._record(operation)

    def took(
        self,
        name: str,
        began: float,
        file: object,
        *,
        stage: str,
        size: int = 0,
        error: BaseException | None = None,
    ) -> None:
        """Record a call that has just ended, and was then seen to be part of an operation. It had this file,
        and raised this error."""
        now, failed = self.clock(), error is not None
        current, blocks = self.current(), _on_training_thread()
        operation = current or (self._joined(name, began) if blocks else self._new(name, began))
        operation.holds(file)
        operation.stage(stage, began, now, size=size, failed=failed)
        if error is not None:
            operation.raised(error)
        if current is not None:
            return
        self._extend(operation, began, now, blocks=blocks, failed=failed)
        if blocks and self._run is not None:
            self._run.record_phase(CHECKPOINT, began, now)
        if not blocks:
            self._record(operation)

    def joins(self, name: str) -> bool:
        """Return True if a file that this thread writes now is part of an operation."""
        if self.current() is not None:
            return True
        return self._joining is not None and self._joining.name == name and _on_training_thread()

    def renamed(self, source: object, target: object) -> None:
        """Follow a file or a folder that the script has renamed: perhaps one of a checkpoint."""
        operation = self.current() or (self._joining if _on_training_thread() else None)
        if operation is None and self._run is None:
            return
        old, new = place_of(source), place_of(target)
        if not old or not new:
            return
        if operation is not None:
            operation.renamed(old, new)
        if self._run is not None:
            self._run.checkpoint_log.renamed(old, new)

    def finish(
        self, operation: ObservedOperation, *, error: BaseException | None = None, failed: bool = False
    ) -> None:
        """End a lasting operation, in any thread; `end` says the rest. Later calls do nothing."""
        if operation.finished:
            return
        if error is not None:
            operation.raised(error)
            failed = True
        operation.ended = self.clock()
        operation.wait_ends(operation.ended)
        operation.failed |= failed
        operation.beside = operation.returned
        operation.finished = True
        if operation.returned:
            self._record(operation)

    def wait_begins(self, operation: ObservedOperation, stage: str) -> AbstractContextManager[None] | None:
        """Begin a thread's wait for a lasting operation. Returns what `wait_ends` needs; None if it does not
        hold training up, or what it is part of counts as blocking already."""
        if not _on_training_thread() or self.current() is not None or operation.finished:
            return None
        self._pause_loop()
        phase = nullcontext() if self._run is None else self._run.phase(CHECKPOINT)
        phase.__enter__()
        if self._run is not None and self._run.current_step > operation.step:
            self._waited_at = self._run.current_step
        operation.wait_begins(stage, self.clock())
        return phase

    def wait_ends(
        self, operation: ObservedOperation, phase: AbstractContextManager[None] | None, *, finishes: bool
    ) -> None:
        """End what `wait_begins` began. finishes: the operation has ended, so that `finish` counts the
        wait."""
        if phase is not None:
            phase.__exit__(None, None, None)
            if not finishes:
                operation.wait_ends(self.clock())

    @contextmanager
    def operation(self, name: str) -> Iterator[ObservedOperation]:
        """Hold what a framework does as one checkpoint. Calls inside it become its stages."""
        part = self.begin(name)
        try:
            yield part.operation
        except BaseException as error:
            self.end(part, error=error)
            raise
        self.end(part)

    def settle(self) -> None:
        """Note that training goes on: the files of the pause are complete. Does nothing unless `waiting`."""
        if not self.waiting:
            return
        if self._run is not None:
            while self._early:
                self._early.popleft().record(self._run)
            self.waiting = False
        operation, self._joining = self._joining, None
        if operation is not None:
            self._record(operation)

    def current(self) -> ObservedOperation | None:
        """Return the operation that this thread works for."""
        part: Part | None = getattr(self._thread, "part", None)
        return None if part is None else part.operation

    def _new(self, name: str, now: float) -> ObservedOperation:
        return ObservedOperation(name, -1 if self._run is None else self._run.current_step, now)

    def _joined(self, name: str, began: float) -> ObservedOperation:
        """Return the operation of this pause, or a new one."""
        found = self._joining
        if found is not None and (
            found.name != name or (name == LOAD and began - found.ended > _LONGEST_GAP_SECONDS)
        ):
            self.waiting = True
            self.settle()
        if self._joining is None:
            self._joining = self._begun(name, began)
        return self._joining

    def _begun(self, name: str, now: float) -> ObservedOperation:
        operation = self._new(name, now)
        if self._run is not None:
            waited = name == SAVE and self._waited_at == operation.step
            self._run.checkpoint_log.began(name, now, step=operation.step, waited=waited)
        return operation

    def _extend(
        self, operation: ObservedOperation, began: float, ended: float, *, blocks: bool, failed: bool
    ) -> None:
        operation.ended = max(operation.ended, ended)
        operation.failed |= failed
        if blocks:
            operation.blocked_seconds += ended - began
        if operation is self._joining:
            self.waiting = True
            if failed:
                self.settle()

    def _record(self, operation: ObservedOperation) -> None:
        if self._run is not None:
            operation.record(self._run)
        else:
            self._early.append(operation)
            self.waiting = True


def _on_training_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


checkpoints = Checkpoints()
"""Those of this process."""
