"""From what size on a difference counts. Where theory gives a number it is used; else the reason is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Ratios are of durations; everything else says its unit."""

    false_alarm: float = 0.001
    """Chance that noise alone names any rank of a job: shared among all ranks and windows (Bonferroni)."""
    steps: int = 4
    """Shortest window. One slow step is an event, and with 4 a robust noise level can be told."""
    peers: int = 3
    """Ranks that hold the same stage. Of two, neither can be told to be the odd one."""
    healthy_spread: float = 0.005
    """Standard deviation of lasting differences between healthy accelerators (of the logarithm): 19 of 20 lie
    within 1 % of the middle. A table of few ranks or steps cannot tell it, so it is never taken as less."""
    worker_ratio: float = 1.025
    """Healthy accelerators of one type lie within 1 to 2 % of each other; what is smaller is no fault."""
    worker_persistence: float = 2.0 / 3.0
    """Share of the window's steps in which the rank must lie above its peers: noise alone gives 1/2."""
    stage_ratio: float = 1.15
    """Embedding and head make the end stages heavier by design; planners accept some 10 %."""
    difficulty_sigma: float = 0.05
    """Spread of microbatches (of the logarithm of duration). Fixed-length batches stay below 0.01."""
    difficulty_share: float = 0.25
    """Part of the spread inside a step that the microbatch itself must explain."""
    transfer_growth: float = 1.3
    """Of a transfer over its own past. Shared fabrics vary by 10 to 20 % from hour to hour."""
    transfer_ratio: float = 2.0
    """Of a transfer over that of peers: groups of other stages carry other sizes, so it is generous."""
    transfer_share: float = 0.2
    """Of the step spent in transfers that nothing hides, where there is neither past nor peer to compare."""
    replay_ratio: float = 1.2
    """Of the replayed to the recorded step, or the other way round. Good tables stay within 1.02; one where
    collectives are matched wrongly is off by a multiple."""
    host_share: float = 0.01
    """Of the step by which a rank's host work exceeds its peers'."""
    starvation_share: float = 0.1
    """Of the step that waiting for data takes, on ranks that all do."""
    jitter_share: float = 0.05
    """A late rank-step takes this much longer than expected, beyond noise."""
    jitter_rank_steps_share: float = 0.005
    """Of all rank-steps that are late. Every cluster has interrupts; fewer than this are those."""
    least_slowdown: float = 1.01
    """Causes other than one rank are told only where they cost the run this much."""


DEFAULT = Thresholds()
