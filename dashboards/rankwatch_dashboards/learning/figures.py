"""Panels: loss, norms, values that are not finite, and replicas."""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import RANKS, RUN, Panel, Query, highest

LOSS = Panel(
    title="Loss",
    reads_all_ranks=True,
    no_data="the run does not record it, or has not yet the steps for a trend.",
    description="Last loss per rank (the highest 20) and the trend of the median rank. NaN leaves a "
    "gap; it is counted in the panel of non-finite values.",
    unit="short",
    span=12,
    queries=(
        Query(
            expression=highest(f'rankwatch_scalar{{{RANKS}, name="loss"}}'),
            legend="rank {{rank}} on {{node}}",
        ),
        Query(expression=f"max by (run) (run:rankwatch_loss_trend:median{{{RUN}}})", legend="{{run}} trend"),
    ),
)


def loss_deviation(config: RuleConfig) -> Panel:
    """How far the loss is above its own trend."""
    return Panel(
        title="Loss deviation",
        reads_all_ranks=True,
        no_data="the run does not record it, or has not yet the steps for a trend.",
        description="How far the smoothed loss stands above its own trend, in robust standard "
        "deviations. Above the line for minutes on the median rank: RankwatchLossDiverging.",
        unit="short",
        span=12,
        threshold=config.loss_deviation,
        queries=(
            Query(
                expression=f"quantile by (run) (0.5, rankwatch_loss_deviation{{{RUN}}})",
                legend="{{run}} median rank",
            ),
            Query(
                expression=highest(f"rankwatch_loss_deviation{{{RANKS}}}", 5),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    )


def improvement(config: RuleConfig) -> Panel:
    """How much lower the loss has become."""
    return Panel(
        title="Improvement of the loss",
        description="Part of itself by which the loss of the median rank has become lower within "
        "plateau_steps steps, at most, given its noise. Below the line for long, the run learns no more, and "
        "nobody is alerted: decide if it goes on. Empty while that setting of the agent is 0.",
        unit="percentunit",
        threshold=config.loss_improvement,
        queries=(
            Query(
                expression=f"quantile by (run) (0.5, rankwatch_loss_improvement{{{RUN}}})", legend="{{run}}"
            ),
        ),
    )


GRADIENT_NORM = Panel(
    title="Gradient norm",
    reads_all_ranks=True,
    no_data="the run does not record it, or has not yet the steps for a trend.",
    description="Last gradient norm per rank, the highest 20. After the gradient exchange all ranks "
    "must agree: one that does not computes wrongly.",
    unit="short",
    queries=(
        Query(
            expression=highest(f'rankwatch_scalar{{{RANKS}, name="gradient_norm"}}'),
            legend="rank {{rank}} on {{node}}",
        ),
    ),
)


NORM_RATIO = Panel(
    title="Norms against their trend",
    description="Smoothed gradient norm and update norm as multiples of their own trend, the highest rank; "
    "and reasons for which the loss was learnt anew. Above 2 for steps, and far above the noise: "
    "RankwatchLossDiverging (norm).",
    unit="short",
    queries=(
        Query(expression=f"max by (run, name) (rankwatch_norm_ratio{{{RANKS}}})", legend="{{name}}"),
        Query(
            expression=f"max by (run, name) (increase(rankwatch_norm_explosions_total{{{RANKS}}}"
            "[$__rate_interval]))",
            legend="{{name}} explosions",
        ),
        Query(
            expression=f"max by (run, reason) (increase(rankwatch_learning_resets_total{{{RANKS}}}"
            "[$__rate_interval])) > 0",
            legend="learnt anew: {{reason}}",
        ),
    ),
)


LOSS_SCALE = Panel(
    title="Loss scale",
    description="Lowest scale of the gradient scalers, and updates skipped per second. Single halvings are "
    "normal; one after the other for minutes: RankwatchLossDiverging (loss_scale).",
    unit="short",
    queries=(
        Query(expression=f'min by (run) (rankwatch_scalar{{{RANKS}, name="loss_scale"}})', legend="scale"),
        Query(
            expression=f"max by (run) (rate(rankwatch_updates_skipped_total{{{RANKS}}}[$__rate_interval]))",
            legend="skipped updates",
        ),
    ),
)


NON_FINITE_VALUES = Panel(
    title="Non-finite values",
    description="NaN and infinite values per second, by scalar. Anything above zero in loss pages "
    "with RankwatchLossDiverging (non_finite); with loss scaling a few in gradients are normal.",
    unit="short",
    queries=(
        Query(
            expression=f"sum by (name) (rate(rankwatch_scalar_nonfinite_total{{{RANKS}}}[$__rate_interval]))",
            legend="{{name}}",
        ),
    ),
)


LOSS_SPIKES = Panel(
    title="Loss spikes",
    description="Steps per second whose loss stood far above its trend. Single ones that recover are "
    "normal; more and more of them come before a divergence.",
    unit="short",
    queries=(
        Query(
            expression=f"sum by (run) (rate(rankwatch_loss_spikes_total{{{RANKS}}}[$__rate_interval]))",
            legend="{{run}}",
        ),
    ),
)

_COMPARED = f"rank:rankwatch_fingerprint_compared:max{{{RUN}}}"
_BY_LEVEL = "by (run, members, level)"
REPLICAS = (
    Panel(
        title="Replicas that differ",
        description="1 where ranks that must hold the same parameters do not, by the fingerprints of one "
        "step: RankwatchReplicasDisagree names the rank. Nothing to see without replicas.",
        unit="short",
        queries=(
            Query(
                expression=f"max by (run, members) (max {_BY_LEVEL} ({_COMPARED}) != bool "
                f"min {_BY_LEVEL} ({_COMPARED}))",
                legend="ranks {{members}}",
            ),
        ),
    ),
    Panel(
        title="Last step of equal replicas",
        description="The newest step at which all replicas that were compared held the same parameters. "
        "A checkpoint of this step or before is not affected.",
        unit="short",
        queries=(
            Query(expression=f"run:rankwatch_replicas_equal:step{{{RUN}}}", legend="ranks {{members}}"),
        ),
    ),
)


def loss_level(config: RuleConfig) -> Panel:
    """Ranks whose data are harder or easier than those of their peers."""
    return Panel(
        title="Loss level by rank",
        description="Trend of a rank's loss as a multiple of the median rank's, the highest 20. Above the "
        "line for long, or as far below 1, also per token: RankwatchLossDiverging (data_skew).",
        unit="short",
        threshold=1.0 + config.data_skew,
        queries=(
            Query(
                expression=highest(f"rank:rankwatch_loss_level:relative{{{RANKS}}}"),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    )
