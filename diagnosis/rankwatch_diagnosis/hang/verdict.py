"""What the hang engine concludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    """How a run stands, as far as its flight recorders tell."""

    HANG = "hang"
    """Ranks wait for operations that do not complete."""
    DESYNC = "desync"
    """Ranks disagree on the operation, its size, its type or its order. That they do is seen in the dumps;
    where nothing tells which side is wrong, as between two, no rank is named."""
    SLOW = "slow"
    """Ranks wait, and all of them advance."""
    OK = "ok"
    INCONCLUSIVE = "inconclusive"
    """Something waits, and the dumps do not tell for whom; or too little is left to say that nothing does."""


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """A process group with an operation that does not complete."""

    group: str
    """Description and name."""
    operation: str
    sequence: int
    """Number of the operation in its group."""
    members: int
    """Ranks in the group."""
    arrived: tuple[int, ...]
    """Ranks that wait in the operation."""
    waited_for: tuple[int, ...]
    """Members with a dump that have not come to it."""
    completed_by: tuple[int, ...]
    """Members that have left it."""
    no_dump: tuple[int, ...]
    """Members of which nothing is known."""


@dataclass(frozen=True, kw_only=True)
class HangVerdict:
    """State, culprits and the operation where the run stands."""

    state: State
    ranks: tuple[int, ...] = ()
    """Ranks to blame; empty where none can be told from its victims."""
    group: str | None = None
    """Process group in which the culprits are waited for."""
    operation: str | None = None
    missing_ranks: tuple[int, ...] = ()
    """Ranks of the job without a readable dump, to blame or not."""
    groups: tuple[GroupState, ...] = ()
    """Groups that wait, those that wait for the culprits first."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    """Reasons and numbers, ready for JSON."""
