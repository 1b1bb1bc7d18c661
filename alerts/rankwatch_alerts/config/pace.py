"""Settings of the rules on slow steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When a rank, a stage, data or the network is too slow."""

    straggler_residual: float = 0.10
    """Least share by which a straggler's local time exceeds the median of its stage, while the run is young.
    Greyhound calls 0.1 a degradation; differences below 10 % are common among healthy ranks."""
    straggler_least_residual: float = 0.06
    """The same once the run has shown for `straggler_min_history_seconds` that its ranks differ by less."""
    straggler_run_spread_factor: float = 6.0
    """Least excess in standard deviations of the residuals of all ranks, now and in the past. In a run of
    1,024 ranks the slowest healthy one is 3 to 4 above, and in small runs the deviation is not well known."""
    straggler_most_spread: float = 0.05
    """Largest spread that is learnt from the past: chips of one kind differ by 1 to 3 %. What spreads ranks
    more for hours is a fault."""
    straggler_history_seconds: float = 10800.0
    """How far back the spread of the run counts; of that time, the widest tenth does not."""
    straggler_min_history_seconds: float = 1800.0
    """Least history for it: a run that has just begun still warms up."""
    straggler_spread_factor: float = 5.0
    """Least excess in median absolute deviations of its own stage now; 5 is about 3.4 standard deviations."""
    straggler_cost: float = 0.01
    """Least share of the step by which a straggler reaches the collectives late: slower work that costs
    nothing raises no alert."""
    straggler_stage_ranks: int = 3
    """Fewest ranks of a stage to name one among them: of two, nobody can say which is off."""
    straggler_for_seconds: float = 360.0
    """Persistence of a straggler. Longer than `step_window_seconds`, so that one slow event inside the
    window cannot raise the alert."""
    straggler_critical_slowdown: float = 1.5
    """Slowdown of the run from which a straggler is critical: 1.5 wastes a third of the machines."""
    straggler_wait_ratio: float = 0.5
    """Wait in collectives, over that of the median rank of the node, below which the peers of a straggler do
    wait for it. It changes the text of the alert only."""
    straggler_gpu_difference: float = 0.15
    """Least share by which a straggler's GPU works more or less than the median of its peers on the node (SM
    activity, else power) for the alert to say so. It changes the text of the alert only."""
    phase_share: float = 0.5
    """Least share of the rank's excess that a phase must hold to be named."""

    cause_cost: float = 0.05
    """Least share of the step that a cause without a rank takes. More than a straggler's: there is no node
    to replace, and every run waits for a few percent of its time."""
    lasting_share: float = 0.75
    """Share of the evaluations within that time, or `straggler_for_seconds`, in which a cause must be proved;
    those that saw nothing of its run do not count. The rest may be missed scrapes and restarts of agents;
    noise is proved in fewer."""
    cause_for_seconds: float = 600.0
    """Persistence of causes without a rank. Longer than `step_window_seconds`, as a straggler's."""
    stage_ratio: float = 1.15
    """Median compute of a stage, relative to the other stages, from which it is too heavy. Embedding and
    head make the end stages heavier by design, and planners accept about 10 %."""
    stage_every_rank_ratio: float = 1.10
    """The same ratio for the fastest rank of the stage: below it, single ranks are slow, not the stage."""
    stage_ranks: int = 2
    """Fewest ranks in each stage: with one rank, a slow stage and a slow rank look the same."""
    unequal_batches_sigma: float = 0.05
    """Least spread of microbatches or of steps that forward and backward share or that work explains.
    Batches of fixed length stay below 0.01."""
    unequal_batches_correlation: float = 0.5
    """Least correlation with work, or of forward with backward. Noise has 0."""
    data_loading_share: float = 0.10
    """Share of the step from which the wait for data is too long. Loading in the background costs nothing."""
    jitter_ranks: int = 3
    """Fewest ranks with late steps: with two, nobody can say that all are late in turn."""
    jitter_rank_share: float = 0.5
    """Largest share of the lateness that one rank may hold. With more, that rank is the cause."""
    network_growth: float = 1.5
    """Transfer time, relative to its baseline, from which the network is the cause. Shared fabrics vary by 10
    to 20 % from hour to hour, and one node of a group sees part of the waiting."""
    network_baseline_seconds: float = 21600.0
    """Time over which the median is the baseline, of transfer time and of step time."""
    network_min_baseline_seconds: float = 1800.0
    """Least history for a baseline: a run that has just begun has none."""

    step_regression: float = 1.15
    """Step time, relative to the median of the past, from which a run has become slower. Shared fabrics and
    clocks vary by less than 10 %."""
