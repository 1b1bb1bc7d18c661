"""The ledgers of all runs of this node, kept across restarts of the agent."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch.conventions.states import ENDED_STATES
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.runtime.state_file import StateFile
from rankwatch_agent.runtime.turns import excess
from rankwatch_agent.training.follower import RankFollower
from rankwatch_agent.training.goodput.run_ledger import RunLedger
from rankwatch_agent.training.goodput.saved import load_run, save_run

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
_SECONDS = metric("rankwatch_goodput_seconds_total")
_REPLAYED = metric("rankwatch_replayed_steps_total")
_HIGHEST = metric("rankwatch_run_highest_step")


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
        self._runs: dict[str, RunLedger] = {}
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
        """The ledger of a run, made where there is none."""
        found = self._runs.get(run)
        if found is None:
            found = self._runs[run] = RunLedger()
        return found

    @property
    def runs(self) -> Mapping[str, RunLedger]:
        """Those of which the collector `ranks` knows; read them from its thread, or take single numbers."""
        return self._runs

    def update(
        self,
        runs: Mapping[str, Sequence[RankFollower]],
        moment: float,
        wall: float,
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
            living = {each.header.identity.rank for each in ranks if each.state not in ENDED_STATES}
            self.of(run).charge_ended(moment, living)
            self._seen[run] = _Seen(wall, ranks[0].owner)
        self._forget(runs, followed, wall)
        pause = SAVE_SECONDS if processes == self._processes else self._pause
        if moment >= self._saved + pause:
            self._saved, self._processes = moment, processes
            began = time.monotonic()
            self.save()
            took = time.monotonic() - began
            self._pause = _PAUSE * took if took > _SHORT_SECONDS else 0.0

    def series(self, run: str) -> Iterator[Series]:
        """What the time of a run was spent on; every state, from the beginning."""
        ledger = self._runs[run]
        for state, seconds in ledger.seconds.items():
            yield Series(_SECONDS, (run, state), seconds)
        yield Series(_REPLAYED, (run,), ledger.replayed_steps)
        if ledger.attempts.highest_step >= 0:
            yield Series(_HIGHEST, (run,), ledger.attempts.highest_step)

    def save(self) -> None:
        """Write all of them."""
        runs = {run: [*seen, save_run(self._runs[run])] for run, seen in self._seen.items()}
        self._file.save({"format": _FORMAT, "runs": runs})

    def _forget(
        self, read: Mapping[str, Sequence[RankFollower]], followed: Container[str], wall: float
    ) -> None:
        """Forget runs that are not here any more: too old ones, too many of a user, and those of which no box
        could be read."""
        gone = [run for run in self._runs if run not in read and run not in followed]
        ended = sorted((run for run in gone if run in self._seen), key=lambda run: self._seen[run].wall)
        recent = [run for run in ended if self._seen[run].wall >= wall - FORGET_SECONDS]
        crowded = excess(
            [*recent, *read],
            owner=lambda run: self._seen[run].owner,
            most=_MOST_KEPT,
            size=lambda run: self._runs[run].size,
        )
        kept = set(recent) - set(crowded)
        for run in gone:
            if run not in kept:
                del self._runs[run]
                self._seen.pop(run, None)
        for run in crowded:
            if run in read:
                self._runs[run].shrink({each.header.identity.rank for each in read[run]})

    def _load(self, document: Any) -> None:
        found = _runs_in(document)
        runs = {run: load_run(each[-1], self._started) for run, each in found.items()}
        self._seen = {run: _seen(*each[:-1]) for run, each in found.items()}
        self._runs = runs


def saved_ledger(path: Path, run: str) -> RunLedger | None:
    """The ledger of one run in the file that an agent keeps; None where it has none that can be used."""
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
