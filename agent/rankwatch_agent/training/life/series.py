"""Series of attempts: how those of each run began and ended, and counters by class of the run.

The counters are kept across restarts of the agent. They have no label of a run: a counter that first appears
with the value 1 has not increased, as far as Prometheus can tell. So each series of a class exists from the
moment the agent first sees a run of that class, and nothing is counted before it has been there for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankwatch.blackbox.records import Header
from rankwatch.conventions.states import FailureKind, Outcome, StartCause
from rankwatch_agent.runtime.collector import Series, sample
from rankwatch_agent.runtime.node_events import RestartCycle
from rankwatch_agent.runtime.state_file import StateFile
from rankwatch_agent.training.boxes.run_directories import BoxFaults
from rankwatch_agent.training.life.attempts import Attempt

BORN_SECONDS = 60.0
"""Time for which the series of a class are exported before anything is counted: some scrapes."""
MOST_CLASSES = 32
"""Of more, the user who has brought most of them loses the newest."""
OTHER_CLASS = "(more)"
"""Stands for the classes beyond."""
_MOST_COUNTED = 2000


@dataclass
class _Counts:
    """Of one class."""

    born: float
    """Unix time at which its series were first exported."""
    owner: int | None = None
    """User id of who brought the class, or of one with fewer classes who has runs of it."""
    ends: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)


class LifeCounters:
    """Counts each attempt once.

    An attempt spans nodes, whose agents do not know each other. The node of rank 0 counts its start and its
    end. A failure is counted where its root cause is: the other nodes see only victims.

    directory: where the counts are kept. Without one they begin anew with the agent, and what ended before
        that is not counted.
    started: Unix time at which the agent started.
    """

    def __init__(self, directory: Path | None, started: float) -> None:
        self._classes: dict[str, _Counts] = {}
        self._counted: dict[str, None] = {}
        """Keys of what was counted, in order."""
        self._since = started
        """Unix time: what began or ended earlier is not counted, unless the file knows of it."""
        self._file = StateFile(directory, "attempts.json", lost="attempts are counted from now on")
        self._file.load(self._load)

    def update(
        self, attempts: Mapping[tuple[str, int], Attempt], wall: float, offset: float, faults: BoxFaults
    ) -> None:
        """Count what is new. `wall` is Unix time of now, `offset` turns monotonic time into it."""
        changed = False
        keys = 0
        for (run, number), attempt in attempts.items():
            keys += 2
            with faults.contain(Path(run)):
                counts = self._classes[self._class(attempt.run_class, attempt.owner, wall)]
                if wall < counts.born + BORN_SECONDS:
                    continue
                key = f"{run}/{number}/{attempt.first_rank_started_wall or attempt.started + offset:.0f}"
                changed |= self._count_start(attempt, counts, key)
                changed |= self._count_end(attempt, counts, key, offset)
        # What is still known must stay: it would be counted again.
        for what in list(self._counted)[: max(0, len(self._counted) - max(_MOST_COUNTED, keys))]:
            del self._counted[what]
        if changed:
            self._save()

    def series(self) -> Iterator[Series]:
        """Yield every count of every class that was seen, 0 included."""
        for name, counts in self._classes.items():
            for outcome in Outcome:
                yield sample("rankwatch_run_attempts_total", (name, outcome), counts.ends.get(outcome, 0))
            for kind in FailureKind:
                yield sample("rankwatch_run_failures_total", (name, kind), counts.failures.get(kind, 0))
            for cause in StartCause:
                yield sample("rankwatch_run_starts_total", (name, cause), counts.starts.get(cause, 0))

    def _class(self, run_class: str, owner: int, wall: float) -> str:
        """Return the name by which a class of a user is counted; it has counts then."""
        brought = Counter(each.owner for name, each in self._classes.items() if name != OTHER_CLASS)
        found = self._classes.get(run_class)
        if found is not None:
            if brought[found.owner] > brought[owner] + 1:
                found.owner = owner
            return run_class
        name = run_class
        if brought.total() >= MOST_CLASSES:
            most = max(brought, key=brought.__getitem__)
            if brought[most] > brought[owner] + 1:
                newest = [each for each, counts in self._classes.items() if counts.owner == most]
                del self._classes[[each for each in newest if each != OTHER_CLASS][-1]]
            else:
                name = OTHER_CLASS
        if name not in self._classes:
            self._classes[name] = _Counts(wall, owner)
            self._save()
        return name

    def _count_start(self, attempt: Attempt, counts: _Counts, key: str) -> bool:
        started = attempt.first_rank_started_wall
        if started is None or started < self._since:
            return False
        if not self._is_new(f"start {key}"):
            return False
        cause = _cause(attempt)
        counts.starts[cause] = counts.starts.get(cause, 0) + 1
        return True

    def _count_end(self, attempt: Attempt, counts: _Counts, key: str, offset: float) -> bool:
        end = attempt.end
        if end is None or attempt.ended is None or attempt.ended + offset < self._since:
            return False
        if not self._is_new(f"end {key}"):
            return False
        if attempt.first_rank_started_wall is not None:
            counts.ends[end.outcome] = counts.ends.get(end.outcome, 0) + 1
        if end.kind is not None and (end.has_root_cause or attempt.complete_here):
            counts.failures[end.kind] = counts.failures.get(end.kind, 0) + 1
        return True

    def _is_new(self, what: str) -> bool:
        known = what in self._counted
        self._counted.pop(what, None)
        self._counted[what] = None
        return not known

    def _save(self) -> None:
        classes = {name: asdict(each) for name, each in self._classes.items()}
        self._file.save({"since": self._since, "classes": classes, "counted": list(self._counted)})

    def _load(self, found: Any) -> None:
        classes = {str(name): _counts(each) for name, each in found["classes"].items()}
        counted = dict.fromkeys(str(each) for each in found["counted"])
        self._since, self._classes, self._counted = float(found["since"]), classes, counted


def _cause(attempt: Attempt) -> StartCause:
    if attempt.restarts or (attempt.number and not attempt.requeues):
        return StartCause.RESTART
    return StartCause.REQUEUE if attempt.requeues else StartCause.FIRST


def _counts(found: dict[str, object]) -> _Counts:
    """Read the counts; raises KeyError, ValueError, TypeError or AttributeError for other than what was
    saved."""
    parts = {name: found[name] for name in ("ends", "failures", "starts")}
    counts = {
        name: {str(key): max(0, int(value)) for key, value in dict(part).items()}  # type: ignore[call-overload]
        for name, part in parts.items()
    }
    owner = found.get("owner")
    return _Counts(float(found["born"]), None if owner is None else int(owner), **counts)  # type: ignore[arg-type, call-overload]


_WANTED = frozenset((Outcome.FINISHED, Outcome.PREEMPTED, Outcome.INTERRUPTED))
"""Ends that are no fault of the run."""
_MOST_MESSAGE = 160
"""Characters of a message in a label."""


def life_series(
    run: str, attempts: Sequence[Attempt], headers: Iterable[Header], wall: Callable[[float], float]
) -> Iterator[Series]:
    """Yield what this node knows of the newest attempt of a run, and how the newest that is over ended.

    headers: of the ranks here. wall: Unix time of a monotonic moment.
    """
    if not attempts:
        return
    newest = attempts[-1]
    yield sample("rankwatch_run_requeues", (run,), newest.requeues)
    yield sample("rankwatch_run_restarts", (run,), newest.restarts)
    yield sample("rankwatch_run_attempt_start_timestamp_seconds", (run,), wall(newest.started))
    if newest.first_steps:
        yield sample("rankwatch_run_time_to_first_step_seconds", (run,), max(newest.first_steps.values()))
    yield sample("rankwatch_run_attempts_without_progress", (run,), without_progress(attempts))
    if newest.cycle is not None:
        yield from _cycle_series(run, newest.cycle)
    deadline = max((each.deadline_wall or 0.0 for each in headers), default=0.0)
    if deadline:
        yield sample("rankwatch_run_deadline_timestamp_seconds", (run,), deadline)
    ended = next((each for each in reversed(attempts) if each.end is not None), None)
    if ended is not None and ended.end is not None and ended.ended is not None:
        end = ended.end
        labels = (
            run,
            str(ended.number),
            end.outcome,
            end.kind or "",
            end.exception,
            "" if end.rank is None else str(end.rank),
            end.message[:_MOST_MESSAGE],
        )
        yield sample("rankwatch_run_attempt_end_timestamp_seconds", labels, wall(ended.ended))


def _cycle_series(run: str, cycle: RestartCycle) -> Iterator[Series]:
    yield sample("rankwatch_run_cycle", (run,), cycle.number)
    yield sample("rankwatch_run_cycle_start_timestamp_seconds", (run,), cycle.started)
    if cycle.ended is not None:
        yield sample("rankwatch_run_cycle_end_timestamp_seconds", (run,), cycle.ended)
    if cycle.active_nodes is not None:
        yield sample("rankwatch_run_nodes", (run, "active"), cycle.active_nodes)
    yield sample("rankwatch_run_nodes", (run, "standby"), cycle.standby_nodes)


def without_progress(attempts: Sequence[Attempt]) -> int:
    """Count attempts that ended one after the other without a step that no attempt had reached before."""
    count, highest = 0, -1
    for each in attempts:
        further = each.highest_step > highest
        highest = max(highest, each.highest_step)
        if further or (each.end is not None and each.end.outcome in _WANTED):
            count = 0
        elif each.end is not None:
            count += 1
    return count
