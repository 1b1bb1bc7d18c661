"""The attempts of the runs on this node: when each began, when its ranks ended, and how the attempt ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from rankwatch.conventions.states import ENDED_STATES, RankState
from rankwatch.lifecycle import TERMINATED_SUFFIX
from rankwatch.untrusted.folders import look
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.node_events import NodeEvents, RestartCycle, RestartCycles
from rankwatch_agent.runtime.turns import excess
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.run_directories import BoxFaults
from rankwatch_agent.training.goodput.rank_ledger import process_start
from rankwatch_agent.training.life.ends import (
    AttemptEnd,
    RankEnd,
    StopRequest,
    failure_by_kill,
    judge,
    memory_cgroup,
    write_kill,
)
from rankwatch_agent.training.life.failures import Failure, rank_state

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 20.0
"""After the end of the last rank the reasons come in: the kernel's log, files of torchrun, notices."""
NOTICE_SECONDS = 600.0
"""Longest time from a notice of preemption to the end that follows from it."""
MOST_ATTEMPTS = 8
"""Of a run that are remembered."""
_FORGET_SECONDS = 7200.0
_MOST_GONE = 1024
"""Ends of ranks in runs that are not here any more. Of more, the user with most of them loses the run that
came first."""
_MOST_HERE = 8192
"""Ends of ranks in runs that are here: eight attempts of 512 ranks have half as many. Of more, the user with
most of them loses the oldest attempts of a run."""
_MOST_RANKS = 1024
"""Of an attempt, of which a node has 256 at a time."""
_CYCLE_SLACK_SECONDS = 2.0
"""By how much the clock of the node that reports cycles may be ahead."""


@dataclass
class Attempt:
    """One start of the ranks of a run, as far as this node has them. Moments are monotonic."""

    number: int
    run_class: str
    world_size: int
    requeues: int
    restarts: int
    living: set[int] = field(default_factory=set)
    """Ranks whose process lives."""
    ends: dict[int, RankEnd] = field(default_factory=dict)
    """By rank."""
    started: float = float("inf")
    first_rank_started_wall: float | None = None
    """Of rank 0, by its own box; None where it is on another node."""
    first_steps: dict[int, float] = field(default_factory=dict)
    """Rank -> seconds from the start of its process to the end of its first step."""
    highest_step: int = -1
    """That any rank here has completed; -1 before the first."""
    ended: float | None = None
    """When its last rank here ended; None while one lives."""
    found_ended: float | None = None
    end: AttemptEnd | None = None
    """How it ended, once the reasons are in."""
    nvrx_job: str = ""
    """By which NVRx's launcher reports restart cycles; empty below other launchers."""
    owner: int = 0
    """User id of its boxes."""
    cycle: RestartCycle | None = None
    """The newest one of its job; None where none is known."""
    updated: float = 0.0

    @property
    def complete_here(self) -> bool:
        """All of its ranks are on this node."""
        return len(self.living | self.ends.keys()) == self.world_size

    def make_room(self, rank: int) -> None:
        """Forget another rank, if this one is new and would be one too many."""
        if rank in self.living or rank in self.ends or len(self.living) + len(self.ends) < _MOST_RANKS:
            return
        gone = next(iter(self.ends or self.living))
        self.living.discard(gone)
        for known in (self.ends, self.first_steps):
            known.pop(gone, None)


class RunAttempts:
    """Follows the attempts by the followers of the ranks.

    events: kills by the kernel and notices of preemption.
    cycles: the restart cycles of the jobs.
    procfs: the agent's own.
    wall: Unix time of a monotonic moment.
    write_note: keeps the kernel's line of a kill beside the box, for commands that run without the agent.
    """

    def __init__(
        self,
        *,
        events: NodeEvents,
        cycles: RestartCycles,
        procfs: Path,
        wall: Callable[[float], float],
        write_note: Callable[[Path, int, str], None] = write_kill,
    ) -> None:
        self._events = events
        self._cycles = cycles
        self._procfs = procfs
        self._wall = wall
        self._write_note = write_note
        self._attempts: dict[str, dict[int, Attempt]] = {}
        """Run -> number -> attempt."""
        self._cgroups: dict[int, str] = {}
        """Of living ranks, by process id."""
        self._killed: dict[Path, float] = {}
        """Box of a rank whose kill was noted -> start of its process."""
        self._log_limit = LogLimit()

    def update(self, runs: Mapping[str, Sequence[RankFollower]], moment: float, faults: BoxFaults) -> None:
        """Take the state of the ranks of each run on this node."""
        cgroups: dict[int, str] = {}
        jobs: set[tuple[str, int]] = set()
        for rank in chain.from_iterable(runs.values()):
            with faults.contain(rank.path):
                pid = rank.host_pid
                if pid is not None:
                    known = self._cgroups.get(pid)
                    cgroups[pid] = memory_cgroup(self._procfs, pid) if known is None else known
                if rank.header.nvrx_job:
                    jobs.add((rank.header.nvrx_job, rank.owner))
                self._take(rank, moment)
        self._cgroups = cgroups
        self._cycles.wanted = frozenset(jobs)
        self._forget(runs, moment)
        for run, attempts in self._attempts.items():
            with faults.contain(Path(run)):
                for attempt in attempts.values():
                    self._take_cycles(attempt)
                    self._conclude(run, attempt, moment)
        living = {rank.path for rank in chain.from_iterable(runs.values())}
        self._killed = {path: started for path, started in self._killed.items() if path in living}

    def before_new_process(self, rank: RankFollower) -> None:
        """Note how the last process ended: another one has the rank now, so it cannot be seen later."""
        self._take(rank, rank.ended_at if rank.ended_at is not None else rank.last_sign, over=True)

    def of(self, run: str) -> Sequence[Attempt]:
        """Return the attempts of a run, in their order."""
        return [each for _, each in sorted(self._attempts.get(run, {}).items())]

    def all(self) -> Mapping[tuple[str, int], Attempt]:
        """Return the attempts by run and number."""
        return {
            (run, number): each
            for run, attempts in self._attempts.items()
            for number, each in attempts.items()
        }

    def _forget(self, followed: Container[str], moment: float) -> None:
        """Forget attempts of long ago, and runs that are not here any more where there are too many."""
        for run, attempts in list(self._attempts.items()):
            for number, each in list(attempts.items()):
                if each.updated < moment - _FORGET_SECONDS:
                    del attempts[number]
            if not attempts:
                del self._attempts[run]
        gone = excess(
            [run for run in self._attempts if run not in followed],
            owner=lambda run: next(iter(self._attempts[run].values())).owner,
            most=_MOST_GONE,
            size=lambda run: sum(max(1, len(each.ends)) for each in self._attempts[run].values()),
        )
        for run in gone:
            del self._attempts[run]
        here = [(run, number) for run in self._attempts if run in followed for number in self._attempts[run]]
        for run, number in excess(
            here,
            owner=lambda at: self._attempts[at[0]][at[1]].owner,
            most=_MOST_HERE,
            size=lambda at: len(self._attempts[at[0]][at[1]].ends),
        ):
            del self._attempts[run][number]

    def _take(self, rank: RankFollower, moment: float, *, over: bool = False) -> None:
        attempt = self._attempt(rank)
        number = rank.header.identity.rank
        attempt.make_room(number)
        attempt.updated = max(attempt.updated, moment)
        first = rank.totals.first_step
        if first is not None and number not in attempt.first_steps and not rank.reader.missed:
            attempt.first_steps[number] = max(0.0, first[1] - process_start(rank.header))
        attempt.highest_step = max(attempt.highest_step, _last_step(rank))
        if rank.state not in ENDED_STATES and not over:
            attempt.living.add(number)
            attempt.ends.pop(number, None)
            attempt.ended = attempt.found_ended = attempt.end = None
            return
        attempt.living.discard(number)
        if attempt.end is None:
            self._note_end(attempt, rank, moment)

    def _attempt(self, rank: RankFollower) -> Attempt:
        header = rank.header
        identity = header.identity
        attempts = self._attempts.setdefault(rank.run, {})
        found = attempts.get(identity.attempt)
        if found is None:
            found = attempts[identity.attempt] = Attempt(
                identity.attempt, header.run_class, identity.world_size, header.requeues, header.restarts
            )
            for old in sorted(attempts)[: max(0, len(attempts) - MOST_ATTEMPTS)]:
                del attempts[old]
        found.started = min(found.started, process_start(rank.header))
        found.nvrx_job, found.owner = header.nvrx_job, rank.owner
        found.restarts = max(found.restarts, header.restarts)
        if identity.rank == 0:
            found.first_rank_started_wall = header.started_wall
        return found

    def _take_cycles(self, attempt: Attempt) -> None:
        """Take from the launcher the restarts that this node has not seen."""
        if not attempt.nvrx_job:
            return
        job, owner = attempt.nvrx_job, attempt.owner
        attempt.cycle = self._cycles.newest(job, owner) or attempt.cycle
        own = self._cycles.at(job, owner, self._wall(attempt.started) + _CYCLE_SLACK_SECONDS)
        if own is not None:
            attempt.restarts = max(attempt.restarts, own.number)
            attempt.requeues = max(attempt.requeues, own.attempt)

    def _note_end(self, attempt: Attempt, rank: RankFollower, moment: float) -> None:
        number, life = rank.header.identity.rank, rank.totals.lifecycle
        state, failure = rank.state, life.last_failure
        if state not in ENDED_STATES:  # it was replaced before its end was seen, and with it its files
            state = rank_state(rank.path, life.ended_by or "", alive=False, stepped=False)
            state = RankState.TERMINATED if state is RankState.LOST else state
        seen, started = attempt.ends.get(number), rank.header.started_monotonic
        end = attempt.ends[number] = RankEnd(
            rank=number,
            state=state,
            failure=failure,
            in_collective=rank.totals.collectives.last_failed,
            started=started,
            ended=rank.last_sign,
            sigterm_at=_sigterm(rank),
            found_ended=moment if seen is None or seen.started != started else seen.found_ended,
            pid=rank.host_pid,
            cgroup=self._cgroups.get(rank.host_pid or 0, ""),
        )
        kill = failure_by_kill(end, self._events.oom_kills)
        if kill is not None and rank.state in ENDED_STATES:
            self._note_kill(rank, kill)

    def _note_kill(self, rank: RankFollower, kill: Failure) -> None:
        """Count the kill of a rank, and keep it beside its box, once."""
        if self._killed.get(rank.path) == rank.header.started_monotonic:
            return
        self._killed[rank.path] = rank.header.started_monotonic
        if rank.totals.lifecycle.last_failure is None:
            rank.totals.take_failure(kill)
        try:
            self._write_note(rank.path, rank.owner, kill.message)
        except (OSError, ValueError) as error:
            if self._log_limit.allows(str(rank.path)):
                logger.warning("could not keep the kernel's line beside %s: %s", rank.path, error)

    def _conclude(self, run: str, attempt: Attempt, moment: float) -> None:
        if attempt.living or not attempt.ends or attempt.end is not None:
            return
        if attempt.found_ended is None:
            attempt.found_ended = moment
            attempt.ended = max(each.ended for each in attempt.ends.values())
        if moment < attempt.found_ended + SETTLE_SECONDS:
            return
        for number, end in attempt.ends.items():
            kill = failure_by_kill(end, self._events.oom_kills)
            if kill is not None:
                attempt.ends[number] = end._replace(failure=kill)
        attempt.end = judge(list(attempt.ends.values()), self._requests(attempt))
        if self._log_limit.allows(f"{run} {attempt.number} {attempt.ended}"):
            logger.info(
                "attempt %d of run %s ended: %s%s",
                attempt.number,
                run,
                attempt.end.outcome,
                f", {attempt.end.kind}" if attempt.end.kind else "",
                extra={"event": "attempt"},
            )

    def _requests(self, attempt: Attempt) -> list[StopRequest]:
        """Return the notices that fell into the attempt, as long before its end as they may."""
        offset = self._wall(0.0)
        found = [StopRequest(each.wall - offset, each.text) for each in self._events.notices]
        until = attempt.found_ended or 0.0
        return [
            each for each in found if max(attempt.started, until - NOTICE_SECONDS) <= each.moment <= until
        ]


def _last_step(rank: RankFollower) -> int:
    """Return the last step that the present process has completed; -1 for none."""
    now = rank.now
    return (now.step - 1 if now.step_began else now.step) if now.steps_completed else -1


def _sigterm(rank: RankFollower) -> float | None:
    """Return when the rank wrote its stacks because of SIGTERM."""
    try:
        status = look(rank.path.with_suffix(TERMINATED_SUFFIX))
    except OSError:
        return None
    header = rank.header
    moment = header.started_monotonic + status.st_mtime - header.started_wall
    return moment if status.st_size and moment >= header.started_monotonic else None
