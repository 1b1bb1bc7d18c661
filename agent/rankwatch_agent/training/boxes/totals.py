"""What all records of a rank add up to, across restarts of its process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import END_OF_TIME, Columns, Header
from rankwatch.conventions.states import FailureKind
from rankwatch.conventions.traces import SCALARS
from rankwatch.conventions.vocabulary import EVALUATION, GRADIENT_NORM, LOSS, Lifecycle
from rankwatch.untrusted.text import printable, redacted
from rankwatch_agent.training.checkpoints.operations import RankCheckpoints
from rankwatch_agent.training.collectives.totals import OVERFLOW, BoundedNames, RankCollectives
from rankwatch_agent.training.goodput.rank_ledger import RankLedger
from rankwatch_agent.training.goodput.run_ledgers import RunLedger
from rankwatch_agent.training.learning.fingerprints import RankFingerprints
from rankwatch_agent.training.learning.scalars import JUDGED, RankLearning
from rankwatch_agent.training.life.failures import Failure, kind_of
from rankwatch_agent.training.notes import RankNotes
from rankwatch_agent.training.steps.assembly import StepAssembler
from rankwatch_agent.training.steps.recent import RecentSteps
from rankwatch_agent.training.steps.split import Collective, Interval
from rankwatch_agent.training.steps.timeouts import SECTIONS, LearntTimeouts

_NAMES = (1 << layout.NAME_BITS) - 1
"""The bits of a tag that hold the number of a name."""
_unpack_scalar, _unpack_work = layout.SCALAR.unpack_from, layout.WORK.unpack_from
_ENDS = frozenset(Lifecycle) - {Lifecycle.STARTED, Lifecycle.RESUMED}

MOST_WORK = 1e30
"""Of one record, in any unit: sums of such amounts, and their squares, are numbers."""


@dataclass
class LifecycleTotals:
    ended_by: Lifecycle | None = None
    """The event that ended the present process; None while it runs, or where it left none."""
    resumes: int = 0
    failures: dict[tuple[str, FailureKind], int] = field(default_factory=dict)
    """Type of the exception and kind -> how often it has ended the rank."""
    last_failure: Failure | None = None
    """Failure that ended the present process, with the beginning of its message."""


class RankTotals:
    """Adds up the records of one rank.

    observe_step: takes the duration of each step in seconds, for the histogram of the run.
    observe_checkpoint: takes each checkpoint operation with its duration in seconds.
    ledgers: keep account of the rank's time, with those of the other ranks of the run.
    notes: takes steps, checkpoints and evaluations for traces.
    step_window_seconds: over which the means of recent steps are taken.
    max_names: distinct names exported per kind (scalars, groups, ...); records beyond it are counted
        in `names.dropped` and otherwise ignored.
    """

    def __init__(
        self,
        observe_step: Callable[[float], None],
        max_names: int,
        notes: RankNotes | None = None,
        observe_checkpoint: Callable[[str, float], None] | None = None,
        ledgers: RunLedger | None = None,
        step_window_seconds: float = 300.0,
    ) -> None:
        self.names = BoundedNames(max_names)
        self.records = 0
        self.timeouts = LearntTimeouts()
        self._observe_checkpoint = observe_checkpoint
        self._ledgers = ledgers
        self.notes = notes
        """For traces; None where nobody wants them."""
        self.steps = StepAssembler(self.timeouts, observe_step, self._note_step if notes else None)
        self.recent = RecentSteps(step_window_seconds)
        self.learning = RankLearning()
        self.scalars: dict[str, float] = {}
        self.nonfinite: dict[str, int] = {}
        self.last_nonfinite: dict[str, float] = {}
        """When a scalar was last NaN or infinite, monotonic; only of those that were."""
        self.collectives = RankCollectives(self.names, self.steps)
        self.checkpoints = RankCheckpoints()
        self.fingerprints = RankFingerprints()
        self.lifecycle = LifecycleTotals()
        self.first_step: tuple[float, float] | None = None
        """Start and end of the first step of the present process, monotonic."""
        self.last_record = 0.0
        """End of the last record, monotonic."""
        self.last_progress = 0.0
        """End of the last step, or of a checkpoint or evaluation."""
        self.closed_phases: dict[int, float] = {}
        """Tag of a phase -> start of its last record; a phase that began later is open."""
        self._name_of: Callable[[int], str] = str
        # By tag, or number of a unit, of the present process: thousands of records a second take this way.
        self._phase_names: dict[int, str] = {}
        """Of phases that are no section."""
        self._scalar_names: dict[int, str] = {}
        """Of scalars that are only counted."""
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
            int(RecordKind.DEVICE_WAIT): self._take_device_wait,
            int(RecordKind.DEVICE_STEP): self._take_device_step,
            int(RecordKind.CHECKPOINT_BEGAN): self._take_checkpoint_began,
            int(RecordKind.FINGERPRINT): self._take_fingerprint,
        }

    @property
    def ledger(self) -> RankLedger | None:
        """What the time of the rank is spent on; None where nobody keeps account of it."""
        return self.steps.ledger

    def begin_process(self) -> None:
        """Note that another process takes the rank: totals go on, all else begins anew."""
        self.lifecycle.ended_by = None
        self.lifecycle.last_failure = None
        self.first_step = None
        self.checkpoints.begin_process()
        self.fingerprints.begin_process()
        self.learning.begin_process()
        self.steps.begin_process()
        self.closed_phases.clear()
        for names in (self._phase_names, self._scalar_names, self._units):
            names.clear()
        self.collectives.begin_process()

    def keep_account(self, ledgers: RunLedger, header: Header) -> None:
        """Keep account of the time from now on, for the process that has this header."""
        self._ledgers = ledgers
        self.account(header)

    def account(self, header: Header) -> None:
        """Keep account of the time of the process that has this header, if anybody wants it."""
        if self._ledgers is not None:
            self.steps.ledger = self._ledgers.rank(header)
            self.steps.ledger.begin_process(header)

    def take_failure(self, failure: Failure) -> None:
        """Count what has ended the rank."""
        exception = self.names.bound("exception", failure.exception) or "unknown"
        key = (exception, failure.kind)
        self.lifecycle.failures[key] = self.lifecycle.failures.get(key, 0) + 1
        self.lifecycle.last_failure = failure._replace(exception=exception)

    def add(self, records: Columns, name_of: Callable[[int], str]) -> None:
        """Add the records of one poll; `name_of` gives the name of a number."""
        tags, starts, ends, payloads, raw = records
        if not tags:
            return
        self._name_of = name_of
        self.records += len(tags)
        self.last_record = max(self.last_record, max(ends))
        phase_name, take_phase = self._phase_names.get, self.steps.unsettled.phases.append
        scalar_name, scalars, nonfinite = self._scalar_names.get, self.scalars, self.nonfinite
        closed, takers = self.closed_phases, self._takers
        for tag, start, end, at in zip(tags, starts, ends, payloads, strict=True):
            # Phases and scalars without a call, because they are most of the records.
            name = phase_name(tag)
            if name is not None:
                take_phase((start, end, name))
                closed[tag] = start
                continue
            name = scalar_name(tag)
            if name is not None:
                value = scalars[name] = _unpack_scalar(raw, at)[0]
                if value - value:  # NaN for NaN and for infinity
                    nonfinite[name] += 1
                    self.last_nonfinite[name] = end
                continue
            takers[tag >> layout.NAME_BITS](tag & _NAMES, start, end, raw, at)

    def _take_phase(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        tag = layout.tag(RecordKind.PHASE, number)
        name = self.names.bound("phase", self._name_of(number))
        self.closed_phases[tag] = start
        self.steps.unsettled.phases.append((start, end, name))
        if name not in SECTIONS:
            self._phase_names[tag] = name
        elif end > self.last_progress:
            self.last_progress = end
        if name == EVALUATION and self.notes is not None:
            self.notes.section(name, start, end)

    def _note_step(
        self,
        number: int,
        start: float,
        end: float,
        phases: Sequence[Interval],
        collectives: Sequence[Collective],
    ) -> None:
        if self.notes is not None:
            named = {name: self.scalars[name] for name in SCALARS if name in self.scalars}
            self.notes.step(number, start, end, phases, collectives, named)

    def _take_step(self, _: int, start: float, end: float, raw: bytes, at: int) -> None:
        step, flags = layout.STEP.unpack_from(raw, at)
        failed = flags & layout.STEP_FAILED
        if failed:
            self.timeouts.step_failed(end)
            if self.ledger is not None:
                self.ledger.step_failed(start)
        else:
            self.checkpoints.stepped(step)
        if self.notes is not None:
            self.notes.recorded(start, failed=bool(failed))
        if self.first_step is None:
            self.first_step = (start, end)
        self.steps.step(start, end, step, on_device=flags & layout.STEP_ON_DEVICE != 0)
        if end > self.last_progress:
            self.last_progress = end

    def _take_scalar(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        name = self.names.bound("scalar", self._name_of(number))
        if not name:
            return
        self.nonfinite.setdefault(name, 0)
        judged = name in JUDGED
        if not judged and name != OVERFLOW:  # of which each use is counted
            self._scalar_names[layout.tag(RecordKind.SCALAR, number)] = name
        value, step = _unpack_scalar(raw, at)
        self.scalars[name] = value
        if not math.isfinite(value):
            self.nonfinite[name] += 1
            self.last_nonfinite[name] = end
        if judged:
            self.learning.take(name, value, step, end)
        if name == GRADIENT_NORM:
            self.fingerprints.take_norm(step, value)

    def _take_work(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        unit = self._units.get(number)
        if unit is None:
            unit = self.names.bound("unit", self._name_of(number))
            if unit not in ("", OVERFLOW):
                self._units[number] = unit
        amount, step = _unpack_work(raw, at)
        if unit and 0.0 <= amount < MOST_WORK:
            self.steps.work(step, unit, amount)
            self.learning.work(unit, amount, step)

    def _take_device_phase(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        own, step = layout.DEVICE.unpack_from(raw, at)
        if 0.0 <= own < END_OF_TIME:
            self.steps.device.phase(self.names.bound("phase", self._name_of(number)), own, step)

    def _take_device_wait(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        seconds, step, *_, flags, _ = layout.DEVICE_WAIT.unpack_from(raw, at)
        if flags & layout.POINT_TO_POINT and 0.0 <= seconds < END_OF_TIME:
            self.steps.device.message(seconds, step)

    def _take_device_step(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        step, waited, flags = layout.DEVICE_STEP.unpack_from(raw, at)
        if 0.0 <= waited <= end - start < math.inf:
            known, timed = not flags & layout.UNKNOWN_WAITS, not flags & layout.UNTIMED_PHASES
            self.steps.device_step(step, end - start, waited, known=known, timed=timed)

    def _take_checkpoint_began(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        self.checkpoints.begins(self._name_of(number), start, raw, at)

    def _take_checkpoint(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        size, step, stage, outcome, blocked = layout.CHECKPOINT.unpack_from(raw, at)
        operation = self._name_of(number)
        if operation not in self.checkpoints.operations:
            self.names.dropped += 1
            return
        text = self.names.bound("checkpoint_stage", self._name_of(stage)) if stage else ""
        if self.notes is not None:
            self.notes.checkpoint(operation, text, start, end, size, step, bool(outcome))
        if stage:
            if text:
                failed = bool(outcome)
                self.checkpoints.stage_ended(operation, text, end - start, size, step, failed=failed)
            return
        self.checkpoints.operation_ended(operation, start, end, size, step, outcome, blocked)
        if operation == "load" and blocked > 0.0 and self.ledger is not None:
            self.ledger.restored(start, end)
        if self._observe_checkpoint is not None:
            self._observe_checkpoint(operation, end - start)

    def _take_fingerprint(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        members = self.names.bound("replicas", self._name_of(number))
        self.fingerprints.take(members, end - start, raw, at)

    def _take_lifecycle(self, number: int, start: float, end: float, raw: bytes, at: int) -> None:
        step, reason, *pieces = layout.ENDING.unpack_from(raw, at)
        event, detail = self._name_of(number), self._name_of(reason)
        life = self.lifecycle
        if event == Lifecycle.STARTED:
            self.timeouts.begin_process(start)
        elif event == Lifecycle.RESUMED:
            life.resumes += 1
            self.checkpoints.resumed(step)
            if self.notes is not None:
                self.notes.resumed()
        elif event == Lifecycle.FAILED:
            # Redacted by the rank; its version of rankwatch may not do that yet.
            message = printable(redacted("".join(map(self._name_of, pieces))))
            self.take_failure(Failure(detail, self._kind(detail, message), message))
        if event in _ENDS:
            life.ended_by = Lifecycle(event)

    def _kind(self, exception: str, message: str) -> FailureKind:
        """Return the kind; a trainer that exits although its loss is no number any more gives up because of
        that."""
        kind = kind_of(exception, message)
        lost_loss = self.first_step is not None and not math.isfinite(self.scalars.get(LOSS, 0.0))
        return FailureKind.NON_FINITE if lost_loss and kind is FailureKind.EXIT_STATUS else kind
