"""The account of one rank: what all its records add up to, across restarts of its process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import RawRecord
from rankwatch.conventions import CHECKPOINT_OPERATIONS, LOSS, TOKENS, Lifecycle
from rankwatch_agent.ranks.collectives.account import CollectiveAccount
from rankwatch_agent.ranks.loss import LossStatistics
from rankwatch_agent.ranks.names import OVERFLOW, BoundedNames
from rankwatch_agent.ranks.progress import SECTIONS, Progress
from rankwatch_agent.ranks.steps import StepAssembler


@dataclass
class CheckpointTotals:
    """Checkpoint operations of one kind."""

    succeeded: int = 0
    failed: int = 0
    seconds: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class Life:
    """Lifecycle events of the rank."""

    ended_by: Lifecycle | None = None
    """The last word of the present process."""
    resumes: int = 0
    preemptions: int = 0
    failures: dict[str, int] = field(default_factory=dict)


_ENDS = frozenset({Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.PREEMPTED, Lifecycle.EXITED})


class RankAccount:
    """Adds up the records of one rank.

    observe_step: takes the duration of each step in seconds, for the histogram of the run.
    max_names: distinct names exported per kind (scalars, groups, ...); records beyond it are counted
        in `names.dropped` and otherwise let go.
    """

    def __init__(self, observe_step: Callable[[float], None], max_names: int) -> None:
        self.names = BoundedNames(max_names)
        self.records = 0
        self.progress = Progress()
        self.steps = StepAssembler(self.progress, observe_step)
        self.loss = LossStatistics()
        self.scalars: dict[str, float] = {}
        self.nonfinite: dict[str, int] = {}
        self.work: dict[str, float] = {}
        self.collectives = CollectiveAccount(self.names, self.steps)
        self.checkpoints = {operation: CheckpointTotals() for operation in CHECKPOINT_OPERATIONS}
        self.checkpoint_bytes: int | None = None
        self.saved: tuple[float, int] | None = None
        """End (monotonic) and step of the last checkpoint that was saved."""
        self.verified: tuple[float, int] | None = None
        self.life = Life()
        self.last_record = 0.0
        """End of the last record, monotonic."""
        self.last_progress = 0.0
        """End of the last step, or of a checkpoint or evaluation."""
        self.closed_phases: dict[int, float] = {}
        """Number of a phase -> start of its last record; a phase that began later is open."""
        self._name_of: Callable[[int], str] = str
        # By numbers of the present process's names: thousands of records a second take this way.
        self._phase_names: dict[int, str] = {}
        self._scalar_names: dict[int, str] = {}
        self._units: dict[int, str] = {}
        self._takers = {
            int(RecordKind.PHASE): self._take_phase,
            int(RecordKind.STEP): self._take_step,
            int(RecordKind.COLLECTIVE): self.collectives.take,
            int(RecordKind.SCALAR): self._take_scalar,
            int(RecordKind.WORK): self._take_work,
            int(RecordKind.CHECKPOINT): self._take_checkpoint,
            int(RecordKind.LIFECYCLE): self._take_lifecycle,
            int(RecordKind.DEVICE_PHASE): self._take_device_phase,
        }

    def begin_process(self) -> None:
        """Another process takes the rank; totals go on, the rest begins anew."""
        self.life.ended_by = None
        self.loss.begin_process()
        self.steps.begin_process()
        self.closed_phases.clear()
        for names in (self._phase_names, self._scalar_names, self._units):
            names.clear()
        self.collectives.begin_process()

    @property
    def last_good_checkpoint(self) -> tuple[float, int] | None:
        """The last verified one where the run verifies, else the last saved one."""
        return self.verified or self.saved

    def add(self, records: Sequence[RawRecord], name_of: Callable[[int], str]) -> None:
        """Take the records of one poll; `name_of` resolves numbers of names."""
        self._name_of = name_of
        self.records += len(records)
        last, takers = self.last_record, self._takers
        for kind, name, start, end, payload in records:
            if end > last:
                last = end
            takers[kind](name, start, end, payload)
        self.last_record = last

    def _take_phase(self, number: int, start: float, end: float, payload: bytes) -> None:
        name = self._phase_names.get(number)
        if name is None:
            name = self._phase_names[number] = self.names.bound("phase", self._name_of(number))
        self.closed_phases[number] = start
        self.steps.phase(start, end, name)
        if name in SECTIONS and end > self.last_progress:
            self.last_progress = end

    def _take_step(self, _: int, start: float, end: float, payload: bytes) -> None:
        step, failed = layout.STEP.unpack_from(payload)
        if failed:
            self.progress.step_failed(end)
        self.steps.step(start, end, step)
        if end > self.last_progress:
            self.last_progress = end

    def _take_scalar(self, number: int, start: float, end: float, payload: bytes) -> None:
        value = layout.SCALAR.unpack_from(payload)[0]
        name = self._scalar_names.get(number)
        if name is None:
            name = self.names.bound("scalar", self._name_of(number))
            if name not in ("", OVERFLOW):  # of the latter each use counts
                self._scalar_names[number] = name
        if not name:
            return
        self.scalars[name] = value
        bad = self.nonfinite.setdefault(name, 0)
        if not math.isfinite(value):
            self.nonfinite[name] = bad + 1
        if name == LOSS:
            self.loss.add(value)

    def _take_work(self, number: int, start: float, end: float, payload: bytes) -> None:
        unit = self._units.get(number)
        if unit is None:
            unit = self.names.bound("unit", self._name_of(number))
            if unit not in ("", OVERFLOW):
                self._units[number] = unit
        amount, step = layout.WORK.unpack_from(payload)
        if unit and 0.0 <= amount < math.inf:
            self.work[unit] = self.work.get(unit, 0.0) + amount
            if unit == TOKENS:
                self.steps.work(step, amount)

    def _take_device_phase(self, number: int, start: float, end: float, payload: bytes) -> None:
        seconds, local, step = layout.DEVICE.unpack_from(payload)
        if 0.0 <= local <= seconds < math.inf:
            self.steps.device_phase(self.names.bound("phase", self._name_of(number)), seconds, local, step)

    def _take_checkpoint(self, number: int, start: float, end: float, payload: bytes) -> None:
        size, step, stage, failed = layout.CHECKPOINT.unpack_from(payload)
        operation = self._name_of(number)
        totals = self.checkpoints.get(operation)
        if totals is None:
            self.names.dropped += 1
            return
        if stage:
            if text := self.names.bound("checkpoint_stage", self._name_of(stage)):
                totals.stage_seconds[text] = totals.stage_seconds.get(text, 0.0) + end - start
            return
        totals.seconds += end - start
        if failed:
            totals.failed += 1
            return
        totals.succeeded += 1
        if operation == "save":
            self.saved = (end, step)
            self.checkpoint_bytes = size or self.checkpoint_bytes
        elif operation == "verify":
            self.verified = (end, step)

    def _take_lifecycle(self, number: int, start: float, end: float, payload: bytes) -> None:
        _, reason = layout.LIFECYCLE.unpack_from(payload)
        event, detail = self._name_of(number), self._name_of(reason)
        life = self.life
        if event == Lifecycle.STARTED:
            self.progress.begin_process(start)
        elif event == Lifecycle.RESUMED:
            life.resumes += 1
        elif event == Lifecycle.PREEMPTED:
            life.preemptions += 1
        elif event == Lifecycle.FAILED:
            kind = self.names.bound("exception", detail) or "unknown"
            life.failures[kind] = life.failures.get(kind, 0) + 1
        if event in _ENDS:
            life.ended_by = Lifecycle(event)
