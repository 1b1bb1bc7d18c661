"""One answer of RAS, reduced to what is judged and exported; the same for both of its forms."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

MAX_NAMED_RANKS = 8
"""Ranks of one communicator that are named. Where more are behind, none of them stands out."""
MAX_COMMUNICATORS = 8192
"""Of one job; 16,384 ranks in tensor-parallel groups of eight have about 2,100."""


class Absence(StrEnum):
    """Why RAS knows nothing of a rank."""

    DEAD = "dead"
    """RAS could not reach the process for 60 seconds."""
    UNRESPONSIVE = "unresponsive"
    """The process did not answer in time."""
    LEFT = "left"
    """The process answered and knows no such communicator: it has destroyed it, or is not there yet."""


class Process(NamedTuple):
    """Who works for a rank: address of the host, process id as the process sees it, CUDA device."""

    host: str
    pid: int
    device: int


class LateRank(NamedTuple):
    """A rank that has launched less than others of its communicator."""

    rank: int
    """In the communicator."""
    behind: int
    """Launches, of the kind of collective in which it is furthest behind."""
    process: Process | None = None


class MissingRank(NamedTuple):
    """A rank of which RAS knows nothing."""

    rank: int
    """In the communicator."""
    absence: Absence
    process: Process | None = None


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """One communicator, as all of its ranks together tell it."""

    name: str
    """NCCL's hash, sixteen hexadecimal digits."""
    size: int
    """Ranks it was made with."""
    mark: Hashable
    """Equal in two answers: nothing was launched in between."""
    missing: int = 0
    absences: frozenset[Absence] = frozenset()
    named_missing: tuple[MissingRank, ...] = ()
    failed: bool = False
    """A rank has an error of NCCL."""
    starting: bool = False
    """A rank is not initialised yet."""
    ending: bool = False
    """All ranks are about to destroy it, or have aborted it."""
    uneven: bool = False
    """Its ranks differ in what they launched, or in their status."""
    spread: int | None = None
    """Launches between the rank furthest ahead and the one furthest behind; None where not told."""
    launches: int | None = None
    """Of the rank furthest ahead, all kinds of collectives together; None where not told."""
    behind: int = 0
    """Ranks that have launched less than another."""
    late: tuple[LateRank, ...] = ()
    """Those ranks; empty where there are more than MAX_NAMED_RANKS, or where RAS does not name them."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one RAS service told."""

    version: str
    """Of NCCL."""
    communicators: tuple[Communicator, ...]
    unnamed: int = 0
    """Communicators of which only their number is told: the text form says nothing more of sound ones."""
    timeouts: int = 0
    """Connections that RAS gave up while it gathered the answer."""
    processes_missing: Mapping[Absence, int] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()
    """Of all ranks; empty where the form does not tell them."""
    largest: Mapping[Process, int] = field(default_factory=dict)
    """Process -> rank in the one largest communicator; empty where not told or where there are several that
    differ."""
