"""The time of the ranks of all runs of this node, over all attempts, kept across restarts of the agent.

Loading a ledger from JSON values raises LookupError, TypeError, ValueError or AttributeError for anything
else than was saved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rankwatch.blackbox.records import Header
from rankwatch.conventions.states import ENDED_STATES, GoodputState
from rankwatch.identity import MOST_ATTEMPTS
from rankwatch_agent.runtime.collector import Series, sample
from rankwatch_agent.runtime.state_file import StateFile
from rankwatch_agent.runtime.turns import excess
from rankwatch_agent.training.goodput.rank_ledger import FirstStep, Process, RankLedger, Seconds, add_up
from rankwatch_agent.training.goodput.shared import AttemptHistory, AttemptRecord, RoleTransfers, Transfers

MOST_RANKS = 1024
"""Of a run on one node, over all of its attempts. Of more, those that ended first are forgotten."""


class RunLedger:
    """The ledgers of the ranks of one run on this node."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankLedger] = {}
        self.attempts = AttemptHistory()
        self.roles: dict[str, RoleTransfers] = {}
        """Pipeline stage -> what transfers take there."""

    @property
    def seconds(self) -> Seconds:
        """Rank-seconds by state."""
        found = dict.fromkeys(GoodputState, 0.0)
        for each in self.ranks.values():
            add_up(found, each.seconds)
        return found

    @property
    def size(self) -> int:
        """How many attempts of ranks it holds; the rest of a rank takes as much memory as eight."""
        return sum(8 + len(each.by_attempt) for each in self.ranks.values())

    def rank(self, header: Header) -> RankLedger:
        """Return the ledger of a rank, made where there is none."""
        return self.rank_of(header.identity.rank, str(header.identity.coordinates.get("pp", "")))

    def rank_of(self, number: int, role: str) -> RankLedger:
        """Return the same by its number; ranks of one role do the same work."""
        found = self.ranks.get(number)
        if found is None:
            transfers = Transfers(self.roles.setdefault(role, RoleTransfers()))
            found = self.ranks[number] = RankLedger(self.attempts, transfers, role)
        return found

    def newest_attempt(self, rank: int) -> int:
        """Return the attempt in which the rank has its newest process; -1 where none is known."""
        found = self.ranks.get(rank)
        return -1 if found is None or found.process is None else found.attempt

    def charge_ended(self, moment: float, living: Collection[int]) -> None:
        """Attribute the time of ranks that have ended: idle beside others of their attempt, down once the
        next attempt has begun. `moment` is monotonic, `living` the ranks whose processes live."""
        ended = [each for each in self.ranks if each not in living]
        self._drop(ended[: max(0, len(self.ranks) - MOST_RANKS)])
        newest = self.attempts.newest
        busy = {self.ranks[each].attempt for each in living if each in self.ranks}
        last: dict[int, float] = {}
        for ledger in self.ranks.values():
            last[ledger.attempt] = max(ledger.cursor, last.get(ledger.attempt, ledger.cursor))
        for ledger in self.ranks.values():
            if not ledger.ended:
                continue
            if ledger.attempt < newest:
                ledger.down(self.attempts.by_number[newest].started)
            elif ledger.attempt in busy:
                ledger.idle(moment)
            else:  # until the last of them had ended
                ledger.idle(last[ledger.attempt])

    def shrink(self, here: Container[int]) -> None:
        """Forget ranks that are not here any more, and join the attempts of each of the others."""
        self._drop([each for each in self.ranks if each not in here])
        for ledger in self.ranks.values():
            ledger.join_attempts()

    def _drop(self, ranks: Iterable[int]) -> None:
        for each in ranks:
            gone = self.ranks.pop(each)
            gone.forget()
            if not self.roles[gone.role].ranks:
                del self.roles[gone.role]

    def by_attempt(self) -> Iterator[tuple[int, AttemptRecord, Seconds]]:
        """Yield number, span and rank-seconds by state of each attempt, in their order."""
        for number, span in sorted(self.attempts.by_number.items()):
            seconds: Seconds = {}
            for ledger in self.ranks.values():
                add_up(seconds, ledger.by_attempt.get(number, {}))
            yield number, span, seconds


if TYPE_CHECKING:
    from rankwatch_agent.training.boxes.follower import RankFollower
    from rankwatch_agent.training.boxes.run_directories import BoxFaults

ACCOUNT = "goodput.json"
"""Name of the file."""
FORGET_SECONDS = 86400.0
"""After which a run that was not seen any more is forgotten: the next attempt counts its time as down."""
SAVE_SECONDS = 10.0
_MOST_KEPT = 1 << 16
"""Attempts in all runs, as `RunLedger.size` counts them: 100 of 512 ranks. Of more, the user with most of
them loses the run that was seen last the longest ago. One that is here keeps the sums of its ranks here."""
_PAUSE = 20.0
"""After a save that took long, as a multiple of the time it took."""
_SHORT_SECONDS = 0.05
_MOST_BYTES = 64 << 20
"""100 attempts of 512 ranks take about 16 MB."""
_FORMAT = 1


class _Seen(NamedTuple):
    """When a run was seen last, and whose it is."""

    wall: float
    """Unix time, by the agent's clock: that of a black box is what its user says."""
    owner: int | None
    """User id; None in a file of an agent that did not write it down."""


class RunLedgers:
    """By the name of the run, as labels name it.

    directory: where they are kept; without one they begin anew with the agent.
    started: Unix time at which the agent started.
    """

    def __init__(self, directory: Path | None, started: float) -> None:
        self.runs: dict[str, RunLedger] = {}
        """Those of which the collector `ranks` knows; read them from its thread, or take single numbers."""
        self._seen: dict[str, _Seen] = {}
        """Those whose boxes have been read."""
        self._started = started
        self._saved = 0.0
        self._pause = 0.0
        """Least time between two saves."""
        self._processes = (0, 0)
        """Ranks and processes of them at the last save."""
        self._file = StateFile(
            directory, ACCOUNT, lost="the account of time begins anew", most_bytes=_MOST_BYTES
        )
        self._file.load(self._load)

    def of(self, run: str) -> RunLedger:
        """Return the ledger of a run, made where there is none."""
        found = self.runs.get(run)
        if found is None:
            found = self.runs[run] = RunLedger()
        return found

    def update(
        self,
        runs: Mapping[str, Sequence[RankFollower]],
        moment: float,
        wall: float,
        faults: BoxFaults,
        followed: Container[str] = (),
    ) -> None:
        """Attribute the time of ranks that have ended, and save now and then; `moment` is monotonic, `wall`
        the same in Unix time.

        Also once a rank has another process: what its box holds is read again after a restart of the agent,
        but that of the process before is gone.

        followed: runs whose boxes may not have been read yet.
        """
        starts = [each.starts for ranks in runs.values() for each in ranks]
        processes = (len(starts), sum(starts))
        for run, ranks in runs.items():
            self._seen[run] = _Seen(wall, ranks[0].owner)
            with faults.contain(ranks[0].path):
                living = {each.header.identity.rank for each in ranks if each.state not in ENDED_STATES}
                self.of(run).charge_ended(moment, living)
        self._forget(runs, followed, wall)
        pause = SAVE_SECONDS if processes == self._processes else self._pause
        if moment >= self._saved + pause:
            self._saved, self._processes = moment, processes
            began = time.monotonic()
            self.save()
            took = time.monotonic() - began
            self._pause = _PAUSE * took if took > _SHORT_SECONDS else 0.0

    def series(self, run: str) -> Iterator[Series]:
        """Yield what the time of a run was spent on; every state, from the beginning."""
        for state, seconds in self.runs[run].seconds.items():
            yield sample("rankwatch_goodput_seconds_total", (run, state), seconds)

    def save(self) -> None:
        runs = {run: [*seen, save_run(self.runs[run])] for run, seen in self._seen.items()}
        self._file.save({"format": _FORMAT, "runs": runs})

    def _forget(
        self, read: Mapping[str, Sequence[RankFollower]], followed: Container[str], wall: float
    ) -> None:
        """Forget runs that are not here any more: too old ones, too many of a user, and those of which no box
        could be read."""
        gone = [run for run in self.runs if run not in read and run not in followed]
        ended = sorted((run for run in gone if run in self._seen), key=lambda run: self._seen[run].wall)
        recent = [run for run in ended if self._seen[run].wall >= wall - FORGET_SECONDS]
        crowded = excess(
            [*recent, *read],
            owner=lambda run: self._seen[run].owner,
            most=_MOST_KEPT,
            size=lambda run: self.runs[run].size,
        )
        kept = set(recent) - set(crowded)
        for run in gone:
            if run not in kept:
                del self.runs[run]
                self._seen.pop(run, None)
        for run in crowded:
            if run in read:
                self.runs[run].shrink({each.header.identity.rank for each in read[run]})

    def _load(self, document: Any) -> None:
        found = _runs_in(document)
        runs = {run: load_run(each[-1], self._started) for run, each in found.items()}
        self._seen = {run: _seen(*each[:-1]) for run, each in found.items()}
        self.runs = runs


def saved_ledger(path: Path, run: str) -> RunLedger | None:
    """Return the ledger of one run in the file that an agent keeps; None where it has none that can be
    used."""
    found: list[RunLedger] = []

    def use(document: Any) -> None:
        saved = _runs_in(document).get(run)
        if saved is not None:
            found.append(load_run(saved[-1], 0.0))

    StateFile(path.parent, path.name, lost="it is left out", most_bytes=_MOST_BYTES).load(use)
    return found[0] if found else None


def _seen(wall: Any, owner: Any = None) -> _Seen:
    return _Seen(float(wall), None if owner is None else int(owner))


def _runs_in(document: Any) -> dict[str, Any]:
    if document["format"] != _FORMAT:
        raise ValueError("it has another format")
    return dict(document["runs"])


def save_run(ledger: RunLedger) -> dict[str, Any]:
    """Return everything that another agent needs to go on."""
    return {
        "attempts": {number: asdict(span) for number, span in ledger.attempts.by_number.items()},
        "ranks": {number: [each.role, _save_rank(each)] for number, each in ledger.ranks.items()},
    }


def load_run(saved: Any, started: float) -> RunLedger:
    """Return the ledgers in a state file. started: Unix time at which this agent started."""
    ledger = RunLedger()
    for number, span in saved["attempts"].items():
        ledger.attempts.by_number[_attempt(number)] = _load_span(**span)
    for number, (role, rank) in saved["ranks"].items():
        found = ledger.rank_of(int(number), str(role))
        _load_rank(found, rank)
        found.unseen_until = started
    return ledger


def _save_rank(ledger: RankLedger) -> dict[str, Any]:
    return {
        "by_attempt": ledger.by_attempt,
        "process": ledger.process,
        "cursor": ledger.cursor,
        "ended": ledger.ended,
        "stepped": ledger.stepped,
        "first": None if ledger.first is None else asdict(ledger.first),
    }


def _load_rank(ledger: RankLedger, saved: Any) -> None:
    ledger.by_attempt = {_attempt(number): _seconds(each) for number, each in saved["by_attempt"].items()}
    if saved["process"] is not None:
        pid, monotonic, wall, attempt = saved["process"]
        ledger.process = Process(int(pid), _finite(monotonic), _finite(wall), _attempt(attempt))
        ledger.resume()
    ledger.cursor = _finite(saved["cursor"])
    ledger.ended, ledger.stepped = bool(saved["ended"]), bool(saved["stepped"])
    first = saved["first"]
    if first is not None:
        following = [_finite(each) for each in first["following"]]
        seconds = _finite(first["seconds"])
        if seconds <= 0.0:
            raise ValueError("a step took no time")
        ledger.first = FirstStep(seconds, _seconds(first["states"]), following)


def _load_span(started: Any, last: Any, world_size: Any, first_step: Any, highest_step: Any) -> AttemptRecord:
    lowest = None if first_step is None else int(first_step)
    return AttemptRecord(_finite(started), _finite(last), int(world_size), lowest, int(highest_step))


def _attempt(number: Any) -> int:
    found = int(number)
    if not 0 <= found <= MOST_ATTEMPTS:
        raise ValueError(f"{found} is no number of an attempt")
    return found


def _seconds(saved: Any) -> Seconds:
    return {GoodputState(state): _finite(seconds) for state, seconds in saved.items()}


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no finite number")
    return number
