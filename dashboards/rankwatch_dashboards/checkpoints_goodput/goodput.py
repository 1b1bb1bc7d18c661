"""Rows: which share of the time makes progress, and would another checkpoint interval cost less?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import RUN, Drawing, Panel, Query


def goodput(config: RuleConfig) -> tuple[Panel, ...]:
    """The ratios, and where the rest of the time goes."""
    return _RATIOS, _STATES, _BADPUT, _UTILISATION, _SCALING


def checkpoint_interval(config: RuleConfig) -> tuple[Panel, ...]:
    """The present interval beside the advised one, and what the change would win."""
    return _INTERVAL, _GAIN, _INTERRUPTIONS


def _of_run(series: str, legend: str) -> Query:
    return Query(expression=f"{series}{{{RUN}}}", legend=legend)


_RATIOS = Panel(
    title="Goodput",
    description="Over the last hour. Scheduling: share of the time in which the ranks had a process. "
    "Runtime: share of that in which steps made progress that lasts. ETTR is their product. Below 90 %, look "
    "at the causes beside.",
    unit="percentunit",
    queries=(
        _of_run("run:rankwatch_goodput_scheduling:ratio", "scheduling {{run}}"),
        _of_run("run:rankwatch_goodput_runtime:ratio", "runtime {{run}}"),
        _of_run("run:rankwatch_goodput_ettr:ratio", "ETTR {{run}}"),
    ),
)
_UTILISATION = Panel(
    title="Model FLOPs utilisation (MFU)",
    description="Against the dense peak of each type of numbers: look at the one that the model computes in. "
    "Empty where the run states no flops_per_token, or a GPU has no known peak. Below 30 %, look at the step "
    "split.",
    unit="percentunit",
    queries=(_of_run("run:rankwatch_model_flops_utilisation:ratio", "{{run}} {{dtype}}"),),
)
_SCALING = Panel(
    title="Efficiency of scaling",
    description="Tokens per second and rank over those of one rank alone. Empty where the run states no "
    "baseline_tokens_per_second.",
    unit="percentunit",
    queries=(_of_run("run:rankwatch_scaling_efficiency:ratio", "{{run}}"),),
)
_STATES = Panel(
    title="Ranks by state of goodput",
    description="How many ranks are in each state now. Each second of each rank is in exactly one.",
    unit="short",
    drawing=Drawing.STACKED,
    queries=(
        Query(
            expression=f"sum by (state) (rate(rankwatch_goodput_seconds_total{{{RUN}}}[$__rate_interval]))",
            legend="{{state}}",
        ),
    ),
)
_BADPUT = Panel(
    title="Badput by cause",
    description="Share of the last hour that each cause took. replayed and restore are what restarts cost, "
    "checkpoint what saves cost: a longer or shorter interval trades one for the other.",
    unit="percentunit",
    drawing=Drawing.STACKED,
    queries=(_of_run("run_state:rankwatch_badput:share", "{{state}}"),),
)
_INTERVAL = Panel(
    title="Checkpoint interval",
    description="Time from one save to the next, and the time that would cost least: sqrt(2 x blocking time "
    "of a save x mean time between interruptions). No advice before the second interruption.",
    unit="s",
    queries=(
        _of_run("run:rankwatch_checkpoint_interval_seconds:mean", "present {{run}}"),
        _of_run("run:rankwatch_checkpoint_interval_advice_seconds:best", "advised {{run}}"),
    ),
)
_GAIN = Panel(
    title="Gain of the advised interval",
    description="Share of the run's time that the advised interval would win. Below 1 % a change is not "
    "worth the trouble.",
    unit="percentunit",
    queries=(_of_run("run:rankwatch_checkpoint_interval_advice:gain", "{{run}}"),),
)
_INTERRUPTIONS = Panel(
    title="Interruptions",
    description="How often the run began anew within a week. The advice rests on them; of few it is rough.",
    unit="short",
    drawing=Drawing.NUMBER,
    queries=(_of_run("run:rankwatch_interruptions:count", "{{run}}"),),
)
