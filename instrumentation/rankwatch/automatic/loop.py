"""The training loop of this process, as the patches of torch show it: events in, steps and phases out.

Each patch calls the method of its event on the thread where it happens. Events of other threads than the
training one count only where an optimizer steps. The first backward pass or optimizer step opens the run.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Hashable
from typing import Any

from rankwatch import lifecycle
from rankwatch.automatic import recording, reporting
from rankwatch.automatic.checkpoints import checkpoints
from rankwatch.automatic.evaluation import Evaluation
from rankwatch.automatic.iterations import (
    DeferredSteps,
    Iterations,
    TrainingThread,
    Waits,
    is_inside_backward,
    trained_by,
)
from rankwatch.automatic.phases import Forward, Phases
from rankwatch.automatic.values import amounts_of, values
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.disabled import DisabledRun
from rankwatch.run import Run

_BACKWARDS_WITHOUT_FORWARD = 20
"""Backward passes after which a loop that has called no module counts as one that computes by functions."""
_BACKWARDS_WITHOUT_STEP = 1000
"""Backward passes without any step of an optimizer after which the loop counts as one without."""


class Loop:
    """What the training thread does, from event to event.

    open_run: opens the run, or returns the one that is open.
    """

    def __init__(
        self,
        open_run: Callable[[], Run | DisabledRun] = recording.opened,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_run = open_run
        self._clock = clock
        self._off = False
        self._thread = TrainingThread()
        self._waits = Waits()
        self._first_place: Hashable = None
        """Where the loop has waited for its last batch before it trained."""
        self._run: Run | None = None
        self._phases: Phases | None = None
        self._evaluation = Evaluation(clock)
        self._iterations: Iterations | None = None
        self._evaluated_iterator: Any = None
        """Iterator of the batch that the last forward pass without gradient was given."""
        self._fetching = False
        self._forward = Forward(clock)
        self._in_backward = False
        self.stepping: list[int] = []
        """Ids of the optimizers whose `step` is running, or has raised, the outermost first."""
        self._updated = False
        """One of them has really stepped; a gradient scaler may keep it from it."""
        self._deferred = DeferredSteps()
        self._backwards = 0
        self.updates = 0
        """Steps of optimizers so far."""

    # -- data -------------------------------------------------------------------------------------

    def fetch_began(self, place: Callable[[], Hashable] = lambda: 0) -> float:
        """Begin to fetch a batch, at this place of the loop's code. Returns what `fetch_ended` needs; 0 if it
        is no wait of its own."""
        if self._off or self._fetching or not self._thread.is_here() or reporting.is_reported():
            return 0.0
        if self._in_backward and not is_inside_backward():
            self._in_backward = False  # Ctrl-C has come before `backward_ended`
        if self._forward.running or self._in_backward:
            return 0.0
        moment = self._clock()  # what is done here delays the batch, as a stopwatch would say
        self._fetching = True
        self._forward.end()
        if self._iterations is None:
            self._first_place = place()
        elif not self.stepping:
            self._count_deferred()
            if self._iterations.wait_for_batch(place):
                self._record_waits()
        if self._phases is not None:
            self._phases.data_wait.show(moment)
        return moment

    def fetch_ended(self, began: float, iterator: object, batch: object, error: BaseException | None) -> None:
        """End the fetch of a batch, or with an error: StopIteration where there is none left."""
        if not began or self._off:
            return
        ended = self._clock()
        self._fetching = False
        if self._phases is not None:
            self._phases.data_wait.show(0.0)
        if self._evaluation.waiting:
            self._evaluation.fetched()
            self._drop_waits_of_evaluation()
        if error is None:
            self._waits.add(began, ended, iterator, _report(amounts_of, batch) or {})
        elif isinstance(error, StopIteration):
            self._waits.exhausted(began, ended, iterator)

    # -- forward ----------------------------------------------------------------------------------

    def forward_began(self, module: Any) -> bool:
        """Begin the call of a module, by no other module. True if `forward_ended` must follow."""
        if self._off or self._forward.running or self._in_backward or not self._thread.is_here():
            return False
        if sys.modules["torch"].is_grad_enabled():
            self._begin_forward(module)
            return True
        self._forward.enter()
        if not self.stepping and not reporting.is_reported():
            self._evaluation.forward_began(module, self._waits.last_began)
            self._evaluated_iterator = self._waits.last_iterator()
            self._drop_waits_of_evaluation()
        return True

    def forward_ended(self, loss_computed: bool = False) -> None:
        """End the call of the module, which has returned, or raised. loss_computed: what it returned holds
        the loss."""
        if self._forward.leave(loss_computed):
            self._evaluation.forward_ended()

    # -- backward ---------------------------------------------------------------------------------

    def backward_began(self, loss: object) -> bool:
        """Begin a backward pass. True if `backward_ended` must follow."""
        if self._off or self._in_backward or not self._thread.trains_here():
            return False
        moment, begun = self._clock(), False
        if not self._is_recorded() or self._phases is None:
            return False
        self._fetching = False
        try:
            self._in_backward = True
            if not reporting.is_reported():
                self._training_goes_on(moment)
            self._forward.backward_began(moment)
            self._phases.backward.begin(self._clock())
            self._count_backward()
            _report(values.backward, loss)
            begun = True
        finally:  # Ctrl-C may come here, too
            self._in_backward = begun
        return True

    def backward_ended(self) -> bool:
        """End the backward pass, which has returned, or raised. True if its forward pass was not seen."""
        self._in_backward = False
        if self._off or self._phases is None:
            return False
        moment = self._clock()
        self._phases.backward.end(moment)
        visibility.sees(Capability.BACKWARD)
        if self._deferred.pending:
            visibility.cannot_see(Capability.OPTIMIZER, Unseen.IN_BACKWARD)
            self._count_deferred(moment)
        return self._forward.unseen

    # -- optimizer --------------------------------------------------------------------------------

    def optimizer_began(self, optimizer: Any, caller: object = None) -> None:
        """Begin the step of an optimizer. caller: the gradient scaler that decides whether it will."""
        if self._off:
            return
        key = id(optimizer if caller is None else caller)
        if self._in_backward or not self._thread.trains_here():
            return
        if not self._is_recorded():
            return
        self._updated = caller is None
        if not self.stepping:
            self._optimizers_begin(optimizer)
        self.stepping.append(key)

    def optimizer_ended(self, optimizer: Any, caller: object = None) -> None:
        """End the step of an optimizer. With a caller: or it was kept from it, or raised."""
        if self._off:
            return
        key = id(optimizer if caller is None else caller)
        if key not in self.stepping:
            self._defer_step(optimizer)
            return
        while self.stepping.pop() != key:  # the last one: a `step` may call that of its base class
            pass
        if not self.stepping and self._phases is not None and self._iterations is not None:
            moment = self._clock()
            self._forward.end()
            if self._phases.optimizer.began:
                self._phases.optimizer.end(moment)
            visibility.sees(Capability.OPTIMIZER)
            self.updates += 1
            if not reporting.is_reported():
                trained = trained_by(optimizer)
                self._iterations.optimizer_ended(id(trained), moment, trained)
            _report(values.stepped, optimizer if self._updated else None)
            if reporting.is_reported():
                _report(values.write, self._run)

    def update_began(self, scaler: object) -> bool:
        """Begin a gradient scaler's update of its scale. True if `update_ended` must follow."""
        if self._off or self.stepping or self._phases is None or not self._thread.is_here():
            return False
        _report(values.scales, scaler)
        self._forward.end()
        self._count_deferred()
        self._phases.optimizer.begin(self._clock())
        return True

    def update_ended(self) -> None:
        """End the update of the scale. It belongs to the optimizers before."""
        if self._phases is None or self._iterations is None or not self._phases.optimizer.began:
            return
        moment = self._clock()
        self._phases.optimizer.end(moment)
        if self._iterations.pending:
            self._iterations.extend(moment)

    # -- between steps ----------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause for a checkpoint or an evaluation: a step whose optimizers have stepped is over."""
        if self._iterations is not None and not self.stepping and not self._in_backward:
            self._forward.end()
            self._count_deferred()
            self._evaluation.pause()
            self._iterations.close()

    def stop_inferring(self) -> None:
        """Leave the reports to a framework from now on. A step that was inferred and has not ended is not
        recorded."""
        if self._iterations is not None:
            self.pause()
            self._waits.clear()
            self._iterations.abandon()

    # -- how --------------------------------------------------------------------------------------

    def _is_recorded(self) -> bool:
        """Return True if there is a run; the first call opens it."""
        if self._phases is None and not self._off:
            run = self._open_run()
            if isinstance(run, Run):
                self._attach(run)
            else:
                self._off = True
        return not self._off

    def _attach(self, run: Run) -> None:
        self._run = run
        self._phases = Phases(run)
        self._iterations = Iterations(run._steps, self._step_ends, self._first_place)
        self._evaluation.attach(run)
        checkpoints.pause_before(self.pause)
        run.after_steps(self._run_may_end)
        run.when_ended(self.stop)
        lifecycle.on_fork(self.stop)
        self._forward.attach(self._phases.forward)

    def stop(self) -> None:
        """Record nothing any more: the run has ended, or this is a forked child."""
        self._off = True

    def _run_may_end(self) -> None:
        """Close the iteration after each step and at the end of the run, whose last step may be pending."""
        if self._iterations is not None and not self._off:
            self._count_deferred()
            self._iterations.close()

    def _step_ends(self) -> None:
        assert self._run is not None
        _report(values.write, self._run)
        visibility.sees(Capability.STEPS)

    def _training_goes_on(self, moment: float) -> None:
        """Note that training goes on at this moment, so the waits before were for training."""
        assert self._iterations is not None
        if self._deferred.pending:
            self._count_deferred()
        if checkpoints.waiting:
            checkpoints.settle()
        if self._evaluation.waiting:
            self._evaluation.training_goes_on()
        began = self._waits.first_began or moment
        if self._iterations.training_goes_on(began):
            self._iterations.begin(min(began, self._forward.began or moment))
        if self._waits and not self._iterations.pending:
            self._record_waits()

    def _record_waits(self) -> None:
        """Record the waits so far as those of the iteration that is open."""
        for wait in self._waits.take():
            assert self._phases is not None and self._run is not None
            self._phases.data_wait.record(wait.began, wait.ended)
            if wait.amounts:
                self._run.work(**wait.amounts)
            visibility.sees(Capability.DATA_WAIT)

    def _drop_waits_of_evaluation(self) -> None:
        """Forget the waits for batches that were evaluated. One for training before them is over, too."""
        if self._evaluation.open:
            if self._iterations is not None and not self.stepping:
                self._iterations.evaluation_begins()
            self._waits.drop(self._evaluated_iterator)
            self._forward.end()

    def _begin_forward(self, module: Any) -> None:
        moment = self._clock()
        if not reporting.is_reported():
            self._evaluation.training_goes_on(module)
            if self._phases is not None and self._backwards:
                self._training_goes_on(moment)
        self._forward.begin(moment)

    def _optimizers_begin(self, optimizer: Any) -> None:
        assert self._phases is not None
        assert self._iterations is not None
        moment = self._clock()
        self._fetching = False
        if not reporting.is_reported():
            self._count_deferred()
            self._iterations.optimizer_begins(id(trained_by(optimizer)))
            if not self._iterations.pending:
                self._training_goes_on(moment)
            elif self._waits:
                self._record_waits()
        self._forward.end()
        self._phases.optimizer.begin(moment)

    def optimizers_raised(self) -> None:
        """Note that no optimizer is stepping any more: those that were have raised."""
        self.stepping.clear()
        if self._phases is not None:
            self._phases.optimizer.abandon()

    def _defer_step(self, optimizer: Any) -> None:
        """Defer a step of an optimizer inside of a backward pass, or in another thread."""
        self._deferred.optimizer_ended(id(trained_by(optimizer)), self._clock())
        if not self._in_backward and self._phases is not None and not self._thread.is_here():
            visibility.cannot_see(Capability.OPTIMIZER, Unseen.OTHER_THREAD)
            self._thread.stepped_in_other_thread()

    def _count_deferred(self, moment: float = 0.0) -> None:
        if self._deferred.pending and self._iterations is not None:
            self._deferred.count(None if reporting.is_reported() else self._iterations, moment)

    def _count_backward(self) -> None:
        self._backwards += 1
        if self._backwards == _BACKWARDS_WITHOUT_FORWARD and not visibility.has_seen(Capability.FORWARD):
            visibility.cannot_see(Capability.FORWARD, Unseen.NOT_CALLED)
        if self._backwards == _BACKWARDS_WITHOUT_STEP and not visibility.has_seen(Capability.STEPS):
            visibility.cannot_see(Capability.STEPS, Unseen.NOT_CALLED)


def _report(call: Callable[[Any], Any], what: Any) -> Any:
    """Let others read the values of an event. Steps and phases do not depend on it."""
    try:
        return call(what)
    except Exception as error:  # noqa: BLE001 - nothing of ours may end the training
        visibility.failed("read values of the loop", error)
        return None


@functools.cache  # faster than a test in Python
def current() -> Loop:
    """Return the loop of this process."""
    return Loop()
