"""A framework that leads: it knows its steps, batches, loss and evaluations, so nothing of them is guessed.

One framework leads at a time. While it does, the seams of torch only add phases and values to its steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rankwatch.automatic import recording
from rankwatch.automatic.values import values
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions import DATA_WAIT, EVALUATION, LOSS, Capability
from rankwatch.run import Run


class Lead:
    """The framework that leads, and the step that it has opened."""

    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self.run = run
        self.step_open = False
        self._waiting_since = 0.0
        """Begin of the first wait for a batch since the last step; 0 for none."""
        self._loss: Any = None
        self._amounts: dict[str, float] = {}

    def target(self, steps: int) -> None:
        """The number of steps that the framework wants to reach."""
        self.run.target(steps)

    def resumed(self, step: int) -> None:
        """The framework goes on from a checkpoint of this step."""
        self.run.resumed(step)

    def begin_step(self, number: int) -> None:
        """A step begins, with the first wait for a batch since the last one."""
        if self.step_open:
            self.end_step(failed=True)
        if self._waiting_since:
            self.run._steps.waiting_since(self._waiting_since)
        self.run.begin_step(number)
        self.step_open = True

    def end_step(self, *, failed: bool = False) -> None:
        """The step ends, if one is open. failed: it was not carried out."""
        self._waiting_since = 0.0
        loss, self._loss = self._loss, None
        amounts, self._amounts = self._amounts, {}
        if not self.step_open:
            return
        if loss is not None:
            self.run.scalar(LOSS, loss)
        self.run.work(**amounts)
        self.step_open = False
        self.run._steps.end(failed=failed)
        visibility.sees(Capability.STEPS)

    def loss(self, value: Any) -> None:
        """The loss of the step that is open."""
        self._loss = value
        visibility.sees(Capability.LOSS)

    def work(self, **amounts: float) -> None:
        """Work of a batch of the step that is open."""
        for unit, amount in amounts.items():
            self._amounts[unit] = self._amounts.get(unit, 0.0) + amount
        if amounts:
            visibility.sees(Capability.WORK)

    def waited(self, began: float) -> None:
        """A wait for a batch has ended."""
        if not self.step_open and not self._waiting_since:
            self._waiting_since = began
        visibility.sees(Capability.DATA_WAIT)

    def forget_waits(self) -> None:
        """The waits so far were for batches that a resume skips: they belong to no step."""
        self._waiting_since = 0.0
        self.run._steps.waiting_since(0.0)

    def release(self) -> None:
        """The framework leads no more. A step that is open was not carried out."""
        global _lead
        self.end_step(failed=True)
        if _lead is self:
            _lead = None
            values.finds_loss = True


_lead: Lead | None = None


def _nothing() -> None: ...


give_way: Callable[[], object] = _nothing
"""Called before a framework begins to lead, so that guesses about steps end. `rankwatch.automatic.loop` sets
it."""
_said = False


def lead(name: str) -> Lead | None:
    """Let this framework lead, and open the run if need be. None if another one leads, or nothing is
    recorded."""
    global _lead
    if _lead is not None and _lead.name != name:
        _say_second(name, _lead)
        return None
    run = recording.opened()
    if _lead is None and isinstance(run, Run):
        give_way()
        _lead = Lead(name, run)
        values.finds_loss = False
        values.forget_optimizers()
    return _lead


def leads() -> bool:
    """True while a framework knows its steps, batches and loss itself: it leads, or evaluates."""
    return _lead is not None or _evaluation.depth > 0


def _say_second(name: str, leading: Lead) -> None:
    global _said
    if not _said and leading.run.identity.rank == 0 and sys.stderr is not None:
        _said = True
        print(
            f"rankwatch: {leading.name} trains in this process already, so steps of {name} are not recorded",
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
        """A call begins. True if its beginning is to be recorded."""
        self.depth += 1
        if self.depth > 1:
            return False
        self.owner = owner
        return owner is not None

    def leave(self) -> bool:
        """A call ends. True if its end is to be recorded."""
        self.depth = max(0, self.depth - 1)
        return self.depth == 0 and self.owner is not None


_fetch = _Nested()
_evaluation = _Nested()


def fetch_began() -> None:
    """The framework asks its loader for a training batch."""
    if _fetch.enter(None if _evaluation.depth else _lead):
        _fetch.owner.run.phase(DATA_WAIT).__enter__()


def fetch_ended() -> None:
    """The batch is there, or there is none."""
    if _fetch.leave():
        lead = _fetch.owner
        wait = lead.run.phase(DATA_WAIT)
        wait.__exit__(None, None, None)
        lead.waited(wait._began)


def evaluation_began() -> None:
    """The framework begins to evaluate, also outside of a training. Such a call opens no run."""
    if _lead is None:
        give_way()
    if _evaluation.enter(recording.opened() if recording.is_open() else None):
        _evaluation.owner.evaluation().__enter__()


def evaluation_ended() -> None:
    """The evaluation is over."""
    if _evaluation.leave():
        _evaluation.owner.phase(EVALUATION).__exit__(None, None, None)
        visibility.sees(Capability.EVALUATION)
