"""From what size on a difference counts, and why: by theory, or by what healthy clusters show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Ratios are of durations; everything else names its unit."""

    false_alarm: float = 0.001
    """Chance that noise alone names any rank of a job: shared among all ranks and windows (Bonferroni)."""
    steps: int = 4
    """Shortest window. One slow step is an event, and 4 steps give a robust level of noise."""
    repeats: int = 8
    """Operations of a rank in a step that take the place of steps where a table has fewer: two passes of four
    microbatches, or the kernels of eight layers."""
    peers: int = 3
    """Ranks that hold the same stage. Of two ranks neither can be called the odd one."""
    healthy_spread: float = 0.005
    """Standard deviation of lasting differences between healthy accelerators (of the logarithm) where nothing
    else is known. A job shows its own; this one counts as much as five ranks do (see `spread`)."""
    healthy_false_alarm: float = 0.01
    """Chance that healthy accelerators differ by so much that one of them is named. It hides slow ranks
    the more accelerators differ: of 16 at 1, 2 and 3 %, those slow by less than 4, 9 and 13 %."""
    rank_ratio: float = 1.025
    """A rank that is slower by less is no fault, however surely it is."""
    pair_ratio: float = 1.10
    """The same where one other rank is all there is to compare with. None is too fast by as much as this."""
    rank_persistence: float = 2.0 / 3.0
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
    """Of a transfer over that of peers, which carry as much."""
    transfer_ratio_of_stages: float = 4.0
    """The same where only groups of other stages can be compared: an embedding more than doubles what its
    stage has to reduce (2.5 times in a real job)."""
    transfer_share: float = 0.2
    """Of the step spent in transfers that nothing hides, where there is neither past nor peer to compare."""
    replay_ratio: float = 1.2
    """Of the replayed to the recorded step, or the other way round. Good tables stay within 1.02; one whose
    collectives are matched wrongly is off by a multiple."""
    host_share: float = 0.01
    """Of the step by which a rank's data loading or other host work exceeds its peers'."""
    data_loading_share: float = 0.1
    """Of the step that waiting for data takes, where all ranks wait."""
    jitter_share: float = 0.05
    """A late step of a rank takes this much longer than expected, beyond noise."""
    jitter_rank_steps_share: float = 0.005
    """Of all steps of all ranks that are late. Every cluster has interrupts; fewer than this are those."""
    least_slowdown: float = 1.01
    """Causes other than a rank that computes slowly are reported only where they cost the run this much."""


DEFAULT = Thresholds()
