"""The account of one rank: what all its records add up to, across restarts of its process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import RawRecord
from rankwatch.conventions import CHECKPOINT_OPERATIONS, LOSS, Lifecycle
from rankwatch_agent.ranks.loss import LossStatistics
from rankwatch_agent.ranks.names import BoundedNames
from rankwatch_agent.ranks.progress import SECTIONS, Progress
from rankwatch_agent.ranks.steps import StepAssembler


@dataclass
class CollectiveTotals:
    """Collectives of one group and operation."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


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
        self.collectives: dict[tuple[str, str], CollectiveTotals] = {}
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

    def begin_process(self) -> None:
        """Another process takes the rank; totals go on, the rest begins anew."""
        self.life.ended_by = None
        self.closed_phases.clear()

    @property
    def last_good_checkpoint(self) -> tuple[float, int] | None:
        """The last verified one where the run verifies, else the last saved one."""
        return self.verified or self.saved

    def add(self, records: Iterable[RawRecord], name_of: Callable[[int], str]) -> None:
        """Take the records of one poll; `name_of` resolves numbers of names."""
        steps = self.steps
        for record in records:
            kind, name, start, end, payload = record
            self.records += 1
            if end > self.last_record:
                self.last_record = end
            if kind == RecordKind.PHASE:
                text = self.names.bound("phase", name_of(name))
                self.closed_phases[name] = start
                steps.phase(start, end, text)
                if text in SECTIONS:
                    self.last_progress = max(self.last_progress, end)
            elif kind == RecordKind.COLLECTIVE:
                self._collective(name_of(name), start, end, payload, name_of)
            elif kind == RecordKind.SCALAR:
                self._scalar(name_of(name), payload)
            elif kind == RecordKind.STEP:
                steps.step(start, end, layout.STEP.unpack_from(payload)[0])
                self.last_progress = max(self.last_progress, end)
            else:
                self._rare(kind, name_of(name), start, end, payload, name_of)

    def _collective(
        self, operation: str, start: float, end: float, payload: bytes, name_of: Callable[[int], str]
    ) -> None:
        size, _, group, flags = layout.COLLECTIVE.unpack_from(payload)
        self.steps.collective(start, end, blocking=bool(flags & layout.BLOCKING))
        key = (self.names.bound("group", name_of(group)), self.names.bound("operation", operation))
        totals = self.collectives.get(key)
        if totals is None:
            totals = self.collectives[key] = CollectiveTotals()
        totals.count += 1
        totals.bytes += size
        totals.seconds += end - start

    def _scalar(self, name: str, payload: bytes) -> None:
        value = layout.SCALAR.unpack_from(payload)[0]
        name = self.names.bound("scalar", name)
        if not name:
            return
        self.scalars[name] = value
        bad = self.nonfinite.setdefault(name, 0)
        if not math.isfinite(value):
            self.nonfinite[name] = bad + 1
        if name == LOSS:
            self.loss.add(value)

    def _rare(
        self, kind: int, name: str, start: float, end: float, payload: bytes, name_of: Callable[[int], str]
    ) -> None:
        if kind == RecordKind.WORK:
            if unit := self.names.bound("unit", name):
                amount = layout.WORK.unpack_from(payload)[0]
                if 0.0 <= amount < math.inf:
                    self.work[unit] = self.work.get(unit, 0.0) + amount
        elif kind == RecordKind.CHECKPOINT:
            self._checkpoint(name, start, end, payload, name_of)
        elif kind == RecordKind.LIFECYCLE:
            _, detail = layout.LIFECYCLE.unpack_from(payload)
            self._lifecycle(name, name_of(detail))
        elif kind == RecordKind.DEVICE_PHASE:
            seconds, local, _ = layout.DEVICE.unpack_from(payload)
            if 0.0 <= local <= seconds < math.inf:
                self.steps.device_phase(self.names.bound("phase", name), seconds, local)

    def _checkpoint(
        self,
        operation: str,
        start: float,
        end: float,
        payload: bytes,
        name_of: Callable[[int], str],
    ) -> None:
        size, step, stage, failed = layout.CHECKPOINT.unpack_from(payload)
        totals = self.checkpoints.get(operation)
        if totals is None:
            self.names.dropped += 1
            return
        if stage:
            if text := self.names.bound("checkpoint_stage", name_of(stage)):
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

    def _lifecycle(self, event: str, detail: str) -> None:
        life = self.life
        if event == Lifecycle.RESUMED:
            life.resumes += 1
        elif event == Lifecycle.PREEMPTED:
            life.preemptions += 1
        elif event == Lifecycle.FAILED:
            kind = self.names.bound("exception", detail) or "unknown"
            life.failures[kind] = life.failures.get(kind, 0) + 1
        if event in _ENDS:
            life.ended_by = Lifecycle(event)
