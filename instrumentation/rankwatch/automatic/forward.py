"""Forward passes: calls of root modules. Those that only forward passes follow make one forward phase."""

from __future__ import annotations

import time
from collections.abc import Callable

from rankwatch.automatic.phases import TimedPhase
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions import Capability


def _nothing() -> None: ...


look: Callable[[], object] = _nothing
"""Called where a forward pass was not seen, or goes on after its own backward pass: the next module that is
called may be one that no other module calls. `rankwatch.automatic.seams.modules` sets it."""


class Forward:
    """The forward pass that is running, and the forward phase that is open.

    A pass may contain its own backward pass: a module that trains itself. It is over where that one begins.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase: TimedPhase | None = None
        self.running = False
        """A root module is called, and no backward pass has begun inside of it."""
        self._with_gradient = False
        self.began = 0.0
        """Begin of the phase; 0 while none is open."""
        self._returned = 0.0
        """When the last pass of the phase returned; 0 while the first one runs."""
        self._loss_computed = False
        """The last of them has returned the loss."""
        self._unseen = False
        """The backward pass that is running follows no pass that was seen."""

    def attach(self, phase: TimedPhase) -> None:
        """Record into this phase from now on."""
        self._phase = phase
        if self.began:
            phase.begin(self.began)

    def enter(self) -> None:
        """A pass begins without gradient: it belongs to no phase."""
        self.running, self._with_gradient = True, False

    def begin(self, moment: float) -> None:
        """A pass begins with gradient."""
        self.running = self._with_gradient = True
        if not self.began:
            self.began, self._returned, self._loss_computed = moment, 0.0, False
            if self._phase is not None:
                self._phase.begin(moment)

    def leave(self, loss_computed: bool) -> bool:
        """A pass has returned, or raised. loss_computed: what it returned holds the loss.

        True if it was one without gradient."""
        if not self.running:  # a backward pass has begun inside of it
            return False
        self.running = False
        if self._with_gradient:
            self._returned, self._loss_computed = self._clock(), loss_computed
        return not self._with_gradient

    def backward_began(self, moment: float) -> None:
        """A backward pass begins: the phase lasts until now, unless its last pass has returned the loss."""
        inside, self.running = self.running, False
        self._unseen = inside or not self.began
        self._close(self._returned if self._loss_computed and not inside else moment)

    def backward_ended(self) -> None:
        """That backward pass has ended."""
        if self._unseen:
            look()

    def end(self) -> None:
        """Something else begins: the phase is over since its last pass has returned."""
        if self.began:
            self._close(self._clock() if self.running else self._returned)

    def _close(self, moment: float) -> None:
        began, self.began = self.began, 0.0
        if began and self._phase is not None:
            if not self._phase.began:
                self._phase.begin(began)
            self._phase.end(max(began, moment))
            visibility.sees(Capability.FORWARD)
