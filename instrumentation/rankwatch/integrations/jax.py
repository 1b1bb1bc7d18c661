"""JAX: rank by `jax.process_index`, steps by `StepTraceAnnotation`, the rest by `jax.monitoring`.

    import jax
    import rankwatch.integrations.jax

    jax.distributed.initialize()
    run = rankwatch.integrations.jax.start(target_steps=1000)
    for number, batch in enumerate(run.batches(loader)):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            state, loss = train_step(state, batch)

A loop without annotations calls `run.step()` itself. JAX returns before the device is done, so a step lasts
until the next one begins. Time in which JAX traces and compiles is phase `compile`, known once it is over.
The checkpoints of Orbax are recorded with their stages.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import rankwatch
from rankwatch.automatic.patching import guarded, watch
from rankwatch.automatic.visibility import visibility
from rankwatch.blackbox.layout import RecordKind
from rankwatch.checkpoints import CheckpointOperation
from rankwatch.conventions.vocabulary import Capability, CheckpointStage
from rankwatch.errors import UsageError
from rankwatch.integrations.frameworks import StepsByStart, require
from rankwatch.launchers import run_id
from rankwatch.processes import run_of_job
from rankwatch.run import Run

require("jax", integration="jax", name="JAX")

COMPILE = "compile"
"""Phase in which JAX traces, lowers and compiles a function."""
_COMPILING = "/jax/core/compile/"
_NO_PAYLOAD = struct.Struct("")
_ORBAX_STARTS = {
    "/jax/orbax/write/start": "save",
    "/jax/orbax/write/async/start": "save",
    "/jax/orbax/read/start": "load",
    "/jax/orbax/read/async/start": "load",
}
"""Event -> operation that begins; likewise below."""
_ORBAX_BLOCKED = {
    "/jax/orbax/write/blocking_duration_secs": "save",
    "/jax/orbax/write/async/blocking_duration_secs": "save",
    "/jax/orbax/read/async/blocking_duration_secs": "load",
}
_ORBAX_TOTALS = {
    "/jax/orbax/write/total_duration_secs": "save",
    "/jax/orbax/write/async/total_duration_secs": "save",
    "/jax/orbax/read/total_duration_secs": "load",
    "/jax/orbax/read/async/total_duration_secs": "load",
}
_ORBAX_SIZES = {"/jax/orbax/write/gbytes": "save", "/jax/checkpoint/read/gbytes": "load"}
_ORBAX_WAIT = "/jax/orbax/write/blocking_wait_prev_duration_secs"
_ORBAX_STAGES = {
    _ORBAX_WAIT: CheckpointStage.WAIT_PREVIOUS,
    "/jax/orbax/write/blocking_d2h_duration_secs": "copy",
    "/jax/orbax/write/background_ts_duration_secs": "write",
    "/jax/orbax/write/background_finalize_secs": "finalize",
    "/jax/orbax/write/finalize_duration_secs": "finalize",
}


def start(
    *, phases: Iterable[str] = (), annotation: str | None = "train", **options: Any
) -> rankwatch.Run | rankwatch.DisabledRun:
    """Call `rankwatch.start` with the rank by JAX, and with what JAX reports; only after
    `jax.distributed.initialize`.

    annotation: name of the `StepTraceAnnotation` that is a training step; None for a loop that calls
        `run.step()`, where annotations mean nothing.
    options: those of `rankwatch.start`.
    """
    import jax

    place: dict[str, Any] = {"rank": jax.process_index(), "world_size": jax.process_count()}
    if run_id(os.environ) is None and (address := _coordinator()):
        host, _, port = address.rpartition(":")
        place["run"] = run_of_job(host, port)
    run = rankwatch.start(**(place | options), phases=(*phases, COMPILE))
    if isinstance(run, Run):
        guarded("listen to JAX", listen)(run)  # another release may lack what it needs
        if annotation is not None:
            guarded("follow the annotations of JAX", _follow_annotations)(run, annotation)
    return run


def listen(run: Run) -> None:
    """Record into a run what `jax.monitoring` reports: compilation, and the checkpoints of Orbax.

    Raises UsageError unless the run was started with `phases=("compile",)`.
    """
    visibility.attach(run)  # first: it is told what fails below
    from jax import monitoring

    if COMPILE not in run._spans:
        raise UsageError(f"the run has no phase {COMPILE!r}: call rankwatch.start(phases=({COMPILE!r},))")
    orbax = _Orbax(run)
    phase = run._writer.name_number(COMPILE)

    def took(event: str, duration_secs: float, **_: Any) -> None:
        _compiled(run, phase, event, duration_secs)
        orbax.took(event, duration_secs)

    durations = guarded("record a duration of JAX", took)
    events = guarded("record an event of JAX", lambda event, **_: orbax.happened(event))
    scalars = guarded("record a scalar of JAX", lambda event, value, **_: orbax.measured(event, value))
    monitoring.register_event_duration_secs_listener(durations)
    monitoring.register_event_listener(events)
    monitoring.register_scalar_listener(scalars)
    run.when_ended(lambda: _unregister(durations, events, scalars))


def _coordinator() -> str | None:
    """Return the address of the process that JAX's processes meet at; None without `jax.distributed`."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.distributed import global_state

        address = global_state.coordinator_address
        return address if isinstance(address, str) else None
    return None


def _unregister(durations: Any, events: Any, scalars: Any) -> None:
    from jax import monitoring

    for unregister, listener in (
        (monitoring.unregister_event_duration_listener, durations),
        (monitoring.unregister_event_listener, events),
        (monitoring.unregister_scalar_listener, scalars),
    ):
        with contextlib.suppress(AssertionError, ValueError):  # somebody has cleared all listeners
            unregister(listener)


def _compiled(run: Run, phase: int, event: str, seconds: float) -> None:
    if event.startswith(_COMPILING) and threading.current_thread() is threading.main_thread():
        ended = time.monotonic()
        run._writer.append(RecordKind.PHASE, phase, ended - seconds, ended, _NO_PAYLOAD)


class _Orbax:
    """The checkpoint operations of Orbax that are under way. Orbax reports them on its primary host only.

    It begins a save before it waits for the one before, and reports no failure: a save that is still there
    when that wait is over has failed.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open: dict[str, deque[CheckpointOperation]] = {"save": deque(), "load": deque()}
        """Name -> operations, the oldest first."""
        self._bytes = {"save": 0, "load": 0}

    def happened(self, event: str) -> None:
        """Take an event without a value: an operation begins."""
        if name := _ORBAX_STARTS.get(event):
            if not event.endswith("/async/start"):
                self._fail_all_but(0, name)
            operation = self._run.checkpoint(name).begin()
            if isinstance(operation, CheckpointOperation):
                self._open[name].append(operation)

    def measured(self, event: str, value: float) -> None:
        """Take a scalar: the size of what was written or read."""
        if name := _ORBAX_SIZES.get(event):
            self._bytes[name] = int(value * 1024**3)

    def took(self, event: str, seconds: float) -> None:
        """Take a duration, reported when it is over."""
        began = time.monotonic() - seconds
        if event == _ORBAX_WAIT:
            self._fail_all_but(1, "save")
        if (stage := _ORBAX_STAGES.get(event)) and (saves := self._open["save"]):
            # The copy and the wait belong to the newest; what runs in the background to the oldest.
            saves[-1 if "/blocking_" in event else 0].record_stage(stage, began, failed=False)
        elif (name := _ORBAX_BLOCKED.get(event)) and (operations := self._open[name]):
            operations[-1].record_stage("blocking", began, failed=False)
            operations[-1].unblock()
        elif (name := _ORBAX_TOTALS.get(event)) and (operations := self._open[name]):
            operation = operations.popleft()
            operation.bytes, self._bytes[name] = self._bytes[name], 0
            operation.end()

    def _fail_all_but(self, newest: int, name: str) -> None:
        operations = self._open[name]
        while len(operations) > newest:
            operations.popleft().end(failed=True)


def _follow_annotations(run: Run, name: str) -> None:
    """Begin a step with each `StepTraceAnnotation` of this name."""
    from jax.profiler import StepTraceAnnotation

    steps = StepsByStart(run)

    def initialized(annotation: Any, given: str, **details: Any) -> None:
        if given == name:
            annotation._rankwatch_step = (details.get("step_num"),)

    def entered(annotation: Any) -> None:
        for number in getattr(annotation, "_rankwatch_step", ()):
            steps.begin(number)

    for method, began in (("__init__", initialized), ("__enter__", entered)):
        replaced = watch(StepTraceAnnotation, method, began=began, shows=Capability.STEPS)
        if replaced is not None:
            run.when_ended(replaced.undo)
