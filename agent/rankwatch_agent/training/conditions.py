"""The condition of each rank of this node, and which runs look stuck: the collector `ranks` updates it.

A rank is suspect once it went without progress for half of what its own history allows (see `timeouts`). All
ranks of a run are suspect once one of them is lost. This is early on purpose: flight recorders and stacks
must be asked before somebody ends the run.

The black box of a rank that ended is kept for a while. After a restart of the run the rank may live on
another node, or the world may be smaller, and its box here still shows it as lost. So whoever judges a run by
its ranks tells the present attempt from an earlier one, by `in_present_attempt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rankwatch.blackbox.records import GroupNow
from rankwatch.conventions.states import ENDED_STATES, RankState
from rankwatch_agent.runtime.writers import RankProcess, writer_of
from rankwatch_agent.training.steps.timeouts import is_too_long

MOST_START_SECONDS = 1800.0
"""No process group waits longer for its ranks: PyTorch's default timeout of gloo; NCCL's is shorter."""


class Lifetime(NamedTuple):
    """One process of a rank. Moments are seconds on one clock for all ranks that are compared."""

    started: float
    last_sign: float
    """The last moment at which it is known to have lived."""
    ended: bool
    took_part: bool
    """It finished a step or called a collective: it had met the other ranks of its attempt."""


def in_present_attempt(lifetimes: Sequence[Lifetime]) -> list[bool]:
    """Return whether each process belongs to the attempt of those that live; all do while none lives.

    A process that ended before any living one started belongs to an earlier attempt if it took part in one.
    Another one may have died while its peers were still on their way, as long as they can have waited for it.
    """
    first = min((each.started for each in lifetimes if not each.ended), default=None)
    return [first is None or not _is_earlier(each, first) for each in lifetimes]


def _is_earlier(process: Lifetime, first: float) -> bool:
    if not process.ended or process.last_sign >= first:
        return False
    return process.took_part or process.started + MOST_START_SECONDS < first


SHARE_OF_TIMEOUT = 0.5
"""Share of the learnt timeout that may pass without progress before a rank is suspect."""


class RankCondition(NamedTuple):
    """How a rank was when its black box was last read. Moments are monotonic, in seconds."""

    rank: int
    path: Path
    """Its black box; other files of the rank differ from it by the suffix."""
    state: RankState
    last_progress: float
    """End of its last step, checkpoint or evaluation; before the first, the start of its process."""
    timeout: float | None
    """Longest normal time without progress, learnt from the rank itself; None while it is not known."""
    open_phase: tuple[str, float] | None
    """Innermost open phase and when it began."""
    pid: int
    """Process id as the rank sees it, which may be another one here."""
    groups: tuple[GroupNow, ...] = ()
    """Its process groups, by the black box."""
    started: float | None = None
    """Start of its process; None where it is not known."""
    owner: int = 0
    """User id of the black box's owner."""
    steps: int = 0
    """Steps it completed while the agent watched, as far as their own time is known."""
    local_seconds: float = 0.0
    """Its own work in them: their time less what it spent blocked in collectives."""
    role: str = ""
    """Ranks of one role do the same work: those of one pipeline stage."""
    gpu: str = ""
    """UUID of its GPU or MIG instance; empty where it names none."""
    short_name: str = ""
    """Of the run's script or job; empty if it has none."""

    @property
    def ended(self) -> bool:
        """Whether its process is over, however it ended."""
        return self.state in ENDED_STATES

    def idle_seconds(self, moment: float) -> float:
        """Time without progress up to `moment`; 0 for a rank that ended."""
        return 0.0 if self.ended else max(0.0, moment - self.last_progress)

    def idle_beyond(self, share: float, moment: float) -> bool:
        """Return True if it went without progress for longer than this share of its learnt timeout."""
        return is_too_long(self.idle_seconds(moment), self.timeout, share)

    def lifetime(self) -> Lifetime:
        """Return its process, to be compared with those of other ranks."""
        started = self.last_progress if self.started is None else self.started
        took_part = self.last_progress > started or any(each.enqueued for each in self.groups)
        return Lifetime(started, self.last_progress, self.ended, took_part)


@dataclass(frozen=True, kw_only=True)
class RunCondition:
    """The local ranks of a run, as they were at one moment."""

    run: str
    moment: float
    """When they were read, monotonic."""
    ranks: tuple[RankCondition, ...]
    """In ascending order of rank."""
    suspected_since: float | None
    """When the run became suspect, monotonic; None while nothing is wrong with it."""

    @property
    def lost(self) -> tuple[RankCondition, ...]:
        """Ranks whose process ended without saying so."""
        return tuple(each for each in self.ranks if each.state is RankState.LOST)

    def suspects(self) -> tuple[RankCondition, ...]:
        """Return living ranks to ask at once: those that are late, or all where one was lost."""
        living = tuple(each for each in self.ranks if not each.ended)
        if self.lost:
            return living
        return tuple(each for each in living if each.idle_beyond(SHARE_OF_TIMEOUT, self.moment))

    def doubtful(self) -> frozenset[Path]:
        """Return boxes of ranks of which it matters where they stand: late ones, all where one was lost, and
        those of which nobody knows yet what is late."""
        if self.lost:
            return frozenset(each.path for each in self.ranks)
        return frozenset(
            each.path
            for each in self.ranks
            if not each.ended and (each.timeout is None or each.idle_beyond(SHARE_OF_TIMEOUT, self.moment))
        )

    def present_attempt(self) -> RunCondition:
        """Return the same without ranks that an earlier attempt of the run left behind."""
        if any(each.started is None for each in self.ranks if not each.ended):
            return self
        kept = in_present_attempt([each.lifetime() for each in self.ranks])
        return replace(self, ranks=tuple(compress(self.ranks, kept)))


CountedCollectives = Mapping[Path, Set[tuple[str, str, str]]]
"""Box -> (group, members, operation) of the collectives whose completions it records."""


class RunConditions:
    """What the collector `ranks` hands to the others with each pass. Both are replaced as a whole: one thread
    updates them, any thread reads."""

    def __init__(self) -> None:
        self.runs: Mapping[str, RunCondition] = MappingProxyType({})
        """Run -> condition of its local ranks; runs that were forgotten are gone."""
        self.counted: CountedCollectives = MappingProxyType({})
        """Collectives that the boxes count: the collector `collectives` leaves them out."""

    def update(
        self,
        ranks: Mapping[str, Iterable[RankCondition]],
        moment: float,
        counted: CountedCollectives = MappingProxyType({}),
    ) -> Mapping[str, RunCondition]:
        """Take how the ranks of each run are at `moment`, monotonic. Return what `runs` is from now on."""
        runs = {}
        for run, conditions in ranks.items():
            before = self.runs.get(run)
            condition = RunCondition(
                run=run,
                moment=moment,
                ranks=tuple(sorted(conditions, key=lambda each: each.rank)),
                suspected_since=moment if before is None else before.suspected_since or moment,
            )
            runs[run] = condition if condition.suspects() else replace(condition, suspected_since=None)
        self.counted, self.runs = counted, MappingProxyType(runs)
        return self.runs


def living_ranks(conditions: RunConditions) -> Iterator[RankProcess]:
    """Yield the ranks whose process is known here."""
    for run, condition in conditions.runs.items():
        for rank in condition.ranks:
            pid = None if rank.ended else writer_of(rank.path)
            if pid is not None:
                yield RankProcess(run, rank.rank, pid, rank.owner)
