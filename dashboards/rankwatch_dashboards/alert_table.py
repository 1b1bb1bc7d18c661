"""The table of what fires: since when, of which run, rank and node, why, and what it costs."""

from __future__ import annotations

from collections.abc import Collection

from rankwatch_alerts import Alert, RuleConfig
from rankwatch_dashboards import first_acts
from rankwatch_dashboards.began import began
from rankwatch_dashboards.firing import age_of, firing, named, once
from rankwatch_dashboards.links import TO_BLAMED_NODE, TO_BLAMED_RANK, TO_GPU, TO_RUN, to_runbook
from rankwatch_dashboards.lost_time import unproductive
from rankwatch_dashboards.panels import CLUSTER, SEVERITIES, Column, Drawing, Panel, Query, most
from rankwatch_dashboards.suspects import suspects
from rankwatch_dashboards.words import ALERTS, CAUSES

_LABELS = ("alertname", "severity", "run", "rank", "node", "gpu")
"""What tells alerts apart in the table."""


_ALERT = "Rankwatch.+"
_BLAMED = "cause, blamed_rank, blamed_node"


def _stated(fires: str, labels: str) -> str:
    """Each alert with the rank and node that it names, its own cause, and what its first act depends on."""
    cause = _joined(_own(fires), cause='"kind", "exception", "meaning", "reason"')
    nothing = f'label_replace({cause}, "cause", "", "cause", " +")'
    trimmed = f'label_replace({nothing}, "cause", "$1", "cause", " *(.*[^ ]) *")'
    return f"group by ({labels}, act, {_BLAMED}) ({trimmed})"


def _suspected(fires: str, labels: str) -> str:
    """The same with the cause of the rank that it names, or with the suspect of its run.

    Where that suspect is one by another alert, the first act is that of the other alert.
    """
    own, suspected, of_rank = _own(fires), suspects(CLUSTER), "cluster, run, rank, node"
    of_run = _joined(f"topk by (cluster, run) (1, {suspected})", blamed_rank='"rank"', blamed_node='"node"')
    names = " or ".join(firing(f'{CLUSTER}, {each}!=""') for each in ("rank", "node"))
    unnamed = f"{own} unless ignoring (blamed_rank, blamed_node, act) ({names})"
    found = (
        f"{own} * on ({of_rank}) group_left (cause) topk by ({of_rank}) (1, {suspected})",
        f"label_replace(({unnamed}) * on (cluster, run) group_left ({_BLAMED}) {of_run}, "
        f'"act", "$1 {first_acts.AS_CAUSE} ", "cause", "({_ALERT})")',
    )
    ignored = f" or ignoring (act, {_BLAMED}) "
    return ignored.join(
        (*(f"group by ({labels}, act, {_BLAMED}) ({each})" for each in found), _stated(fires, labels))
    )


def _own(fires: str) -> str:
    return _joined(fires, blamed_rank='"rank"', blamed_node='"node"', act=first_acts.LABELS)


def _joined(series: str, **joined: str) -> str:
    """The series with new labels, each made of others."""
    for name, labels in joined.items():
        series = f'label_join({series}, "{name}", " ", {labels})'
    return series


def _index(fires: str, labels: str) -> str:
    """Each alert on a GPU with the index that people know it by."""
    index = f"group by (cluster, node, gpu, index) (rankwatch_gpu_info{{{CLUSTER}}})"
    return f"group by ({labels}, index) ({fires} * on (cluster, node, gpu) group_left (index) {index})"


def firing_alerts(
    config: RuleConfig,
    title: str,
    matchers: str,
    *,
    alerts: Collection[Alert] = tuple(Alert),
    no_data: str,
    of_gpu: bool = False,
) -> Panel:
    """One row for each alert: since when, of which run, rank and node, why, what to do, and what it costs.

    `of_gpu`: alerts on hardware, which know their cause.
    """
    names = {str(each): ALERTS[each] for each in alerts}
    matchers = matchers if len(names) == len(Alert) else f"{matchers}, {named(alerts)}"
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
        description="Alerts that fire now, pages first, then the oldest; what another alert explains is left "
        "out, as Alertmanager does. Began is when the fault did, Fires for is the age of the alert, which "
        "waits until a fault lasts. The alert opens its runbook; run, rank and node open their boards. Ranks "
        "lost is how many ranks of the run made no progress, on the mean of the last hour; waste is what "
        "they cost in an hour.",
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
                expression=most((_stated if of_gpu else _suspected)(fires, labels), 500),
                legend="{{alertname}}",
            ),
            of_run(f"sum by (cluster, run) (run_state:rankwatch_goodput_ranks:mean{{{lost}}})"),
            of_run(
                f"sum by (cluster, run, currency) (run_state:rankwatch_cost_per_hour:sum{{{lost}}})",
                "currency",
            ),
            Query(expression=most(began(config, fires, labels, alerts), 500), legend="{{alertname}}"),
            *(
                (Query(expression=most(_index(fires, labels), 500), legend="{{alertname}}"),)
                if of_gpu
                else ()
            ),
        ),
        columns=(
            Column(name="severity", title="Severity", width=70, mappings=SEVERITIES),
            Column(name="alertname", title="Alert", width=150, words=names, link=to_runbook(config)),
            Column(name="E", title="Began", unit="time:ddd HH:mm:ss", width=105),
            Column(name="A", title="Fires for", unit="s", width=75),
            Column(name="run", title="Run", width=98, link=TO_RUN),
            Column(name="blamed_rank", title="Rank", width=50, link=TO_BLAMED_RANK),
            Column(name="blamed_node", title="Node", width=70, link=TO_BLAMED_NODE),
            *((Column(name="index", title="GPU", width=45, link=TO_GPU),) if of_gpu else ()),
            Column(name="cause", title="Cause", width=190, words={**ALERTS, **CAUSES}),
            Column(name="act", title="Do first", patterns=first_acts.first_acts(config, names)),
            Column(name="C", title="Ranks lost", width=88, decimals=2),
            Column(name="D", title="Waste/h", width=70, decimals=2),
            Column(name="currency", title="Currency", width=75),
        ),
    )
