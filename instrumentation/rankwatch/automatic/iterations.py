"""Where one training step ends and the next one begins, in a loop that tells neither.

A step ends with the last optimizer of its iteration. Only what follows shows which one that was, so a step is
closed later, with its true time:

- at the next wait for a batch, unless the loop waits at another place of its code than where the iteration
  began and an optimizer of the loop is missing;
- where an optimizer steps that has stepped in this iteration already;
- where training goes on after each optimizer of the loop has stepped, once one has been seen to repeat;
- where a new optimizer steps without a batch, once one has been seen to repeat: another model is trained.

So Muon and Adam, or the generator and the discriminator of a GAN, make one step, also where each has batches
of its own. Meanwhile the now block shows what is probable: no open step, and a following one as soon as
training goes on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from rankwatch.steps import Steps

_MOST_OPTIMIZERS = 100_000
"""Optimizers that are told apart. A loop may make a new one for each step."""
_LONGEST_ABSENCE = 16
"""Iterations without a step of an optimizer after which it is not waited for: it belongs to another loop of
the script, or seldom steps."""


class _Known(NamedTuple):
    """An optimizer that has stepped."""

    trained: weakref.ref[Any] | None
    iteration: int
    """The last one in which it has."""


class Iterations:
    """The iterations of a training loop, recorded as steps. Optimizers are named by a number of the caller.

    place: where the loop has waited for the first batch.
    ends: called before the record of each step is written, while the step is still the current one.
    """

    def __init__(self, steps: Steps, ends: Callable[[], object], place: Hashable = None) -> None:
        self._steps = steps
        self._ends = ends
        self._open = False
        self._stepped: set[int] = set()
        """Optimizers that have stepped in this iteration."""
        self._known: dict[int, _Known] = {}
        """Optimizers that have stepped in any."""
        self._closed = 0
        """Iterations so far."""
        self._repeats = False
        """An optimizer was seen to step twice without a batch between."""
        self._fetched = False
        """There was a wait for a batch since the last iteration."""
        self._place = place
        """Where the loop has waited for the first batch of this iteration."""
        self._next_place: Hashable = None
        """Where it has waited since, while it is unknown whether that was for the same iteration."""
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
                self._following_since = moment = max(moment, self._ended)
            if self._repeats and self._all_stepped():
                self.close()
            elif undecided:
                self._steps.show_open(moment)
        return not self._open

    def begin(self, moment: float) -> None:
        """An iteration begins at this moment, or where training went on before, but after the last one."""
        self._steps.waiting_since(max(self._ended, min(moment, self._following_since or moment)))
        self._following_since = 0.0
        if self._steps.open:  # Ctrl-C has interrupted `close`, or this method
            self._steps.abandon()
        self._open = True
        self._steps.begin()

    def steps(self, optimizer: int) -> None:
        """This optimizer is about to step."""
        if optimizer in self._stepped:
            self._repeats = True
            self.close()
        elif self._following_since and self._repeats and not self._fetched and not self._is_missed(optimizer):
            self.close()
        elif self._following_since:  # one more of the same iteration
            self._following_since, self._next_place = 0.0, None
            self._steps.show_open()

    def stepped(self, optimizer: int, moment: float, trained: object = None) -> None:
        """It has stepped. trained: once it is gone, the optimizer is not waited for."""
        self._stepped.add(optimizer)
        if optimizer not in self._known and len(self._known) >= _MOST_OPTIMIZERS:
            self._known.clear()
        self._known[optimizer] = _Known(None if trained is None else weakref.ref(trained), self._closed)
        self.extend(moment)

    def extend(self, moment: float) -> None:
        """What ends now belongs to the optimizers that have stepped."""
        self._ended = max(moment, self._ended)
        self._steps.show_ended(self._ended)

    def _all_stepped(self) -> bool:
        """True if each optimizer that the loop needs has stepped in this iteration."""
        for each in [each for each in self._known if each not in self._stepped]:
            if self._is_missed(each):
                return False
            del self._known[each]
        return True

    def _is_missed(self, optimizer: int) -> bool:
        """True if the optimizer has stepped lately, and its parameters are still there."""
        known = self._known.get(optimizer)
        if known is None or self._closed - known.iteration > _LONGEST_ABSENCE:
            return False
        return known.trained is None or known.trained() is not None

    def fetches(self, place: Callable[[], Hashable]) -> bool:
        """The loop waits for a batch, at this place of its code. True if it belongs to an iteration whose
        training has begun before.

        The iteration is over if an optimizer has stepped in it, unless another one is missing and this is
        not the place where iterations begin.
        """
        here = place()
        if self._stepped and here != self._place and not (self._repeats and self._all_stepped()):
            self._next_place = here
            return False
        if self._stepped or not self._fetched:
            self._place = here
        self.close()
        self._fetched = True
        if not self._following_since or self._open:
            return False
        self.begin(self._following_since)
        return True

    def evaluates(self) -> None:
        """An evaluation begins: the iteration is over, unless training has gone on since its last step."""
        if not self._following_since:
            self.close()

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
        self._closed += 1
        self._fetched = self._next_place is not None
        if self._fetched:
            self._place, self._next_place = self._next_place, None
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


class Elsewhere:
    """Steps of optimizers inside of a backward pass or in another thread.

    They are kept until the training thread comes to where they count.
    """

    def __init__(self) -> None:
        self.pending: dict[int, float] = {}
        """Moment of the step by optimizer."""

    def stepped(self, optimizer: int, moment: float) -> None:
        """An optimizer, named as `Iterations` names it, has stepped. Any thread calls this."""
        self.pending[optimizer] = moment

    def count(self, iterations: Iterations | None, moment: float = 0.0) -> None:
        """Count these steps as steps of the loop, ended at this moment or when the last one did. None: a
        framework counts its steps itself."""
        steps, self.pending = self.pending, {}
        if iterations is None:
            return
        for optimizer in steps:
            iterations.steps(optimizer)
            if not iterations.open:
                iterations.begin(moment or steps[optimizer])
        latest = max(steps.values())
        for optimizer in steps:
            iterations.stepped(optimizer, moment or latest)
