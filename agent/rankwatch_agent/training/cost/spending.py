"""What each run has spent on this node, kept across restarts of the agent.

Money is added as it is spent, at the price of the moment: a price that changes later does not change it, and
no server must keep the history of a run of months. What no price was known for is not added.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch_agent.runtime.state_file import StateFile
from rankwatch_agent.runtime.turns import excess

_MOST_RUNS = 2000
"""That are not here any more. Of more, the user with most of them loses the oldest."""
_KEPT_SECONDS = 90 * 86400.0
"""A run that waits for so long to go on is another one."""


class Money(NamedTuple):
    """A kind of money: amounts of different kinds are never added."""

    currency: str
    basis: str


class Charged(NamedTuple):
    """What is charged to a run at one moment."""

    rates: Mapping[Money, float]
    """Money for an hour."""
    since: float
    """Unix time at which its oldest living process here started."""
    owner: int
    """User id of the run's owner."""


class Spending:
    """The sums of all runs.

    directory: where they are kept. Without one they begin anew with the agent.
    save_seconds: between two saves; a crash of the agent costs no more than is added again from the file's
        time on, at the present price.
    """

    def __init__(self, directory: Path | None, save_seconds: float = 30.0) -> None:
        self._spent: dict[str, dict[Money, float]] = {}
        self._until: dict[str, float] = {}
        """Run -> Unix time up to which it is charged."""
        self._owners: dict[str, int | None] = {}
        """Run -> user id; None in a file of an agent that did not write it down."""
        self._rates: Mapping[str, Mapping[Money, float]] = {}
        """What is charged to each run for an hour."""
        self._save_seconds = save_seconds
        self._saved = -math.inf
        self._file = StateFile(
            directory, "spending.json", lost="runs are charged from the start of their processes"
        )
        self._file.load(self._load)

    def charge(self, charged: Mapping[str, Charged], moment: float) -> None:
        """Add what was spent since the last time, or since the start of processes that began later."""
        for run, (rates, since, owner) in charged.items():
            self._owners[run] = owner
            spent = self._spent.setdefault(run, {})
            seconds = max(0.0, moment - max(since, self._until.get(run, since)))
            for money, rate in rates.items():
                spent[money] = spent.get(money, 0.0) + rate * seconds / 3600.0
            self._until[run] = moment  # also after a clock was set back
        present = {run: each.rates for run, each in charged.items()}
        if present != self._rates or moment >= self._saved + self._save_seconds or moment < self._saved:
            self._rates = present  # what was spent at an earlier price could not be added again
            self._forget(charged, moment)
            self._save(moment)

    def of(self, run: str) -> Iterator[tuple[Money, float]]:
        """What a run has spent, by kind of money."""
        yield from self._spent.get(run, {}).items()

    def _forget(self, living: Container[str], moment: float) -> None:
        ended = sorted((run for run in self._until if run not in living), key=self._until.__getitem__)
        old = [run for run in ended if self._until[run] < moment - _KEPT_SECONDS]
        for run in {*old, *excess(ended, owner=self._owners.get, most=_MOST_RUNS)}:
            del self._spent[run], self._until[run], self._owners[run]

    def _save(self, moment: float) -> None:
        self._saved = moment
        runs = {
            run: {
                "until": self._until[run],
                "owner": self._owners[run],
                "spent": [[*money, amount] for money, amount in spent.items()],
            }
            for run, spent in self._spent.items()
        }
        self._file.save({"runs": runs})

    def _load(self, document: Any) -> None:
        spent: dict[str, dict[Money, float]] = {}
        until: dict[str, float] = {}
        owners: dict[str, int | None] = {}
        for run, found in document["runs"].items():
            until[run] = float(found["until"])
            owners[run] = None if found.get("owner") is None else int(found["owner"])
            spent[run] = {Money(str(one), str(two)): float(amount) for one, two, amount in found["spent"]}
            if not all(map(math.isfinite, (until[run], *spent[run].values()))):
                raise ValueError("an amount is no number")
        self._until, self._spent, self._owners = until, spent, owners
