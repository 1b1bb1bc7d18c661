"""The checkpoint operations of one rank: what they add up to, which are under way, and what a resume lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.checkpoint_paths import MOST_BYTES, SUFFIX, NotedCheckpoint, parse_checkpoints
from rankwatch.conventions.vocabulary import CHECKPOINT_OPERATIONS, CheckpointStage
from rankwatch.untrusted.folders import read_owned
from rankwatch.untrusted.text import is_hidden
from rankwatch_agent.runtime.collector import FigureTable, Series, Wall, sample

_SAVE, _VERIFY, _UPLOAD = "save", "verify", "upload"
_MOST_UNDER_WAY = 64
"""Operations of a rank that are followed at a time."""
_MOST_LOOKS = 10
"""How often the note is read for the error of a failure: it is written right after the record."""
_LONGEST_LABEL = 160
_CHECKPOINTS = FigureTable(
    {
        "rankwatch_checkpoint_background_failures_total": "failed_beside",
        "rankwatch_checkpoint_bytes": "bytes",
        "rankwatch_rank_restored_step": "restored_step",
        "rankwatch_rank_steps_lost_total": "steps_lost",
    }
)
_OPERATION = FigureTable(
    {
        "rankwatch_checkpoint_operation_seconds_total": "seconds",
        "rankwatch_checkpoint_blocking_seconds_total": "blocking_seconds",
        "rankwatch_checkpoint_operation_bytes_total": "bytes",
    }
)
_STAGES = FigureTable(
    {
        "rankwatch_checkpoint_stage_seconds_total": "stage_seconds",
        "rankwatch_checkpoint_stage_bytes_total": "stage_bytes",
    }
)


class Checkpoint(NamedTuple):
    """A checkpoint that an operation has ended with success."""

    ended: float
    """Monotonic."""
    step: int


@dataclass
class OperationTotals:
    """Checkpoint operations of one kind."""

    succeeded: int = 0
    failed: int = 0
    unfinished: int = 0
    """Cut off by the end of the process."""
    last_failed: float | None = None
    """When one failed last, monotonic."""
    failed_step: int = -1
    """Its step."""
    error: NotedCheckpoint | None = None
    """Contents of its note."""
    looks_left: int = 0
    """How often the note may still be read for it."""
    seconds: float = 0.0
    blocking_seconds: float = 0.0
    """Of these, those in which the training thread was blocked."""
    bytes: int = 0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    stage_bytes: dict[str, int] = field(default_factory=dict)
    stage_failures: dict[str, int] = field(default_factory=dict)


@dataclass
class _Stages:
    """The stages so far of an operation that has not ended."""

    bytes: int = 0
    write_seconds: float = 0.0
    failed: bool = False
    committed: bool = False


class RankCheckpoints:
    """Adds up the checkpoint operations of a rank, across restarts of its process."""

    def __init__(self) -> None:
        self.operations = {operation: OperationTotals() for operation in CHECKPOINT_OPERATIONS}
        self.bytes: int | None = None
        """Size of the last checkpoint that was saved."""
        self.write_seconds: float | None = None
        """Time in stages `write` of the last save."""
        self.saved: Checkpoint | None = None
        self.committed: Checkpoint | None = None
        """The last one whose common metadata this rank has written, once all ranks had written their part."""
        self.verified: Checkpoint | None = None
        self.uploaded: Checkpoint | None = None
        self._uploads = False
        """Few runs do; they have the series from the beginning of the first one."""
        self.overlapped = 0
        """Saves that began while one before was not finished, or right after a wait for it."""
        self.failed_beside = 0
        """Saves that failed after training had gone on."""
        self.restored_step: int | None = None
        """Of the present process."""
        self.steps_lost = 0
        """Steps done after the checkpoint that a resume took, over all resumes."""
        self.reached = -1
        """Highest step since the last resume."""
        self._stages: dict[tuple[str, int], _Stages] = {}
        """By operation and step."""
        self._under_way: dict[tuple[str, float], None] = {}
        """By operation and beginning."""

    @property
    def good(self) -> Checkpoint | None:
        """The last verified one where the run verifies, else the last saved one."""
        return self.verified or self.saved

    def saves_under_way(self) -> list[float]:
        """Return when each save began that has not ended, monotonic."""
        return [began for operation, began in self._under_way if operation == _SAVE]

    def begins(self, operation: str, began: float, raw: bytes, at: int) -> None:
        _, overlaps = layout.CHECKPOINT_BEGAN.unpack_from(raw, at)
        if operation not in self.operations or len(self._under_way) >= _MOST_UNDER_WAY:
            return
        self._uploads |= operation == _UPLOAD
        if not overlaps:  # the ends of those before may have been overwritten in the ring
            for earlier in [each for each in self._under_way if each[0] == operation]:
                del self._under_way[earlier]
        self._under_way[operation, began] = None
        if operation == _SAVE and overlaps:
            self.overlapped += 1

    def stage_ended(
        self, operation: str, stage: str, seconds: float, size: int, step: int, *, failed: bool
    ) -> None:
        """Count a stage of an operation that has ended. size: bytes of the operation so far."""
        totals = self.operations[operation]
        totals.stage_seconds[stage] = totals.stage_seconds.get(stage, 0.0) + seconds
        if len(self._stages) >= _MOST_UNDER_WAY:
            self._stages.clear()
        open_stages = self._stages.setdefault((operation, step), _Stages())
        if size > open_stages.bytes:
            totals.stage_bytes[stage] = totals.stage_bytes.get(stage, 0) + size - open_stages.bytes
            open_stages.bytes = size
        if stage == CheckpointStage.WRITE:
            open_stages.write_seconds += seconds
        if failed:
            open_stages.failed = True
            totals.stage_failures[stage] = totals.stage_failures.get(stage, 0) + 1
        open_stages.committed |= stage == CheckpointStage.COMMIT and not failed

    def operation_ended(
        self, operation: str, start: float, end: float, size: int, step: int, outcome: int, blocked: float
    ) -> None:
        """Count a whole operation that has ended, after its stages."""
        self._under_way.pop((operation, start), None)
        stages = self._stages.pop((operation, step), _Stages())
        totals = self.operations[operation]
        self._uploads |= operation == _UPLOAD
        totals.seconds += end - start
        totals.bytes += size
        if blocked > 0.0:
            totals.blocking_seconds += min(blocked, end - start)
        if outcome != layout.SUCCEEDED:
            totals.failed += 1
            totals.last_failed, totals.failed_step = end, step
            totals.error, totals.looks_left = None, _MOST_LOOKS
            if not stages.failed:
                other = CheckpointStage.OTHER.value
                totals.stage_failures[other] = totals.stage_failures.get(other, 0) + 1
            if operation == _SAVE and outcome == layout.FAILED_BESIDE:
                self.failed_beside += 1
            return
        totals.succeeded += 1
        if operation == _SAVE:
            self.saved = Checkpoint(end, step)
            self.bytes = size or self.bytes
            self.write_seconds = stages.write_seconds or self.write_seconds
            if stages.committed:
                self.committed = self.saved
        elif operation == _VERIFY:
            self.verified = Checkpoint(end, step)
        elif operation == _UPLOAD:
            self.uploaded = Checkpoint(end, step)

    def stepped(self, number: int) -> None:
        """Note that the rank has completed a step."""
        self.reached = max(self.reached, number)

    def resumed(self, step: int) -> None:
        """Note that the rank goes on from a checkpoint of this step."""
        self.restored_step = step
        self.steps_lost += max(0, self.reached - step) if step >= 0 else 0
        self.reached = step

    def look_for_errors(self, box: Path, owner: int) -> None:
        """Read why operations failed from the note beside the box, if that is not known yet.

        Not from one that its mode hides from others: everybody reads the metrics.
        """
        failed = {name: each for name, each in self.operations.items() if each.looks_left}
        noted = noted_beside(box, owner) if failed and not is_hidden(box.with_suffix(SUFFIX)) else ()
        for name, totals in failed.items():
            totals.looks_left -= 1
            for each in noted:
                if each.failed and (each.operation, each.step) == (name, totals.failed_step):
                    totals.error, totals.looks_left = each, 0
                    break

    def begin_process(self) -> None:
        """Note that another process takes the rank."""
        self.end_process()
        self.restored_step = None

    def end_process(self) -> None:
        """End the process: what it had begun stays unfinished. Further calls do nothing."""
        for operation, _ in self._under_way:
            self.operations[operation].unfinished += 1
        self._under_way.clear()
        self._stages.clear()

    def series(self, key: tuple[str, str], wall: Wall) -> Iterator[Series]:
        """Yield the series of the rank; `wall` turns monotonic time into Unix time."""
        for operation, totals in self.operations.items():
            if operation != _UPLOAD or self._uploads:
                yield from _operation_series((*key, operation), totals)
            if totals.last_failed is not None:
                failed = "rankwatch_checkpoint_last_failure_timestamp_seconds"
                yield sample(failed, (*key, operation), wall(totals.last_failed))
            if totals.error is not None:
                yield _error_series((*key, operation), totals.error)
        yield from _CHECKPOINTS.series(key, self, wall)
        under_way = self.saves_under_way()
        yield sample("rankwatch_checkpoint_saves_pending", key, len(under_way))
        if under_way:
            oldest = wall(min(under_way))
            yield sample("rankwatch_checkpoint_save_pending_since_timestamp_seconds", key, oldest)
        for kind in ("good", "saved", "verified", "uploaded"):
            checkpoint = getattr(self, kind)
            if checkpoint is not None:
                ended = wall(checkpoint.ended)
                yield sample(f"rankwatch_checkpoint_last_{kind}_timestamp_seconds", key, ended)
                yield sample(f"rankwatch_checkpoint_last_{kind}_step", key, checkpoint.step)


def noted_beside(box: Path, owner: int) -> tuple[NotedCheckpoint, ...]:
    """Return the entries of the note beside a box of this owner, the newest first; none if unusable."""
    try:
        return parse_checkpoints(read_owned(box.with_suffix(SUFFIX), owner, MOST_BYTES))
    except (OSError, ValueError):
        return ()


def _error_series(key: tuple[str, str, str], noted: NotedCheckpoint) -> Series:
    exception, found, message = noted.error.partition(": ")
    if not exception.replace(".", "").isidentifier():  # a text that is no exception
        exception, message = "", noted.error
    elif not found:
        message = ""
    labels = (each[:_LONGEST_LABEL] for each in (exception, message, noted.path))
    return sample("rankwatch_checkpoint_last_failure_info", (*key, *labels), 1)


def _operation_series(at: tuple[str, str, str], totals: OperationTotals) -> Iterator[Series]:
    outcomes = {"success": totals.succeeded, "failure": totals.failed, "unfinished": totals.unfinished}
    for outcome, count in outcomes.items():
        yield sample("rankwatch_checkpoint_operations_total", (*at, outcome), count)
    if totals.succeeded or totals.failed:
        yield from _OPERATION.series(at, totals)
    yield from _STAGES.series(at, totals)
    for stage, count in (dict.fromkeys(totals.stage_seconds, 0) | totals.stage_failures).items():
        yield sample("rankwatch_checkpoint_stage_failures_total", (*at, stage), count)
