"""Follows the black box of one rank: across records, restarts of its process, and its death.

This is the one reader of a box for the agent, the diagnosis and the command line.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

from rankwatch.blackbox import earlier_attempts, layout, tenants
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.records import Columns, GroupNow, Header, NowBlock, RawRecord
from rankwatch.conventions.states import ENDED_STATES, BoxFault, FailureKind, RankState
from rankwatch.conventions.vocabulary import Lifecycle
from rankwatch.errors import BlackBoxError
from rankwatch.untrusted.chosen_paths import Wanted
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.life.failures import (
    Failure,
    Find,
    TorchrunFiles,
    find_now,
    left_behind,
    rank_state,
    told_by_error_file,
    torchrun_paths,
)
from rankwatch_agent.training.notes import Process
from rankwatch_agent.training.steps.timeouts import is_too_long

_STAGE, _REPLICA = "pp", "dp"
"""Names of the pipeline-parallel and of the data-parallel coordinate."""
_MOST_AGE_SECONDS = 86400.0 * 3650
_RECORDS_PER_POLL = 1 << 14
"""One default ring. A larger one takes several polls, so that no box holds up the others."""


class RankFollower:
    """One rank of one run, by its black box.

    totals: adds up the records.
    in_its_place: refuse a box whose path does not name its run and rank; two of one rank would export
        the same series twice.
    directory: holds all runs, for those of tenants.
    keep_records: how many of the newest records stay in `newest`.
    before_new_process: called when another process has taken the rank, while all that is known of the one
        before is still here.
    find: reads the files of torchrun for a rank that failed.

    Raises BlackBoxError where the box cannot be read, or names another run or rank than its path.
    """

    def __init__(
        self,
        path: Path,
        totals: RankTotals,
        *,
        in_its_place: bool = True,
        directory: Path | None = None,
        keep_records: int = 0,
        before_new_process: Callable[[RankFollower], None] | None = None,
        find: Find = find_now,
    ) -> None:
        self.path = path
        self._find = find
        self._asked: tuple[Wanted, ...] | None = None
        """Files of torchrun that are being read, by which the end of the present process will be judged."""
        self._in_its_place = in_its_place
        self._before_new_process = before_new_process
        self.totals = totals
        self.starts = 1
        self.state = RankState.STARTING
        self.alive = False
        """Whether a process held the lock of the box when it was read."""
        self.host_pid: int | None = None
        """The process in the agent's PID namespace, also after its end; None where it was never seen."""
        self.gpu = ""
        """UUID of its GPU or MIG instance; empty if it names none, or one of others (see `judge_gpu`)."""
        self.ended_at: float | None = None
        """Monotonic time at which the rank was first seen ended."""
        self.now: NowBlock
        self.newest: deque[RawRecord] = deque(maxlen=keep_records)
        """Of the present process, in order."""
        self.open_phase: tuple[str, float] | None = None
        """Innermost open phase and when it began, monotonic."""
        self.reader = self._open()
        """Of the present process's box."""
        self.owner = self.reader.owner
        """User id of the box's owner."""
        self.run, self.foreign = self.reader.header.identity.run, False
        """The run as labels name it, and whether the box is in a directory of another user."""
        if in_its_place:
            self.run, self.foreign = run_label(path, self.owner, directory)
        self._missed_before = 0
        self._missed_seen = 0
        """Of the present process, and known to the account of its time."""
        self._note_process()
        totals.collectives.resolve_by(self.reader.name, self._groups_now)

    @property
    def pid(self) -> int | None:
        """The process that writes the box, in the agent's PID namespace; None where it is unknown or gone."""
        return self.reader.writer_pid

    @property
    def header(self) -> Header:
        """The header of the present process's box."""
        return self.reader.header

    @property
    def stage(self) -> str:
        """Its pipeline stage; `0` where there is only one."""
        return str(self.header.identity.coordinates.get(_STAGE, (0, 1))[0])

    @property
    def replica(self) -> str:
        """Its replica among data-parallel ones; empty where it declares none."""
        replica = self.header.identity.coordinates.get(_REPLICA)
        return str(replica[0]) if replica else ""

    @property
    def timeout(self) -> float | None:
        """Longest normal time without progress for what it does now, learnt from itself; None if unknown."""
        return self.totals.timeouts.timeout(self.open_phase[0] if self.open_phase else None)

    @property
    def missed(self) -> int:
        """Records missed, over all processes of the rank."""
        return self._missed_before + self.reader.missed

    def poll(self, moment: float, *, to_end: bool = False) -> None:
        """Read what is new; `moment` is the monotonic time of now.

        to_end: leave nothing that is written to a next poll.

        One pass suffices for a box that is written meanwhile, because of its order: the lock first, then the
        now block, then the ring. What a dead process wrote last is read. The writer appends the record of an
        operation before it takes it out of the now block: what the block does not call open any more has its
        record in the ring, and what it calls open although the ring holds its record has ended in between.
        """
        if self._asked is None and self.reader.replaced():
            self._take_new_processes()
        self.alive = self.reader.writer_alive()
        self.host_pid = self.reader.writer_pid or self.host_pid
        self.now = self.reader.now()
        idle_until = self.now.step_began or moment
        self.totals.collectives.observe(self.now.groups)
        for columns in self.reader.read_to_end() if to_end else (self.reader.poll(_RECORDS_PER_POLL),):
            self._take(columns)
        self.totals.steps.settle(moment, idle_until, living=self.alive)
        self.totals.checkpoints.look_for_errors(self.path, self.owner)
        self.open_phase = self._innermost_open()
        self._judge(moment)
        self._keep_account(moment)

    def judge_gpu(self, users: Mapping[str, Container[int]]) -> None:
        """Take the GPU that the box names, unless other users have processes on it and its own has none.

        users: by UUID; any rank may be on a GPU that it lacks.
        """
        named = self.now.gpu
        self.gpu = named if named not in users or self.owner in users[named] else ""

    def name(self, number: int) -> str:
        """Return the name that records of the present process give by this number; empty without one."""
        return self.reader.name(number)

    def close(self) -> None:
        """Give the file back."""
        self.reader.close()

    def _open(self) -> Reader:
        path = self.path
        reader = Reader(path, follow_folder=not self._in_its_place)
        identity = reader.header.identity
        named = path.parent.name == identity.run and path.stem == str(identity.rank)
        if self._in_its_place and not named:
            reader.close()
            raise BlackBoxError(
                f"{path} says it is rank {identity.rank} of run {identity.run[:64]!r}", reason="mismatch"
            )
        return reader

    def _take(self, columns: Columns) -> None:
        if self.reader.missed > self._missed_seen:
            self._missed_seen = self.reader.missed
            if self.totals.ledger is not None:
                self.totals.ledger.missed()
        self.totals.add(columns, self.reader.name)
        if self.newest.maxlen:
            self.newest.extend(columns.records())

    def _take_new_processes(self) -> None:
        """Take the process that has the rank now, after those that came and went unseen."""
        newest = self._open()
        for reader in (*self._unseen(newest.header.identity.attempt), newest):
            self._take_new_process(reader)

    def _unseen(self, newest: int) -> Iterator[Reader]:
        """Yield the boxes of attempts between the present one and the newest, as far as they are kept."""
        rank, present = self.header.identity.rank, self.header.identity.attempt
        for attempt in range(max(present + 1, newest - earlier_attempts.MOST_OF_RANK), newest):
            path = earlier_attempts.place_of(self.path, attempt)
            with (
                contextlib.suppress(OSError, BlackBoxError),
                Folder.open(self.path.parent) as run,
                run.folder(path.parent.name) as folder,
            ):
                reader = Reader(path, folder=folder)
                identity = reader.header.identity
                if reader.owner == self.owner and (identity.rank, identity.attempt) == (rank, attempt):
                    yield reader
                else:
                    reader.close()

    def _take_new_process(self, reader: Reader) -> None:
        if reader.owner != self.owner:
            reader.close()
            raise BlackBoxError(
                f"{self.path} now belongs to user {reader.owner}", reason=BoxFault.FOREIGN_OWNER
            )
        with contextlib.suppress(BlackBoxError):  # the old box may be broken; the new one counts
            self._take(self.reader.poll())
            self.now = self.reader.now()
        self.reader.close()
        self._missed_before += self.reader.missed
        self._note_end(self.last_sign)
        self.totals.steps.settle(math.inf, math.inf)
        self._end_account()
        if self._before_new_process is not None:
            self._before_new_process(self)
        self.reader = reader
        self._missed_seen = 0
        self.newest.clear()
        self.totals.begin_process()
        self.totals.collectives.resolve_by(reader.name, self._groups_now)
        self.starts += 1
        self.ended_at = self.host_pid = None
        self._note_process()

    def _groups_now(self) -> Sequence[GroupNow]:
        """Return the table of groups as it stands: one may have been made since this poll began."""
        return self.reader.now().groups

    def _innermost_open(self) -> tuple[str, float] | None:
        """Return the open phase that began last.

        None outlasts the end of a step: one that began before it is over, even where the record of its end
        was overwritten before it could be read.
        """
        closed = self.totals.closed_phases
        step_ended = self.now.step_ended
        still_open = [
            (began, number)
            for number, began in self.now.phases_began.items()
            if began >= step_ended
            and not math.isclose(
                closed.get(layout.tag(RecordKind.PHASE, number), -1.0), began, rel_tol=0.0, abs_tol=1e-9
            )
        ]
        if not still_open:
            return None
        began, number = max(still_open)
        name = self.totals.names.bound("phase", self.reader.name(number))
        return (name, began)

    def _judge(self, moment: float) -> None:
        ended_by = self.totals.lifecycle.ended_by or ""
        stepped = self.now.steps_completed > 0
        before = self.state
        self.state = rank_state(self.path, ended_by, alive=self.alive, stepped=stepped)
        if self.state in ENDED_STATES and self.ended_at is None:
            if not self._look_for_failure() and self.state is RankState.LOST:
                self.state = before  # its files may say that it has failed
                return
            self.ended_at = self._end_of_life(moment)
        elif self._asked is not None:
            self._look_for_failure()
        # One that has written torchrun's error file has failed, and only could not say so in its box.
        failed = self.totals.lifecycle.last_failure
        if self.state is RankState.LOST and failed is not None and not failed.by_signal:
            self.state = RankState.FAILED
        if self.state in ENDED_STATES:
            self._note_end(self.last_sign)
            if not self.alive:
                self.totals.checkpoints.end_process()

    def _look_for_failure(self) -> bool:
        """Look for what its files tell of its end, and the box does not; False while they are read."""
        life = self.totals.lifecycle
        if self.state not in (RankState.FAILED, RankState.LOST):
            return True
        self._asked = torchrun_paths(self.path, self.owner) if self._asked is None else self._asked
        found = self._find(self.path, self.owner, self._asked) if self._asked else ()
        if found is None:
            return False
        self._asked, files = None, TorchrunFiles(*found)
        if self.state is RankState.FAILED and life.last_failure is not None:
            life.last_failure = told_by_error_file(self.path, files, life.last_failure)
        failure = left_behind(self.path, self.owner, files) if self.state is RankState.LOST else None
        if failure is not None:
            self.totals.take_failure(self._aborted_by_watchdog(failure) or failure)
        return True

    def _aborted_by_watchdog(self, failure: Failure) -> Failure | None:
        """Return the failure as the watchdog's, if a library aborted a rank that had stood still for long."""
        if failure.wall is None or not failure.by_watchdog_or_library:
            return None
        since = failure.wall - self.header.wall(self.totals.last_progress or self.header.started_monotonic)
        if not is_too_long(since, self.timeout):
            return None
        message = f"aborted in a thread of a library, after {since:.0f} s without progress"
        return failure._replace(kind=FailureKind.WATCHDOG_ABORT, message=message)

    def _note_process(self) -> None:
        """Note the present process for traces and for the account of its time, if somebody wants them."""
        self.totals.account(self.reader.header)
        if self.totals.notes is not None:
            self.totals.notes.begin(Process(self.run, self.reader.header, self.owner))

    def _keep_account(self, moment: float) -> None:
        """Attribute what no step holds: the end of the process, or a stall."""
        ledger, totals = self.totals.ledger, self.totals
        if ledger is None or not totals.steps.all_settled:
            return
        if self.state in ENDED_STATES and not self.alive:
            self._end_account()
        elif self.state not in ENDED_STATES:
            since = max(totals.last_progress, self.header.started_monotonic)
            if is_too_long(moment - since, self.timeout):
                ledger.stall(moment)

    def _end_account(self) -> None:
        if self.totals.ledger is not None:
            in_order = self.totals.lifecycle.ended_by in (Lifecycle.FINISHED, Lifecycle.EXITED)
            self.totals.ledger.end_process(self.last_sign, in_order=in_order)

    def _note_end(self, moment: float) -> None:
        """Note the end of the present process; one that left no word was ended from outside."""
        if self.totals.notes is None:
            return
        life, state = self.totals.lifecycle, self.state
        if state not in ENDED_STATES:
            state = rank_state(self.path, life.ended_by or "", alive=False, stepped=False)
        failed = life.last_failure
        exception = (failed.exception, failed.message) if failed is not None else ("", "")
        open_step = (self.now.step, self.now.step_began) if self.now.step_began else None
        self.totals.notes.ended(state, moment, open_step, exception)

    @property
    def last_sign(self) -> float:
        """The newest moment that the box of the present process knows, monotonic."""
        now = self.now
        signs = (self.header.started_monotonic, self.totals.last_record, now.step_ended, now.step_began)
        return max(*signs, *now.phases_began.values())

    def _end_of_life(self, moment: float) -> float:
        """Return when the rank ended: its last sign of life, so that a box found late is old at once."""
        last = self.last_sign
        return last if 0.0 < moment - last < _MOST_AGE_SECONDS else moment


def run_label(box: Path, owner: int, directory: Path | None) -> tuple[str, bool]:
    """Return the run of a box as labels name it, and if its directory is another user's. Raises OSError.

    directory: holds all runs, those of tenants in directories of their own.
    """
    foreign = box.parent.lstat().st_uid != owner
    return tenants.run_label(box.parent, directory, owner, foreign=foreign), foreign
