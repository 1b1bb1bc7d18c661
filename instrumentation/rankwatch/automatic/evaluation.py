"""Evaluations of a training loop that reports none: forward passes without gradient that belong to no step.

One evaluation lasts from the first of these passes, with the wait for its batch, to the end of the last one
before training goes on or a checkpoint begins; sampling and generation look the same. A forward pass without
gradient belongs to an evaluation

- if its module is in evaluation mode and has been trained, or shares its parameters with one that was, or
- if the loop fetches another batch, saves a checkpoint or ends without having trained on the first one.

Others belong to the step: the generator of a GAN under `no_grad`, or a teacher.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import EVALUATION, Capability
from rankwatch.run import Run

_MOST_EARLY = 16
"""Evaluations that are kept until the run is open."""


class Evaluation:
    """The evaluations of this process. Only the training thread calls it.

    Those before the run is open, such as a check before the first step, are recorded once it is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._run: Run | None = None
        self._early: deque[tuple[float, float]] = deque(maxlen=_MOST_EARLY)
        self._clock = clock
        self._steps = 0
        """That have ended."""
        self._began = 0.0
        """Of the open evaluation; 0 while none is open."""
        self._candidate = 0.0
        """Begin of a forward pass without gradient that may turn out to be an evaluation."""
        self._candidate_module: weakref.ref[Any] | None = None
        """Its module, if that was in evaluation mode."""
        self._last = 0.0
        """End of the last forward pass without gradient."""
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._latest: Callable[[], Any] = lambda: None
        """Returns the module that trained last: looking into the set costs more."""
        self._parameters: set[int] = set()
        """Ids of the parameters that were trained."""

    def attach(self, run: Run) -> None:
        """Record into this run from now on, also what was evaluated before."""
        self._run = run
        visibility.sees(Capability.EVALUATION)
        while self._early:
            run.record_phase(EVALUATION, *self._early.popleft())
        if self.open:
            run.show_phase(EVALUATION, self._began)
        run.after_steps(self._run_may_end)

    @property
    def open(self) -> bool:
        """True from the first forward pass of an evaluation to its end."""
        return self._began > 0.0

    @property
    def waiting(self) -> bool:
        """True while `training_goes_on` and `pause` have something to do."""
        return self._began > 0.0 or self._candidate > 0.0

    def forward_began(self, module: Any, since: float = 0.0) -> bool:
        """Begin a root module without gradient; True in an evaluation. since: when the fetch of its batch
        began.

        True if it is known to be an evaluation.
        """
        if self.open:
            return True
        began = self._candidate or since or self._clock()
        if not module.training and self._was_trained(module):
            self._begin(began)
        elif not self._candidate:
            self._candidate = began
            self._candidate_module = None if module.training else weakref.ref(module)
        return self.open

    def forward_ended(self) -> None:
        """End the root module of `forward_began`."""
        self._last = self._clock()

    def fetched(self) -> None:
        """Take a fetched batch. What was a candidate trained on none, so it was an evaluation."""
        if self._candidate:
            self._begin(self._candidate)

    def training_goes_on(self, module: Any = None) -> None:
        """Note that training goes on: a forward pass of this module with gradient, backward, an optimizer."""
        if module is not None and module is not self._latest():
            self._learn(module)
        if self._candidate:
            found = None if self._candidate_module is None else self._candidate_module()
            if found is not None and self._was_trained(found):
                self._begin(self._candidate)  # the first evaluation of all, before anything was trained
        self._end()

    def pause(self) -> None:
        """Pause for a checkpoint or the end of the run: no training follows at once."""
        if self._candidate:
            self._begin(self._candidate)
        self._end()

    def _run_may_end(self) -> None:
        """Pause at the end of the run. Called after each step, too: that of a step may be decided, and
        written, only when the evaluation has begun."""
        assert self._run is not None
        steps = self._run.steps_completed
        if steps == self._steps:
            self.pause()
        self._steps = steps

    def _begin(self, began: float) -> None:
        self._candidate, self._began = 0.0, began
        if self._run is not None:
            self._run.show_phase(EVALUATION, began)

    def _end(self) -> None:
        if self.open:
            phase = (self._began, max(self._began, self._last))
            if self._run is not None:
                self._run.record_phase(EVALUATION, *phase)
            else:
                self._early.append(phase)
        self._began = self._candidate = 0.0

    def _learn(self, module: Any) -> None:
        self._latest = weakref.ref(module)
        if module not in self._known:
            self._known.add(module)
            self._parameters.update(id(each) for each in module.parameters() if each.requires_grad)

    def _was_trained(self, module: Any) -> bool:
        """Return whether it was trained, by the first of its parameters: module and wrapper share them."""
        if module in self._known:
            return True
        first = next((each for each in module.parameters() if each.requires_grad), None)
        return first is not None and id(first) in self._parameters
