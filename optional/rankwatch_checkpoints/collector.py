"""Collector `checkpoints`: has each saved checkpoint verified once, in the background.

The agent on the node of rank 0 does it, so that of the nodes that share a file system one reads, without a
word between them and without a file of ours in the user's folder. Of each user one checkpoint is read at a
time, of the run whose last verification is the oldest, the newest save first; saves older than a good one are
left alone. A few users are served at a time and share what may be read. Who waits gets the place of a
verification that has run for an hour, which begins anew later: its files may lie where nothing ever answers.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch.checkpoint_paths import SUFFIX
from rankwatch.untrusted.chosen_paths import Wanted
from rankwatch.untrusted.text import is_hidden, printable
from rankwatch_agent.runtime.collector import Collection, Schedule, Series, sample
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.writers import PathReaders, user_of
from rankwatch_agent.training.checkpoints.operations import noted_beside
from rankwatch_agent.training.checkpoints.verifications import (
    Saved,
    VerificationRecord,
    VerificationRecords,
    newest_of_paths,
)
from rankwatch_agent.training.conditions import RankCondition, RunCondition, RunConditions
from rankwatch_checkpoints.child import MOST_AT_ONCE, VerifyingProcess

logger = logging.getLogger(__name__)


OUTCOMES = ("good", "damaged", "incomplete", "unverifiable", "gone", "failed")
_SETTLE_SECONDS = 10.0
"""After the end of a save: other ranks may still write."""
_RETRIES = 3
_RETRY_SECONDS = 60.0
"""Between two looks at an incomplete checkpoint, whose save other ranks may not have finished, and between
two tries to start a process."""
_MOST_REMEMBERED = 1000
_MOST_DAMAGED = 3
"""Damaged checkpoints of a run that have series, the newest."""
_LONGEST_LABEL = 200
_MOST_TRIES = 2
"""Of a verification with which the agent ends: by chance, or because the kernel ends a container as a whole
where one of its processes takes too much memory."""
_TURN_SECONDS = 3600.0
"""For which nobody takes the place of a verification."""
_MOST_LEFT = 2
"""Processes beyond those that run, which were killed and do not end; each may hold its memory."""
_LOOK_SECONDS = 60.0
"""Between two looks whether a damaged checkpoint is still there."""


class VerificationSettings(NamedTuple):
    """How and where checkpoints are read."""

    bytes_per_second: float
    path_map: tuple[tuple[str, str], ...]
    """(path in the training process, path on the host); the first that fits."""
    rootfs: Path
    """The host's root, as the agent sees it."""
    directory: Path | None
    """Folder that keeps results across restarts."""


class _Task(NamedTuple):
    run: str
    saved: Saved
    box: Path
    owner: int
    """User id."""
    private: bool
    """The note that names it is hidden from other users."""

    def record(
        self, outcome: str, finished: float = 0.0, seconds: float = 0.0, **found: Any
    ) -> VerificationRecord:
        """Return what becomes of it."""
        kept = {"private": self.private, "owner": self.owner, **found}
        return VerificationRecord(*self.saved, outcome, finished, seconds, **kept)


class CheckpointsCollector:
    """Starts at most one process for each user; `start` and the clock are parameters for tests."""

    name = "checkpoints"

    def __init__(
        self,
        *,
        conditions: RunConditions,
        settings: VerificationSettings,
        schedule: Schedule,
        start: Callable[..., VerifyingProcess] = VerifyingProcess,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._conditions = conditions
        self._settings = settings
        self._start = start
        self._wall = wall
        self._records = VerificationRecords(settings.directory)
        self._outcomes: Counter[str] = Counter()
        self._running: dict[int, tuple[_Task, VerifyingProcess]] = {}
        """By user id."""
        self._ending: dict[int, VerifyingProcess] = {}
        """User id -> their process that was killed and has not ended. They get no other meanwhile."""
        self._served: dict[int, float] = {}
        """User id -> when a checkpoint of theirs was begun last, in seconds since 1970."""
        self._paths = PathReaders()
        self._there: dict[tuple[str, str], tuple[bool, float]] = {}
        """(run, path) of damaged checkpoints: whether they are still there, and when to look again."""
        self._looks: dict[tuple[str, Saved], tuple[int, float]] = {}
        """Checkpoints that were incomplete, or for which no process could be started: how often that was so,
        and when to try again."""
        self._log_limit = LogLimit()
        self._tries: dict[tuple[str, Saved], int] = {}
        """How often verifications were begun with which the agent ended."""
        self._take_up()

    def _take_up(self) -> None:
        """Have verifications begun again with which the last agent ended, unless that was no chance."""
        for run, record in self._records.unfinished():
            if record.tries < _MOST_TRIES:
                self._tries[run, record.saved] = record.tries
                self._records.forget(run, record.saved)
            else:
                self._outcomes[record.outcome] += 1
                self._records.add(run, replace(record, finished=self._wall()))
                logger.warning("the agent ended twice while it read a checkpoint of run %s", printable(run))

    def collect(self) -> Collection:
        """Take the results of processes that have ended, start the next ones, and export."""
        self._finish()
        self._paths.advance()
        runs = self._conditions.runs  # another thread may replace it meanwhile
        pending = list(self._pending(runs))
        self._begin(pending)
        for _, process in self._running.values():
            process.set_rate(self._settings.bytes_per_second / len(self._running))
        running = [task for task, _ in self._running.values()]
        waiting = len(pending) + sum(each not in pending for each in running)
        series = list(self._series_of_runs(runs))
        for outcome in OUTCOMES:
            count = self._outcomes[outcome]
            series.append(sample("rankwatch_checkpoint_verifications_total", (outcome,), count))
        series.append(sample("rankwatch_checkpoint_verifications_pending", (), waiting))
        return Collection(series=series)

    def close(self) -> None:
        for _, process in self._running.values():
            process.kill()
        self._paths.close()

    def _pending(self, runs: Mapping[str, RunCondition]) -> Iterator[_Task]:
        """Yield the saves that wait, in the order in which they are to be verified."""
        oldest_first = sorted(
            runs, key=lambda run: max((e.finished for e in self._records.of_run(run)), default=0.0)
        )
        for run in oldest_first:
            first = next((each for each in runs[run].ranks if each.rank == 0), None)
            if first is not None:
                yield from self._pending_of_run(run, first)

    def _pending_of_run(self, run: str, rank: RankCondition) -> Iterator[_Task]:
        records = self._records.of_run(run)
        done = {each.saved for each in records}
        good = max((each.ended for each in records if each.outcome == "good"), default=-1.0)
        now = self._wall()
        saves = saves_beside(rank.path, rank.owner)
        private = is_hidden(rank.path.with_suffix(SUFFIX), if_gone=True)  # asked last: it may go meanwhile
        for saved in saves:
            if saved.ended <= good:
                return
            settled = now - saved.ended > _SETTLE_SECONDS or saved.ended > now + _SETTLE_SECONDS
            _, not_before = self._looks.get((run, saved), (0, 0.0))
            if saved not in done and settled and now >= not_before:
                yield _Task(run, saved, rank.path, rank.owner, private)

    def _begin(self, pending: list[_Task]) -> None:
        """Start processes for users of whom none runs, first for who has waited longest."""
        first: dict[int, _Task] = {}
        for task in pending:
            if task.owner not in self._running and task.owner not in self._ending:
                first.setdefault(task.owner, task)
        for owner in sorted(first, key=lambda owner: self._served.get(owner, 0.0)):
            if not self._has_place():
                return
            self._served.pop(owner, None)
            self._served = dict([*self._served.items(), (owner, self._wall())][-_MOST_REMEMBERED:])
            task = first[owner]
            tries = self._tries.pop((task.run, task.saved), 0) + 1
            self._records.add(task.run, task.record("failed", tries=tries))
            try:
                user = user_of(task.box, owner)
                process = self._start(self._path_of(task.saved.path), owner=user)
            except OSError as error:  # of the node perhaps, and over in a minute
                if self._looks_again(task):
                    self._records.forget(task.run, task.saved)
                    continue
                why = f"could not start a verification for run {task.run}: {error.strerror}"
                self._record(task, {"error": why}, 0.0)
                continue
            self._running[owner] = (task, process)

    def _has_place(self) -> bool:
        """Return True if another process may run. If need be, the one that has run longest gives way."""
        if len(self._running) + len(self._ending) >= MOST_AT_ONCE + _MOST_LEFT:
            return False
        if len(self._running) < MOST_AT_ONCE:
            return True
        task, process = max(self._running.values(), key=lambda each: each[1].seconds)
        if process.seconds < _TURN_SECONDS:
            return False
        process.kill()
        self._remove(task, process)
        self._records.forget(task.run, task.saved)
        if self._log_limit.allows("gave way"):
            logger.info("the checkpoint of run %s is read later, others wait", printable(task.run))
        return True

    def _remove(self, task: _Task, process: VerifyingProcess) -> None:
        """Remove a task that runs no more, but may not have ended."""
        del self._running[task.owner]
        if not process.has_ended:
            self._ending[task.owner] = process

    def _path_of(self, path: str) -> Path:
        """Return where a path of the training process lies for the agent."""
        for source, target in self._settings.path_map:
            if path == source or path.startswith(f"{source.rstrip('/')}/"):
                path = f"{target.rstrip('/')}/{path[len(source.rstrip('/')) :].lstrip('/')}"
                break
        return self._settings.rootfs / path.lstrip("/")

    def _finish(self) -> None:
        self._ending = {owner: each for owner, each in self._ending.items() if not each.has_ended}
        for task, process in list(self._running.values()):
            seconds = process.seconds
            found = process.result()
            if found is not None:
                self._remove(task, process)
                self._record(task, found, seconds)

    def _record(self, task: _Task, found: dict[str, Any], seconds: float) -> None:
        result = found.get("result") or {}
        outcome = str(result.get("outcome", "gone" if "gone" in found else "failed"))
        if outcome == "incomplete" and self._looks_again(task):
            self._records.forget(task.run, task.saved)
            return
        self._looks.pop((task.run, task.saved), None)
        self._outcomes[outcome] += 1
        problems = result.get("problems") or [{}]
        record = task.record(
            outcome,
            finished=self._wall(),
            seconds=round(seconds, 3),
            bytes=int(result.get("bytes", 0)),
            file=str(problems[0].get("file", "")),
            tensor=str(problems[0].get("tensor", "")),
            damage=str(problems[0].get("damage", "")),
        )
        self._records.add(task.run, record)
        self._log(record, found, problems[0])

    def _looks_again(self, task: _Task) -> bool:
        looks, _ = self._looks.get((task.run, task.saved), (0, 0.0))
        if looks >= _RETRIES:
            return False
        self._looks = dict([*self._looks.items()][-_MOST_REMEMBERED:])
        self._looks[task.run, task.saved] = (looks + 1, self._wall() + _RETRY_SECONDS)
        return True

    def _log(self, record: VerificationRecord, found: dict[str, Any], problem: dict[str, Any]) -> None:
        if record.found_bad:
            where = f"{record.file}, tensor {record.tensor}" if record.tensor else record.file
            detail = printable(f"{where}: {record.damage}: {problem.get('detail', '')}")
            logger.error("checkpoint %s is %s: %s", printable(record.path), record.outcome, detail)
        elif record.outcome == "failed" and self._log_limit.allows("failed"):
            logger.warning("%s", printable(str(found.get("error", "")))[:500])

    def _series_of_runs(self, runs: Mapping[str, RunCondition]) -> Iterator[Series]:
        for run, condition in runs.items():
            records = [each for each in self._records.of_run(run) if each.finished]
            if not records:
                continue
            good = max(
                (each for each in records if each.outcome == "good"), key=lambda e: e.ended, default=None
            )
            if good is not None:
                yield sample("rankwatch_checkpoint_verified_step", (run,), good.step)
                yield sample("rankwatch_checkpoint_verified_timestamp_seconds", (run,), good.ended)
            yield sample("rankwatch_checkpoint_verification_seconds", (run,), records[-1].seconds)
            yield from self._damaged(condition, records)

    def _damaged(self, condition: RunCondition, records: list[VerificationRecord]) -> Iterator[Series]:
        """Yield one series for each damaged path, of its newest verification."""
        bad = [
            each
            for each in newest_of_paths(records)
            if each.found_bad and self._is_there(condition, each.path)
        ]
        for each in bad[-_MOST_DAMAGED:]:
            names = ("", "", "") if each.private else (each.path, each.file, each.tensor)
            labels = (name[:_LONGEST_LABEL] for name in (*names, each.damage))
            yield sample("rankwatch_checkpoint_damaged_step", (condition.run, *labels), each.step)

    def _is_there(self, condition: RunCondition, path: str) -> bool:
        """Return whether a damaged checkpoint was still there at the last look; looks again now and then."""
        there, next_look = self._there.get((condition.run, path), (True, 0.0))
        if self._wall() >= next_look:
            rank = condition.ranks[0]
            found = self._paths.find(rank.path, rank.owner, [Wanted(str(self._path_of(path)), 0)])
            if found is not None:
                there = found[0] is not None
                self._there = dict([*self._there.items()][-_MOST_REMEMBERED:])
                self._there[condition.run, path] = (there, self._wall() + _LOOK_SECONDS)
        return there


def saves_beside(box: Path, owner: int) -> list[Saved]:
    """Return the saves that succeeded by the note beside a box, the newest first; none if it is of no use."""
    saves = [
        Saved(each.path, each.step, each.ended)
        for each in noted_beside(box, owner)
        if each.operation == "save" and not each.failed and each.path.startswith("/")
    ]
    newest: dict[str, Saved] = {}
    for each in sorted(saves, key=lambda each: each.ended, reverse=True):
        newest.setdefault(each.path, each)  # a file that was written again holds the newest only
    return list(newest.values())
