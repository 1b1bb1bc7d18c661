"""The board of the agents: do they see everything, and what do they cost themselves?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import AGENTS_UID, ON_CALL_UID, RuleConfig
from rankwatch_dashboards.board import FirstScreen, Row, Rows, any_cluster, board, chosen, several
from rankwatch_dashboards.links import TO_NODE, opens
from rankwatch_dashboards.panels import (
    CLUSTER,
    NODE,
    NONE,
    ORANGE,
    OURS,
    RED,
    YELLOW,
    Drawing,
    Panel,
    Query,
    alert_count,
    most,
    verdict,
)

_ON_CALL = opens(ON_CALL_UID, "What is wrong now")
_NO_AGENT = "no agent is scraped: see RankwatchTelemetryAbsent."
_OF_TELEMETRY = f'{OURS}, alertname=~"RankwatchTelemetry.+"'
_RATE = "[$__rate_interval]"


def agents(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the board."""
    return board(
        "Rankwatch / Agents",
        AGENTS_UID,
        "The agents themselves: collectors that fail or are late, telemetry that is absent, and their cost.",
        variables=(
            any_cluster("label_values(rankwatch_agent_info, cluster)"),
            several(chosen("node", "Node", f"label_values(rankwatch_agent_info{{{CLUSTER}}}, node)")),
        ),
        events=NODE,
        screen=FirstScreen(
            verdicts=_verdicts(config), main=_collectors(config), views=(_ages(), _ABSENT, _SLOWEST)
        ),
        rows=_ROWS,
        config=config,
    )


def _missed() -> str:
    """Intervals since each collector last succeeded."""
    return (
        f"(time() - rankwatch_collector_last_success_timestamp_seconds{{{NODE}}}) "
        f"/ rankwatch_collector_interval_seconds{{{NODE}}}"
    )


def _verdicts(config: RuleConfig) -> tuple[Panel, ...]:
    records = f"sum(rate(rankwatch_blackbox_records_missed_total{{{NODE}}}{_RATE}))"
    return (
        verdict(
            "Agents",
            "Agents that are scraped now. Fewer than nodes with GPUs: some node is not seen.",
            f"count(count by (cluster, node) (rankwatch_agent_info{{{NODE}}}))",
            no_data=_NO_AGENT,
            links=(_ON_CALL,),
        ),
        alert_count(
            "Telemetry absent",
            "Alerts of all clusters that agents, nodes or figures of runs are not seen. Above zero the other "
            "boards are incomplete.",
            _OF_TELEMETRY,
            RED,
        ),
        verdict(
            "Collectors late",
            "Collectors without success for so many intervals that RankwatchTelemetryIncomplete (collector) "
            "follows.",
            f"count({_missed()} > {config.collector_overdue_intervals:g}) or 0 * count({_missed()})",
            steps=((1, ORANGE),),
            mappings=NONE,
            no_data=_NO_AGENT,
            links=(_ON_CALL,),
        ),
        verdict(
            "Records missed",
            "Share of the records of ranks that agents did not read in time. Red: "
            "RankwatchTelemetryIncomplete (records_missed), and figures of steps are too low.",
            f"{records} / (sum(rate(rankwatch_blackbox_records_total{{{NODE}}}{_RATE})) + {records} > 0)",
            unit="percentunit",
            steps=((config.records_missed_share, RED),),
            no_data="no rank writes records.",
            links=(_ON_CALL,),
        ),
        verdict(
            "Slowest scrape",
            "How long Prometheus waited for the slowest agent. Near the scrape timeout of 10 s, series are "
            "lost.",
            f'max(scrape_duration_seconds{{{CLUSTER}, job="{config.agent_job}"}})',
            unit="s",
            steps=((2, YELLOW), (8, RED)),
            no_data=_NO_AGENT,
            links=(_ON_CALL,),
        ),
        verdict(
            "Versions",
            "Different versions of the agent. More than one outside of a roll-out: some nodes were left out.",
            f"count(count by (version) (rankwatch_agent_info{{{NODE}}}))",
            steps=((2, YELLOW),),
            no_data=_NO_AGENT,
            links=(_ON_CALL,),
        ),
    )


def _collectors(config: RuleConfig) -> Panel:
    latest = "rankwatch_collector_last_success_timestamp_seconds"
    late = (
        f"(scalar(max({latest}{{{NODE}}} @ end())) - {latest}{{{NODE}}} @ end()) "
        f"/ rankwatch_collector_interval_seconds{{{NODE}}} @ end()"
    )
    latest_now = f"and on (cluster, node, collector) topk(12, {late})"
    return Panel(
        title="Collectors by missed intervals",
        reads_all_ranks=True,
        description="Intervals since each collector last succeeded, of the 12 that are latest now. Green is "
        "on time; red is RankwatchTelemetryIncomplete (collector), and the series of the collector are "
        "missing on all boards. A click opens the node.",
        no_data=_NO_AGENT,
        unit="short",
        drawing=Drawing.STATES,
        steps=((2, YELLOW), (config.collector_overdue_intervals, RED)),
        queries=(
            Query(expression=most(f"floor({_missed()}) {latest_now}", 12), legend="{{node}} {{collector}}"),
        ),
        links=(TO_NODE,),
    )


def _ages() -> Panel:
    return Panel(
        title="Oldest readings by node",
        description="Time since any collector of the agent last succeeded, the 10 oldest. Above minutes the "
        "agent hangs or the node is overloaded.",
        no_data=_NO_AGENT,
        unit="s",
        drawing=Drawing.BARS,
        least=0,
        queries=(
            Query(
                expression=most(
                    "time() - max by (cluster, node) "
                    f"(rankwatch_collector_last_success_timestamp_seconds{{{NODE}}})",
                    10,
                ),
                legend="{{node}}",
            ),
        ),
        links=(TO_NODE,),
    )


_ABSENT = Panel(
    title="What is not seen",
    description="Alerts on telemetry of all clusters, with what is absent as the reason, by the rules of "
    "Grafana and its data sources. Treat figures of that run or node as unknown until it is back.",
    no_data="all telemetry arrives, or this Grafana sees no rules: then On-call misses RankwatchWatchdog.",
    unit="short",
    drawing=Drawing.ALERT_LIST,
    alerts=_OF_TELEMETRY,
)


_SLOWEST = Panel(
    title="Slowest collectors",
    description="How long the last reading took, the 10 slowest. A collector runs beside the others, so a "
    "slow one delays only itself; near its interval it falls behind.",
    no_data=_NO_AGENT,
    unit="s",
    drawing=Drawing.BARS,
    least=0,
    queries=(
        Query(
            expression=most(f"rankwatch_collector_duration_seconds{{{NODE}}}", 10),
            legend="{{node}} {{collector}}",
        ),
    ),
    links=(TO_NODE,),
)


def _by_node(title: str, description: str, expression: str, legend: str, unit: str = "short") -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=(Query(expression=most(expression), legend=legend),),
        links=(TO_NODE,),
    )


_INPUT = (
    _by_node(
        "Records read",
        "Black-box records that agents read, per second, the busiest 20 nodes. One node at zero while its "
        "run goes on does not see its ranks.",
        f"sum by (cluster, node) (rate(rankwatch_blackbox_records_total{{{NODE}}}{_RATE}))",
        "{{node}}",
    ),
    _by_node(
        "Records missed by node",
        "Records that were overwritten before the agent read them, per second. Above zero: "
        "RankwatchTelemetryIncomplete (records_missed); give the agent CPU time or ranks larger black boxes.",
        f"sum by (cluster, node) (rate(rankwatch_blackbox_records_missed_total{{{NODE}}}{_RATE}))",
        "{{node}}",
    ),
    _by_node(
        "Black boxes left out, by node",
        "Black boxes that agents could not follow, per second and reason: RankwatchTelemetryIncomplete "
        "(black_boxes). Their ranks are missing on all boards.",
        f"sum by (cluster, node, reason) (rate(rankwatch_blackbox_faults_total{{{NODE}}}{_RATE}))",
        "{{node}} {{reason}}",
    ),
)
_OUTPUT = (
    _by_node(
        "Runs of collectors by outcome",
        "Runs of collectors per second and outcome. Failures that go on: RankwatchTelemetryIncomplete "
        "(collector).",
        f"sum by (cluster, node, collector, outcome) (rate(rankwatch_collector_runs_total{{{NODE}}}{_RATE}))",
        "{{node}} {{collector}} {{outcome}}",
    ),
    _by_node(
        "Readings that failed inside a collector",
        "Single files or counters that could not be read, per second; the rest of the collector is there.",
        f"sum by (cluster, node, collector) (rate(rankwatch_collector_read_errors_total{{{NODE}}}{_RATE}))",
        "{{node}} {{collector}}",
    ),
    _by_node(
        "Time in collectors",
        "Share of one CPU's time for which collectors of the node run: the most that the agent can take from "
        "the ranks.",
        f"sum by (cluster, node) (rankwatch_collector_duration_seconds{{{NODE}}} "
        f"/ rankwatch_collector_interval_seconds{{{NODE}}})",
        "{{node}}",
        "percentunit",
    ),
)

_ROWS: Rows = (
    Row("Do agents see the ranks?", lambda _: _INPUT, "no agent is scraped, or no rank writes a black box."),
    Row("Do collectors work, and what do they cost?", lambda _: _OUTPUT, _NO_AGENT),
)
