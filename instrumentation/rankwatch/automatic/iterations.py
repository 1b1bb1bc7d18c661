"""Where one training step ends and the next one begins, in a loop that tells neither.

A step ends with the last optimizer of its iteration. Only what follows shows which one that was, so a step is
closed later, with its true time:

- at the next wait for a batch;
- where an optimizer steps that has stepped in this iteration already;
- where training goes on after each optimizer of the loop has stepped, once one has been seen to repeat.

So Muon and Adam, or the generator and the discriminator of a GAN, make one step. Meanwhile the now block
shows what is probable: no open step, and a following one as soon as training goes on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from rankwatch.steps import Steps

_MOST_OPTIMIZERS = 100_000
"""Optimizers that are told apart. A loop may make a new one for each step."""


class Iterations:
    """The iterations of a training loop, recorded as steps. Optimizers are named by a number of the caller.

    ends: called before the record of each step is written, while the step is still the current one.
    """

    def __init__(self, steps: Steps, ends: Callable[[], object]) -> None:
        self._steps = steps
        self._ends = ends
        self._open = False
        self._stepped: set[int] = set()
        """Optimizers that have stepped in this iteration."""
        self._known: dict[int, weakref.ref[Any] | None] = {}
        """Optimizers that have stepped in any, each with what it trains."""
        self._repeats = False
        self._ended = 0.0
        self._following_since = 0.0
        """When training went on after an optimizer, while it is unknown whether the iteration does too."""

    @property
    def pending(self) -> bool:
        """True from the step of an optimizer until it is known whether it was the last one."""
        return bool(self._stepped)

    @property
    def open(self) -> bool:
        """True while an iteration is under way, or is pending."""
        return self._open

    def trains(self, moment: float) -> bool:
        """Training goes on: forward, backward or an optimizer. True if `begin` must follow."""
        if self._stepped:
            undecided = not self._following_since
            if undecided:
                self._following_since = moment
            if self._repeats and self._all_stepped():
                self.close()
            elif undecided:
                self._steps.show_open(moment)
        return not self._open

    def begin(self, moment: float) -> None:
        """An iteration begins at this moment, or where training went on before."""
        self._steps.waiting_since(min(moment, self._following_since or moment))
        self._following_since = 0.0
        self._open = True
        self._steps.begin()

    def steps(self, optimizer: int) -> None:
        """This optimizer is about to step."""
        if optimizer in self._stepped:
            self._repeats = True
            self.close()
        elif self._following_since:  # one more of the same iteration
            self._following_since = 0.0
            self._steps.show_open()

    def stepped(self, optimizer: int, moment: float, trained: object = None) -> None:
        """It has stepped. trained: once it is gone, the optimizer is not waited for."""
        self._stepped.add(optimizer)
        if optimizer not in self._known:
            if len(self._known) >= _MOST_OPTIMIZERS:
                self._known.clear()
            self._known[optimizer] = None if trained is None else weakref.ref(trained)
        self.extend(moment)

    def extend(self, moment: float) -> None:
        """What ends now belongs to the optimizers that have stepped."""
        self._ended = moment
        self._steps.show_ended(moment)

    def _all_stepped(self) -> bool:
        """True if each optimizer whose parameters are still there has stepped in this iteration."""
        missing = [each for each in self._known if each not in self._stepped]
        for each in missing:
            trained = self._known[each]
            if trained is None or trained() is not None:
                return False
            del self._known[each]
        return True

    def fetches(self) -> None:
        """The loop waits for a batch: the iteration is over if an optimizer has stepped in it."""
        if self._stepped:
            self.close()
            if self._following_since:
                self.begin(self._following_since)

    def abandon(self) -> None:
        """Forget an iteration that has not ended."""
        self._following_since = 0.0
        self._open = False
        self._stepped.clear()
        self._steps.abandon()

    def close(self) -> None:
        """Write the step, if an optimizer has stepped in it."""
        if not self._stepped:
            return
        self._ends()
        self._stepped.clear()
        self._open = False
        if self._steps.open:
            self._steps.end(at=self._ended)
        if self._following_since:
            self._steps.show_open(self._following_since)


def trained_by(optimizer: Any) -> Any:
    """The first parameter of an optimizer, else the optimizer. Its id stands for the optimizer: a loop
    may make new ones for the same parameters again and again."""
    try:
        return optimizer.param_groups[0]["params"][0]
    except (AttributeError, LookupError, TypeError):
        return optimizer
