"""Rows: is it making progress, and where does the step go?"""

from __future__ import annotations

from rankwatch_dashboards.checkpoints_goodput.life import TIME_LEFT
from rankwatch_dashboards.links import Link
from rankwatch_dashboards.panels import RANKS, RUN, Drawing, Panel, Query

_TRACKER = Link(title="Experiment tracker", url="${__field.labels.tracker_url:raw}", new_tab=True)
"""Raw: it is an address already, and Grafana would encode its percent signs again."""

PROGRESS = (
    Panel(
        title="Ranks by state",
        description="How many ranks are in which state. Anything but running is worth a look; lost ranks "
        "page with RankwatchRunFailed (ranks_lost).",
        unit="short",
        drawing=Drawing.STACKED,
        queries=(
            Query(
                expression="count by (state) (max by (cluster, run, rank, state) "
                f"(rankwatch_rank_state{{{RANKS}}}))",
                legend="{{state}}",
            ),
        ),
    ),
    Panel(
        title="Last step",
        description="Step the slowest and the fastest rank have completed. In synchronous training they are "
        "at most one apart; a flat line is a stall (RankwatchRunStalled).",
        unit="short",
        queries=(
            Query(expression=f"min by (run) (rankwatch_step{{{RUN}}})", legend="{{run}} slowest rank"),
            Query(expression=f"max by (run) (rankwatch_step{{{RUN}}})", legend="{{run}} fastest rank"),
        ),
    ),
    TIME_LEFT,
    Panel(
        title="Since last progress",
        description="Time since any rank completed a step, checkpoint or evaluation. Bad when it exceeds "
        "what the run has learnt to be normal, its timeout.",
        unit="s",
        drawing=Drawing.NUMBER,
        span=4,
        queries=(
            Query(
                expression=f"time() - run:rankwatch_progress_timestamp_seconds:max{{{RUN}}}",
                legend="{{run}} now",
            ),
            Query(
                expression=f"run:rankwatch_progress_timeout_seconds:max{{{RUN}}}", legend="{{run}} timeout"
            ),
        ),
    ),
    Panel(
        title="Throughput",
        description="Work per second of the whole run, in its own units. A fall without a restart points to "
        "the rows below: step split first, then who is slow.",
        unit="short",
        span=12,
        queries=(
            Query(
                expression=f"sum by (run, unit) (rate(rankwatch_work_total{{{RUN}}}[$__rate_interval]))",
                legend="{{run}} {{unit}}/s",
            ),
        ),
    ),
    Panel(
        title="Step duration",
        description="Quantiles over all ranks and steps. p95 above twice p50 means jitter or periodic work "
        "in steps.",
        unit="s",
        span=12,
        queries=tuple(
            Query(
                expression=f"histogram_quantile({quantile}, sum by (le) "
                f"(rate(rankwatch_step_duration_seconds_bucket{{{RUN}}}[$__rate_interval])))",
                legend=name,
            )
            for quantile, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
        ),
    ),
    Panel(
        title="Experiment tracker",
        description="The page of the run in MLflow or Weights & Biases; a click opens it. Rank 0 finds it, "
        "see docs/trackers.md.",
        unit="short",
        drawing=Drawing.NAME,
        span=24,
        height=3,
        queries=(
            Query(
                expression="max by (run, tracker_url) "
                f'(last_over_time(rankwatch_run_info{{{RUN}, tracker_url!=""}}[1h]))',
                legend="{{run}}: {{tracker_url}}",
            ),
        ),
        empty_when_healthy=True,
        links=(_TRACKER,),
    ),
)


_STEPS = f"scalar(sum(rate(rankwatch_steps_total{{{RANKS}}}[$__rate_interval])))"

STEP_SPLIT = (
    Panel(
        title="Step by phase",
        description="Mean seconds per step by phase; the phases sum to the step. Communication is time spent "
        "blocked in collectives. Data wait above 5 % or a growing other is the loop's own fault.",
        unit="s",
        drawing=Drawing.STACKED,
        span=16,
        queries=(
            Query(
                expression="sum by (phase) (rate(rankwatch_step_phase_seconds_total"
                f"{{{RANKS}}}[$__rate_interval])) / {_STEPS}",
                legend="{{phase}}",
            ),
        ),
    ),
    Panel(
        title="Step time of the run",
        description="Median over ranks of the mean step. It is common to all ranks and names nobody.",
        unit="s",
        queries=(Query(expression=f"run:rankwatch_step_seconds:mean{{{RUN}}}", legend="{{run}}"),),
    ),
)
