"""The time of a run's ranks on this node, over all of its attempts."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator

from rankwatch.blackbox.records import Header
from rankwatch.conventions.states import GoodputState
from rankwatch_agent.training.goodput.attempt_spans import AttemptSpan, AttemptSpans
from rankwatch_agent.training.goodput.rank_ledger import RankLedger, Seconds
from rankwatch_agent.training.goodput.transfers import RoleTransfers, Transfers

MOST_RANKS = 1024
"""Of a run on one node, over all of its attempts. Of more, those that ended first are forgotten."""


class RunLedger:
    """The ledgers of the ranks of one run on this node."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankLedger] = {}
        self.attempts = AttemptSpans()
        self.roles: dict[str, RoleTransfers] = {}
        """Pipeline stage -> what transfers take there."""

    @property
    def seconds(self) -> Seconds:
        """Rank-seconds by state."""
        found = dict.fromkeys(GoodputState, 0.0)
        for each in self.ranks.values():
            for state, seconds in each.seconds.items():
                found[state] += seconds
        return found

    @property
    def replayed_steps(self) -> int:
        """Steps that were done again, on the rank with the most."""
        return max((each.replayed_steps for each in self.ranks.values()), default=0)

    @property
    def size(self) -> int:
        """How many attempts of ranks it holds; the rest of a rank takes as much memory as eight."""
        return sum(8 + len(each.by_attempt) for each in self.ranks.values())

    def rank(self, header: Header) -> RankLedger:
        """The ledger of a rank, made where there is none."""
        return self.rank_of(header.identity.rank, str(header.identity.coordinates.get("pp", "")))

    def rank_of(self, number: int, role: str) -> RankLedger:
        """The same by its number; ranks of one role do the same work."""
        found = self.ranks.get(number)
        if found is None:
            transfers = Transfers(self.roles.setdefault(role, RoleTransfers()))
            found = self.ranks[number] = RankLedger(self.attempts, transfers, role)
        return found

    def newest_attempt(self, rank: int) -> int:
        """The attempt in which the rank has its newest process; -1 where none is known."""
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

    def by_attempt(self) -> Iterator[tuple[int, AttemptSpan, Seconds]]:
        """Number, span and rank-seconds by state of each attempt, in their order."""
        for number, span in sorted(self.attempts.by_number.items()):
            seconds: Seconds = {}
            for ledger in self.ranks.values():
                for state, value in ledger.by_attempt.get(number, {}).items():
                    seconds[state] = seconds.get(state, 0.0) + value
            yield number, span, seconds
