"""What happens in the day of a fleet: its runs with their attempts, its machines, and the faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rankwatch.conventions.states import FailureKind, Outcome

NODE_GPUS = 8


class FaultKind(StrEnum):
    """What is injected that somebody must answer."""

    LOST_NODE = "lost node under production"
    STRAGGLER = "straggler in production"
    CHECKPOINT = "damaged checkpoint of production"
    GPU = "XID under production"
    CUT_OFF = "no agent is scraped for 10 minutes"
    PRODUCTION_BUG = "bug of a production run"
    """Its owner may be called, and need not be."""


REQUIRED = tuple(each for each in FaultKind if each is not FaultKind.PRODUCTION_BUG)


class Fault(NamedTuple):
    """One fault, and what a page on it must name."""

    kind: FaultKind
    start: float
    end: float
    run: str = ""
    node: str = ""
    rank: str = ""
    gpu: str = ""


class Place(NamedTuple):
    """A GPU of a node."""

    node: str
    gpu: int


@dataclass(kw_only=True)
class Attempt:
    """One start of the ranks of a run. Moments are seconds of the day."""

    number: int
    start: float
    first_step: float
    end: float
    """When the first rank ends."""
    places: Sequence[Place]
    """By rank."""
    outcome: Outcome
    kind: FailureKind | None = None
    exception: str = ""
    root: int | None = None
    """Rank that failed first."""
    spread: float = 3.0
    """Seconds within which the other ranks end."""
    hangs: float | None = None
    """From then on no step ends."""
    lost_node: str = ""
    """It is gone from the hang on."""
    restored_step: float | None = None
    """Step of the checkpoint from which it resumes."""
    slow: tuple[float, float, int, float] | None = None
    """From, until, rank, and the factor of its own time."""

    def ranks_of(self, node: str) -> list[int]:
        """The ranks on a node."""
        return [rank for rank, place in enumerate(self.places) if place.node == node]


@dataclass(kw_only=True)
class Run:
    """A run with its attempts."""

    name: str
    run_class: str
    ranks: int
    submitted: float
    seconds: float
    step_seconds: float
    ending: str = "finished"
    """Or a bug of `_ENDS_OF_BUGS`, `preempted`, `faulty_gpu`."""
    save_seconds: float = 900.0
    nan: tuple[float, int] | None = None
    """When one step of a rank is NaN, and the rank."""
    damaged: tuple[float, float] | None = None
    """From when to when a damaged checkpoint lies on disk."""
    attempts: list[Attempt] = field(default_factory=list)


@dataclass(kw_only=True)
class Node:
    """A machine with an agent."""

    name: str
    gpus: int = NODE_GPUS
    down: list[tuple[float, float]] = field(default_factory=list)
    """When the machine is gone."""
    restarts: list[float] = field(default_factory=list)
    """When its agent starts again."""
    bad_gpu: tuple[float, float, int, int] | None = None
    """From, until, index of the GPU, XID."""


@dataclass(kw_only=True)
class Day:
    """All that happens."""

    seed: int
    seconds: float
    runs: list[Run]
    nodes: Mapping[str, Node]
    faults: list[Fault]
    server_gap: tuple[float, float] | None
    """Prometheus restarts: no sample of anything, and no mark of an end."""
    cut_off: tuple[float, float] | None
    """Every scrape of an agent fails."""
    missed_scrapes: float = 0.001
    """Share of the scrapes that fail for no reason."""


def gpu_name(node: str, index: int) -> str:
    """The UUID of a GPU."""
    return f"GPU-{node}-{index}"
