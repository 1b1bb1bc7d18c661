"""The table of what fires: since when, of which run, rank and node, why, and what it costs."""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.firing import age_of, firing, once
from rankwatch_dashboards.links import TO_NODE, TO_RANK, TO_RUN, to_runbook
from rankwatch_dashboards.lost_time import unproductive
from rankwatch_dashboards.panels import CLUSTER, SEVERITIES, Column, Drawing, Panel, Query, most
from rankwatch_dashboards.suspects import suspects
from rankwatch_dashboards.words import ALERTS, CAUSES

_LABELS = ("alertname", "severity", "run", "rank", "node", "gpu")
"""What tells alerts apart in the table."""


def _causes(fires: str, labels: str) -> str:
    """Each alert with a cause: of the rank it names, else of its run's suspect, else what it states."""
    named_rank = firing(f'{CLUSTER}, rank!=""')
    suspected, of_rank = suspects(CLUSTER), "cluster, run, rank, node"
    of_run = f'label_join(topk by (cluster, run) (1, {suspected}), "suspect", " on ", "rank", "node")'
    stated = f'label_join({fires}, "cause", " ", "kind", "exception", "meaning", "reason")'
    nothing = f'label_replace({stated}, "cause", "", "cause", " +")'
    found = (
        f"{fires} * on ({of_rank}) group_left (cause) topk by ({of_rank}) (1, {suspected})",
        f"({fires} unless {named_rank}) * on (cluster, run) group_left (cause, suspect) {of_run}",
        f'label_replace({nothing}, "cause", "$1", "cause", " *(.*[^ ]) *")',
    )
    return " or ignoring (cause, suspect) ".join(
        f"group by ({labels}, cause, suspect) ({each})" for each in found
    )


def firing_alerts(
    config: RuleConfig, title: str, matchers: str, *, no_data: str, of_gpu: bool = False
) -> Panel:
    """One row for each alert: for how long, of which run, rank and node, why, and what its run loses."""
    wanted = tuple(each for each in _LABELS if of_gpu or each != "gpu")
    labels = ", ".join(("cluster", *wanted))
    fires, lost = once(matchers), unproductive(CLUSTER)

    def of_run(figure: str, joined: str = "") -> Query:
        """A figure of the run of each alert."""
        by_run = f"group by ({labels}) ({fires}) * on (cluster, run) group_left ({joined})"
        return Query(
            expression=most(f"{by_run} {figure}", 500),
            legend="{{alertname}}",
        )

    return Panel(
        title=title,
        description="Alerts that fire now, pages first, then the oldest. The name opens the runbook; run, "
        "rank and node open their boards. Lost is how many ranks of the run made no progress, on the mean "
        "of the last hour; waste is what they cost in an hour.",
        no_data=no_data,
        unit="short",
        drawing=Drawing.TABLE,
        empty_when_healthy=True,
        empty_text="Nothing fires.",
        sorted_by=("severity", "-A"),
        queries=(
            Query(
                expression=most(age_of(f'{matchers}, severity=~"critical|warning"', wanted, fires), 50),
                legend="{{alertname}}",
            ),
            Query(
                expression=most(_causes(fires, labels), 500),
                legend="{{alertname}}",
            ),
            of_run(f"sum by (cluster, run) (run_state:rankwatch_goodput_ranks:mean{{{lost}}})"),
            of_run(
                f"sum by (cluster, run, currency) (run_state:rankwatch_cost_per_hour:sum{{{lost}}})",
                "currency",
            ),
        ),
        columns=(
            Column(name="severity", title="Severity", width=75, mappings=SEVERITIES),
            Column(name="alertname", title="Alert", width=250, link=to_runbook(config)),
            Column(name="A", title="For", unit="s", width=85),
            Column(name="run", title="Run", width=120, link=TO_RUN),
            Column(name="rank", title="Rank", width=60, link=TO_RANK),
            Column(name="node", title="Node", width=90, link=TO_NODE),
            *((Column(name="gpu", title="GPU", width=160),) if of_gpu else ()),
            Column(name="cause", title="Cause", words={**ALERTS, **CAUSES}),
            Column(name="suspect", title="Suspected rank", width=120),
            Column(name="C", title="Lost ranks", width=90, decimals=2),
            Column(name="D", title="Waste per hour", width=115, decimals=2),
            Column(name="currency", title="Currency", width=75),
        ),
    )
