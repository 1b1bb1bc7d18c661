"""Training that a framework reports: it knows its steps, batches, loss and evaluations, so none is inferred.

One framework reports at a time. While it does, the patches of torch only add phases and values to its steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rankwatch.automatic import recording
from rankwatch.automatic.values import values
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import DATA_WAIT, EVALUATION, LOSS, Capability
from rankwatch.run import Run


class ReportedTraining:
    """The training of the framework that reports, and the step that it has opened."""

    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self.run = run
        self.step_open = False
        self._waiting_since = 0.0
        """Begin of the first wait for a batch since the last step; 0 for none."""
        self._loss: Any = None
        self._amounts: dict[str, float] = {}

    def begin_step(self, number: int) -> None:
        """Begin a step, with the first wait for a batch since the last one."""
        if self.step_open:
            self.end_step(failed=True)
        if self._waiting_since:
            self.run._steps.waiting_since(self._waiting_since)
        self.run.begin_step(number)
        self.step_open = True

    def end_step(self, *, failed: bool = False) -> None:
        """End the step, if one is open. failed: it was not carried out."""
        self._waiting_since = 0.0
        loss, self._loss = self._loss, None
        amounts, self._amounts = self._amounts, {}
        if not self.step_open:
            return
        if loss is not None and not failed:
            self.run.scalar(LOSS, loss)
        self.run.work(**amounts)
        self.step_open = False
        self.run._steps.end(failed=failed)
        visibility.sees(Capability.STEPS)

    def add_loss(self, value: Any) -> None:
        """Add the loss of a batch. That of the step is their sum, and nobody waits for the device."""
        self._loss = value if self._loss is None else self._loss + value
        visibility.sees(Capability.LOSS)

    def work(self, **amounts: float) -> None:
        """Work of a batch of the step that is open."""
        for unit, amount in amounts.items():
            self._amounts[unit] = self._amounts.get(unit, 0.0) + amount
        if amounts:
            visibility.sees(Capability.WORK)

    def waited(self, began: float) -> None:
        """Take a wait for a batch that has ended."""
        if not self.step_open and not self._waiting_since:
            self._waiting_since = began
        visibility.sees(Capability.DATA_WAIT)

    def forget_waits(self) -> None:
        """Forget the waits so far, for batches that a resume skips: they belong to no step."""
        self._waiting_since = 0.0
        self.run._steps.waiting_since(0.0)

    def release(self) -> None:
        """End the framework's reports. A step that is open was not carried out."""
        global _reported
        self.end_step(failed=True)
        if _reported is self:
            _reported = None
            values.finds_loss = True


_reported: ReportedTraining | None = None
_said = False


def begin(name: str, stop_inferring: Callable[[], object]) -> ReportedTraining | None:
    """Let this framework report, and open the run if need be. None if another one reports, or nothing is
    recorded. stop_inferring: called before it begins, so that no step is inferred any more."""
    global _reported
    if _reported is not None and _reported.name != name:
        _say_second(name, _reported)
        return None
    run = recording.opened()
    if _reported is None and isinstance(run, Run):
        stop_inferring()
        _reported = ReportedTraining(name, run)
        values.finds_loss = False
        values.forget_optimizers()
    return _reported


def is_reported() -> bool:
    """Return True while a framework reports its own steps, batches and loss, or evaluates."""
    return _reported is not None or _evaluation.depth > 0


def _say_second(name: str, reported: ReportedTraining) -> None:
    global _said
    if not _said and reported.run.identity.rank == 0 and sys.stderr is not None:
        _said = True
        print(
            f"rankwatch: {reported.name} trains in this process already, so steps of {name} are not recorded",
            file=sys.stderr,
            flush=True,
        )


class _Nested:
    """Calls of a framework that may contain each other: only the outermost counts."""

    def __init__(self) -> None:
        self.depth = 0
        self.owner: Any = None
        """Whom the outermost call belongs to, as `enter` was told; None if nobody records it."""

    def enter(self, owner: Any) -> bool:
        """Enter a call. True if its beginning is to be recorded."""
        self.depth += 1
        if self.depth > 1:
            return False
        self.owner = owner
        return owner is not None

    def leave(self) -> bool:
        """Leave a call. True if its end is to be recorded."""
        self.depth = max(0, self.depth - 1)
        return self.depth == 0 and self.owner is not None


_fetch = _Nested()
_evaluation = _Nested()


def fetch_began() -> None:
    """Begin a wait of the framework for a training batch."""
    if _fetch.enter(None if _evaluation.depth else _reported):
        _fetch.owner.run.phase(DATA_WAIT).__enter__()


def fetch_ended() -> None:
    """End the wait: the batch is there, or there is none."""
    if _fetch.leave():
        reported = _fetch.owner
        wait = reported.run.phase(DATA_WAIT)
        wait.__exit__(None, None, None)
        reported.waited(wait._began)


def evaluation_began(stop_inferring: Callable[[], object]) -> None:
    """Begin an evaluation of the framework, also outside of a training. Such a call opens no run."""
    if _reported is None:
        stop_inferring()
    if _evaluation.enter(recording.opened() if recording.is_open() else None):
        _evaluation.owner.evaluation().__enter__()


def evaluation_ended() -> None:
    """End the evaluation."""
    if _evaluation.leave():
        _evaluation.owner.phase(EVALUATION).__exit__(None, None, None)
        visibility.sees(Capability.EVALUATION)
