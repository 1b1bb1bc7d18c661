"""The run object: what a training loop holds and calls."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.checkpoints import CheckpointLog, CheckpointOperation
from rankwatch.compiling import is_compiling
from rankwatch.conventions.vocabulary import CHECKPOINT_OPERATIONS, DATA_WAIT, LOSS, Capability, Lifecycle
from rankwatch.disabled import DisabledOperation, DisabledRun
from rankwatch.errors import shown
from rankwatch.failures import Ending, Failures, ending_by, guarded
from rankwatch.identity import Identity
from rankwatch.scalars import Scalars, StatedValues, as_amount
from rankwatch.spans import Batches, BatchWait, NullSpan, Phases, Span, phase_span
from rankwatch.steps import Steps

if TYPE_CHECKING:
    from rankwatch.conventions.vocabulary import Unseen
    from rankwatch.device.cuda import Gpu
    from rankwatch.device.timeline import DeviceTimeline
    from rankwatch.fingerprints.recorder import Fingerprints

T = TypeVar("T")
_WORK = RecordKind.WORK


class Run:
    """One rank of a run, from `rankwatch.start` to `finish`. Only the training thread calls phases and steps.

    As a context manager it records `finished` at the end of the block. If an exception ends the block, it
    records `failed` with the type and the message of the exception, or `interrupted` for Ctrl-C, and the
    exception propagates.
    """

    phase: Callable[[str], AbstractContextManager[None]]
    """`with run.phase("forward"):` times a phase. A phase may contain another phase; the time of the inner
    phase does not count for the outer one."""

    def __init__(
        self,
        identity: Identity,
        writer: Writer,
        phases: Iterable[str],
        *,
        on_gpu: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        """Complete as soon as the rank is known; see `rankwatch.identification`."""
        self._writer = writer
        self._failures = Failures(writer)
        self.device: DeviceTimeline | None = None
        """The timeline of the compute stream; None where torch was not built for GPUs."""
        if on_gpu:
            from rankwatch.device.timeline import DeviceTimeline  # which no training on CPUs needs

            self.device = DeviceTimeline(writer, self._failures, clock)
        self.gpu: Gpu | None = None  # set by the hooks
        self._steps = Steps(writer, self._failures, self.device, clock, after_each=self._resolve)
        self._scalars = Scalars(writer)
        self._record = self._scalars.record
        self.checkpoint_log = CheckpointLog(writer, self._failures)
        """For what records checkpoints without `checkpoint`."""
        self.fingerprints: Fingerprints | None = None  # set by the hooks
        self._ended = False
        self.end_of_script: Callable[[], Ending | None] | None = None
        """Set where the end of the script finishes the run: returns what has ended it before, else None."""
        self._conclude: Callable[..., None] = _nothing
        # Bounded, because some calls of `begin_phase` are never followed by `end_phase`.
        self._open_calls: deque[tuple[str, Span]] = deque(maxlen=layout.MAX_PHASES)
        self._closers: list[Callable[[], object]] = []
        self.stated = StatedValues(self.scalar)
        """What the run states about itself."""
        self._resolvers: list[Callable[[], None]] = [self._scalars.resolve, self.stated.after_step]
        self._followers: list[Callable[[], None]] = []
        self._spans = Phases(self._failures)
        for name in phases:
            number = writer.name_number(name)
            span, follow = phase_span(writer, number, clock)
            self._followers.append(follow)
            self._spans[name] = self.device.span(span, number, name) if self.device else span
        self._wait = BatchWait(self._spans[DATA_WAIT], self._steps, clock)
        self._spans[DATA_WAIT] = self._wait
        self.phase = self._spans.__getitem__
        # Reserved now: a full table of names must not hide the final state, or what caused it.
        for reserved in (*Lifecycle, *CHECKPOINT_OPERATIONS, LOSS):
            writer.name_number(reserved)
        self._error_names = [writer.new_name("") for _ in range(1 + layout.MESSAGE_NAMES)]
        self._lifecycle(Lifecycle.STARTED)

    # -- steps and phases -------------------------------------------------------------------------

    # Some methods catch errors themselves instead of by `guarded`: it saves a frame in every step.

    def step(self, number: int | None = None) -> AbstractContextManager[None]:
        """Record one training step, from the wait for its batch to the optimizer: `with run.step():`.

        Without a number it is the one after the last step. Raises UsageError inside another step.
        """
        if is_compiling():
            return nullcontext()
        return self._steps.number(number)

    def begin_step(self, number: int | None = None) -> None:
        """Begin a step, as `step` does. `end_step` ends it."""
        if is_compiling():
            return
        self._steps.begin(number)

    def end_step(self) -> None:
        """End the step that `begin_step` began."""
        if is_compiling():
            return
        self._steps.end()

    def begin_phase(self, name: str) -> None:
        """Begin a phase, as `phase` does. `end_phase` ends it."""
        if is_compiling():
            return
        try:
            span = self._spans[name]
            self._open_calls.append((name, span))
            span.__enter__()
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            self._failures.caught("begin a phase", error)

    def end_phase(self, name: str) -> None:
        """End the phase that `begin_phase` began last. Its name must be `name`."""
        if is_compiling():
            return
        try:
            if self._open_calls and self._open_calls[-1][0] == name:
                self._open_calls.pop()[1].__exit__(None, None, None)
            else:
                last = shown(self._open_calls[-1][0]) if self._open_calls else "none"
                self._failures.misuse(f"phase {shown(name)} is not the phase that began last ({last})")
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            self._failures.caught("end a phase", error)

    @guarded("record the target")
    def target(self, steps: int) -> None:
        """Set the number of steps that the run is to reach, if `start` did not know it yet."""
        self._writer.integers[Now.TARGET_STEPS] = steps

    def batches(self, loader: Iterable[T]) -> Batches[T]:
        """Iterate over a data loader. The wait for each batch is phase `data_wait` of the following step."""
        return Batches(loader, self._wait)

    def evaluation(self) -> AbstractContextManager[None]:
        """Time an evaluation, inside a step or between two steps: `with run.evaluation():`."""
        if is_compiling():
            return nullcontext()
        self._steps.waiting_since(0.0)
        return self.phase("evaluation")

    # -- what the step did ------------------------------------------------------------------------

    def scalar(self, name: str, value: object) -> None:
        """Record a value of this step: a number, or a tensor with one element on the CPU or a CUDA device."""
        if is_compiling():
            return
        try:
            self._record(name, value, self._steps.current)
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            self._failures.note("record a scalar", error)

    def work(self, /, **amounts: float) -> None:
        """Record work done, by unit: `run.work(samples=32, tokens=32 * 2048)`. No amount is negative."""
        if is_compiling():
            return
        try:
            for unit, amount in amounts.items():
                self._record(unit, amount, self._steps.current, _WORK)
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            self._failures.caught("record work", error)

    @guarded("show a phase")
    def show_phase(self, name: str, began: float) -> None:
        """Show as open a phase that has begun at this moment. `record_phase` with the same moment ends it."""
        self._writer.floats[Now.PHASE_BEGAN + self._writer.name_number(name)] = began

    @guarded("record a phase")
    def record_phase(self, name: str, began: float, ended: float) -> None:
        """Record a phase that has ended already, with its moments on the monotonic clock."""
        number = self._writer.name_number(name)
        self._writer.append(RecordKind.PHASE, number, began, ended, layout.NO_PAYLOAD)

    @guarded("count FLOPs", lambda *_, **__: NullSpan())
    def count_flops(self, *, tokens: float) -> AbstractContextManager[object]:
        """Count FLOPs of forward and backward of one step: `with run.count_flops(tokens=inputs.numel()):`.

        torch counts the floating-point operations of the block, which it makes slower. They are stated as the
        FLOPs of a token from then on. What is computed again for activation checkpointing counts, too.
        It is wrong use if `tokens` is no number above 0.
        """
        from rankwatch.flops import FlopCount

        amount = as_amount("tokens", tokens)
        return FlopCount(amount, self.stated, self._failures, self.identity.coordinates)

    # -- replicas ---------------------------------------------------------------------------------

    @guarded("read the fingerprint of the parameters")
    def fingerprint(self, *models: Any) -> None:
        """Record a fingerprint of parameters that other ranks hold, too; call it after the optimizer's step.

        models: modules, or iterables of tensors that must be the same on all data-parallel ranks. It acts
        only in each RANKWATCH_FINGERPRINT_STEPS-th step, once.
        """
        if self.fingerprints is not None:
            self.fingerprints.of(models)

    # -- checkpoints ------------------------------------------------------------------------------

    @guarded("record a checkpoint", DisabledOperation)
    def checkpoint(
        self, operation: str, *, step: int | None = None, path: object = None
    ) -> CheckpointOperation | DisabledOperation:
        """Record a save, a verify, a load or an upload:
        `with run.checkpoint("save", path=folder) as operation:`.

        `with operation.stage("write"):` times a stage. Set `operation.bytes` to the size of the checkpoint.
        Operation and stage can also be used by plain calls of `begin` and `end`.
        """
        if operation not in CHECKPOINT_OPERATIONS:
            self._failures.misuse(
                f"checkpoint operation {shown(operation)} is not one of {', '.join(CHECKPOINT_OPERATIONS)}"
            )
        if threading.current_thread() is threading.main_thread():
            self._steps.waiting_since(0.0)
        at = self._steps.current if step is None else step
        return CheckpointOperation(self.checkpoint_log, self._spans["checkpoint"], operation, at, path)

    # -- what is visible --------------------------------------------------------------------------

    @guarded("record what is visible")
    def sees(self, capability: Capability) -> None:
        """Record that the run records this, or would if it happened."""
        self._writer.set_capability(capability, None)

    @guarded("record what is not visible")
    def cannot_see(self, capability: Capability, why: Unseen) -> None:
        """Record that the run does not record this, and why. The last call for a capability counts."""
        self._writer.set_capability(capability, why)

    # -- life -------------------------------------------------------------------------------------

    @guarded("record a resume")
    def resumed(self, step: int) -> None:
        """Record that the run continues from a checkpoint of this step. The next step is `step + 1`, unless
        it is given a number."""
        self._steps.resume(step)
        self._lifecycle(Lifecycle.RESUMED)

    @guarded("record a preemption")
    def preempted(self) -> None:
        """Record that the scheduler takes the machine away. The run ends here and continues elsewhere."""
        self._end(Lifecycle.PREEMPTED)

    @guarded("record the end")
    def finish(self) -> None:
        """Record that the run has reached its end."""
        self._end(Lifecycle.FINISHED)

    @guarded("record a failure")
    def fail(self, error: BaseException | type[BaseException]) -> None:
        """Record that this exception ends the run: its type and the beginning of its message."""
        self._end(*ending_by(error))

    def __copy__(self) -> Run:
        return self

    def __deepcopy__(self, memo: object) -> Run:
        return self  # a model that holds its run is copied for averages of its weights

    def __reduce__(self) -> tuple[type[DisabledRun], tuple[()]]:
        return DisabledRun, ()  # what another process, or a checkpoint, holds of it records nothing

    def __enter__(self) -> Run:
        return self

    @guarded("record the end")
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or (kind is SystemExit and getattr(error, "code", 1) in (None, 0)):
            self.finish()
        else:
            self.fail(kind if error is None else error)

    def when_ended(self, close: Callable[[], object]) -> None:
        """Call `close` when the run ends."""
        self._closers.append(close)

    def when_ending(self, conclude: Callable[..., None]) -> None:
        """Call `conclude(discard=...)` when the run ends, before all functions of `when_ended`."""
        self._conclude = conclude

    def after_steps(self, resolve: Callable[[], None]) -> None:
        """Call `resolve` after each step and at the end, for values that the GPU delivers late."""
        self._resolvers.append(resolve)

    @guarded("record the end")
    def exited(self, error: BaseException | None, /) -> None:
        """Record that the interpreter exits, unless the end of the run is recorded already."""
        if error is not None:
            self._end(*ending_by(error))
        elif self.end_of_script is not None and not self.unused:
            self._end(*(self.end_of_script() or (Lifecycle.FINISHED, [])))
        else:
            self._end(Lifecycle.EXITED)

    def replaced(self) -> bool:
        """End this run, because this process starts another one; True unless it has ended already."""
        if self._ended:
            return False
        self._end(Lifecycle.EXITED, ("another run was started",))
        return True

    @property
    def current_step(self) -> int:
        """Number of the open step, else of the last one; -1 before the first."""
        return self._steps.current

    @property
    def steps_completed(self) -> int:
        """Number of steps that have ended."""
        return self._writer.integers[Now.STEPS_COMPLETED]

    @property
    def unused(self) -> bool:
        """True if no step has begun."""
        return self._steps.current < 0

    def remove_box(self) -> None:
        """Remove the black box of a run that has ended."""
        self._writer.discard()

    def silence(self) -> None:
        """Stop writing to the black box, because this process is a forked child and not the rank."""
        self._ended = True
        self._failures.strict = False
        self._resolvers.clear()
        self._writer.detach()
        for follow in self._followers:
            follow()

    def _end(self, event: Lifecycle, error: Sequence[str] = ()) -> None:
        """End the run by this event. error: type of the exception, then its message in pieces."""
        if self._ended:
            return
        self._resolve()
        numbers = self._error_names[: len(error)]
        for number, text in zip(numbers, error, strict=True):
            self._writer.fill_name(number, text)
        self._lifecycle(event, *numbers)
        self._ended = True
        self._failures.strict = False
        conclude: Callable[[], object] = partial(
            self._conclude, discard=event is Lifecycle.EXITED and self.unused
        )
        for close in (conclude, *self._closers):
            try:
                close()
            except Exception as error:  # noqa: BLE001 - the others must still be closed
                self._failures.note("remove a hook", error)
        self._spans.release()

    def _resolve(self) -> None:
        if self.gpu is not None and self.gpu.captures.still_going_on():
            return  # no event may be queried, and no memory be pinned
        for resolve in self._resolvers:
            try:
                resolve()
            except Exception as error:  # noqa: BLE001 - `end_step` calls this and must not fail
                self._failures.note("read values from the GPU", error)

    def _lifecycle(self, event: Lifecycle, *error_names: int) -> None:
        moment = time.monotonic()
        details = (*error_names, *(0 for _ in self._error_names))[: len(self._error_names)]
        name = self._writer.name_number(event)
        self._writer.append(
            RecordKind.LIFECYCLE, name, moment, moment, layout.ENDING, self._steps.current, *details
        )
        if event not in (Lifecycle.STARTED, Lifecycle.RESUMED):
            self._writer.integers[Now.ENDED_BY] = name


def _nothing(*, discard: bool) -> None: ...
