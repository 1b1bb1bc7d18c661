"""Where does the step go?"""

from __future__ import annotations

from rankwatch_dashboards.panels import Drawing, Panel, Query
from rankwatch_dashboards.selectors import RANKS, RUN

_STEPS = f"scalar(sum(rate(rankwatch_steps_total{{{RANKS}}}[$__rate_interval])))"

PANELS = (
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
