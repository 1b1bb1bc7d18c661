"""What the straggler engine concludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """What slows a run down. Naming a cause comes before naming a rank."""

    WORKER = "worker"
    """One or a few ranks compute more slowly than their peers."""
    STAGE = "stage"
    """A pipeline stage holds more work than the others, in every replica."""
    DATA = "data"
    """Microbatches of unequal size: slow on every stage they visit."""
    NETWORK = "network"
    """Transfers are slow where nobody is waited for."""
    HOST = "host"
    """What grows on some ranks is data loading, checkpoints or other host work, not compute."""
    JITTER = "jitter"
    """Ranks are late in turn, none for long."""
    NONE = "none"
    INCONCLUSIVE = "inconclusive"
    """Something is slow, and cause and rank cannot be told apart from what the table holds."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Cause, culprits and cost of a slowdown, or `none`, or `inconclusive`."""

    cause: Cause
    ranks: tuple[int, ...] = ()
    """Ranks to blame; empty unless the cause is `worker`, `host` or `network` bound to ranks."""
    stages: tuple[int, ...] = ()
    """Stages to blame, for cause `stage`."""
    first_step: int | None = None
    """Step at which it began, as far as the table shows."""
    slowdown: float = 1.0
    """Step time over the step time with the culprit at its peers' value (what-if replay); 1.0: none."""
    lost_rank_seconds: float = 0.0
    """Seconds times ranks of the job in the table that the slowdown cost."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    """Numbers behind the verdict, ready for JSON; names say units."""
