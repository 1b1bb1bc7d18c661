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

`Waits` keeps the waits for batches, because only what follows shows whether a batch was for training.
`TrainingThread` knows which thread trains: events of the others would tear its steps and phases apart.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any, NamedTuple

from rankwatch.steps import Steps

_MOST_OPTIMIZERS = 100_000
"""Optimizers that are told apart. A loop may make a new one for each step."""
_LONGEST_ABSENCE = 16
"""Iterations without a step of an optimizer after which it is not waited for: it belongs to another loop of
the script, or seldom steps."""
_MOST_WAITS = 64
"""Waits that are kept; beyond, the oldest are dropped. Loops fetch all batches of a step ahead at most."""
_STEPS_TO_TAKE_OVER = 3
"""Optimizer steps of another thread, while the training thread does nothing, after which that one trains."""


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

    def training_goes_on(self, moment: float) -> bool:
        """Note that training goes on: forward, backward or optimizer. True if `begin` must follow."""
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
        """Begin an iteration at this moment, or where training went on before, but after the last one."""
        self._steps.waiting_since(max(self._ended, min(moment, self._following_since or moment)))
        self._following_since = 0.0
        if self._steps.open:  # Ctrl-C has interrupted `close`, or this method
            self._steps.abandon()
        self._open = True
        self._steps.begin()

    def optimizer_begins(self, optimizer: int) -> None:
        """Note that this optimizer is about to step."""
        if optimizer in self._stepped:
            self._repeats = True
            self.close()
        elif self._following_since and self._repeats and not self._fetched and not self._is_missed(optimizer):
            self.close()
        elif self._following_since:  # one more of the same iteration
            self._following_since, self._next_place = 0.0, None
            self._steps.show_open()

    def optimizer_ended(self, optimizer: int, moment: float, trained: object = None) -> None:
        """Note that it has stepped. trained: once it is gone, the optimizer is not waited for."""
        self._stepped.add(optimizer)
        if optimizer not in self._known and len(self._known) >= _MOST_OPTIMIZERS:
            self._known.clear()
        self._known[optimizer] = _Known(None if trained is None else weakref.ref(trained), self._closed)
        self.extend(moment)

    def extend(self, moment: float) -> None:
        """Extend the iteration: what ends now belongs to the optimizers that have stepped."""
        self._ended = max(moment, self._ended)
        self._steps.show_ended(self._ended)

    def _all_stepped(self) -> bool:
        """Return True if each optimizer that the loop needs has stepped in this iteration."""
        for each in [each for each in self._known if each not in self._stepped]:
            if self._is_missed(each):
                return False
            del self._known[each]
        return True

    def _is_missed(self, optimizer: int) -> bool:
        """Return True if the optimizer has stepped lately, and its parameters are still there."""
        known = self._known.get(optimizer)
        if known is None or self._closed - known.iteration > _LONGEST_ABSENCE:
            return False
        return known.trained is None or known.trained() is not None

    def wait_for_batch(self, place: Callable[[], Hashable]) -> bool:
        """Note that the loop waits for a batch, at this place of its code. True if it belongs to an iteration
        whose training has begun before.

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

    def evaluation_begins(self) -> None:
        """Close the iteration for an evaluation, unless training has gone on since its last step."""
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
    """Return the first parameter of an optimizer, else the optimizer. Its id stands for the optimizer: a loop
    may make new ones for the same parameters again and again."""
    try:
        return optimizer.param_groups[0]["params"][0]
    except (AttributeError, LookupError, TypeError):
        return optimizer


class DeferredSteps:
    """Steps of optimizers inside of a backward pass or in another thread.

    They are kept until the training thread comes to where they count.
    """

    def __init__(self) -> None:
        self.pending: dict[int, float] = {}
        """Moment of the step by optimizer."""

    def optimizer_ended(self, optimizer: int, moment: float) -> None:
        """Note a step of an optimizer, named as `Iterations` names it. Any thread calls this."""
        self.pending[optimizer] = moment

    def count(self, iterations: Iterations | None, moment: float = 0.0) -> None:
        """Count these steps as steps of the loop, ended at this moment or when the last one did. None: a
        framework counts its steps itself."""
        steps, self.pending = self.pending, {}
        if iterations is None:
            return
        for optimizer in steps:
            iterations.optimizer_begins(optimizer)
            if not iterations.open:
                iterations.begin(moment or steps[optimizer])
        latest = max(steps.values())
        for optimizer in steps:
            iterations.optimizer_ended(optimizer, moment or latest)


class Wait(NamedTuple):
    """One wait for a batch, on the monotonic clock."""

    began: float
    ended: float
    iterator: weakref.ref[Any] | None
    amounts: dict[str, float]
    """Work of the batch, by unit."""
    exhausted: bool
    """There was no further batch."""

    @property
    def abandoned(self) -> bool:
        """The loop has dropped the iterator, so the batch was only looked at."""
        return self.iterator is not None and self.iterator() is None


class Waits:
    """The waits since training went on last."""

    def __init__(self) -> None:
        self._waits: deque[Wait] = deque(maxlen=_MOST_WAITS)

    def __bool__(self) -> bool:
        return bool(self._waits)

    @property
    def first_began(self) -> float:
        """When the first wait began that counts; 0 without one."""
        return next((each.began for each in self._waits if not each.abandoned), 0.0)

    @property
    def last_began(self) -> float:
        """When the last wait began; 0 without one."""
        return self._waits[-1].began if self._waits else 0.0

    def add(self, began: float, ended: float, iterator: object, amounts: dict[str, float]) -> None:
        """Add the wait for a batch that has come."""
        self._drop_exhausted()
        self._waits.append(Wait(began, ended, _reference(iterator), amounts, False))

    def exhausted(self, began: float, ended: float, iterator: object) -> None:
        """Note that there was no further batch. If training follows at once, the loop fetches a batch ahead;
        if nothing was trained with the batches before, the loop has only read them."""
        reference = _reference(iterator)
        before = len(self._waits)
        self.drop(reference)
        if len(self._waits) == before:
            self._waits.append(Wait(began, ended, reference, {}, True))

    def last_iterator(self) -> weakref.ref[Any] | None:
        """Return the iterator of the last wait."""
        return self._waits[-1].iterator if self._waits else None

    def drop(self, iterator: weakref.ref[Any] | None) -> None:
        """Forget the waits for batches of this iterator: they were not for training."""
        if any(each.iterator is iterator for each in self._waits):
            self._waits = deque(
                [each for each in self._waits if each.iterator is not iterator], maxlen=_MOST_WAITS
            )

    def take(self) -> list[Wait]:
        """Return the waits for training that goes on now. They are forgotten here."""
        taken = [each for each in self._waits if not each.abandoned]
        self._waits.clear()
        return taken

    def clear(self) -> None:
        """Forget all."""
        self._waits.clear()

    def _drop_exhausted(self) -> None:
        if self._waits and self._waits[-1].exhausted:
            self._waits.pop()


def _reference(iterator: object) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(iterator)
    except TypeError:  # a generator of a framework, or none
        return None


class TrainingThread:
    """The thread that trains: the first that runs a backward pass or an optimizer, as long as it lives."""

    def __init__(self) -> None:
        self._ident = 0
        self._thread: threading.Thread | None = None
        self._foreign_steps = 0
        self._foreign_ident = 0

    def is_here(self) -> bool:
        """Return True in the training thread, and in every thread before there is one."""
        return self._ident in (0, threading.get_ident())

    def trains_here(self) -> bool:
        """Return True if this thread trains, from now on if there was none or it is gone."""
        ident = threading.get_ident()
        if ident == self._ident:
            self._foreign_steps = 0
            return True
        if self._thread is None or not self._thread.is_alive():
            self._take(ident)
            return True
        return False

    def stepped_in_other_thread(self) -> bool:
        """Count a step of an optimizer in this other thread. True if this thread trains from now on."""
        ident = threading.get_ident()
        self._foreign_steps = self._foreign_steps + 1 if ident == self._foreign_ident else 1
        self._foreign_ident = ident
        if self._foreign_steps < _STEPS_TO_TAKE_OVER:
            return False
        self._take(ident)
        return True

    def _take(self, ident: int) -> None:
        self._ident, self._foreign_steps = ident, 0
        self._thread = threading.current_thread()


def is_inside_backward() -> bool:
    """Return True if this thread is inside of a backward pass, by its stack: in a hook of a gradient."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "backward" and "torch" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
