"""Alerts on a node that vanishes.

A node whose run stands still is a page; it explains whatever else the run and the node raise. If the run goes
on, its ranks live, and only their telemetry is missing: a ticket.
"""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import OF_RUN, alert_rule, listed, looked_up, matching, value_of
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.agents import AGENT
from rankwatch_alerts.recording.nodes import CHECKPOINT_STEP, LOST, MANY_LOST, NODE, SILENT, SILENT_RANKS
from rankwatch_alerts.recording.steps import STALL
from rankwatch_alerts.rules import NODE_UNSEEN, RUN, Alert, AlertRule, Severity, duration

_OF_PLACE = ("cluster", "run", "node")
_OF_NODE = ("cluster", "node")
_NO_ANSWER_SECONDS = 1.0
"""A machine without an agent refuses a connection within milliseconds, one that is gone not at all."""
_MOST_SHOWN = 16
_RANK_DIGITS = 6


def node_lost(config: RuleConfig) -> tuple[AlertRule, ...]:
    """One alert for each lost node of a run; one for the run where it has lost most of them."""
    return (_named(config), _network(config))


def _named(config: RuleConfig) -> AlertRule:
    return _lost(
        config,
        "node",
        f"time() - {LOST} unless on ({RUN}) {MANY_LOST}",
        f"Node {{{{ $labels.node }}}} is gone, and {_standstill()}. "
        f"Nothing of the node is seen since {_moment(LOST, _OF_PLACE)}, "
        "{{ $value | humanizeDuration }} ago. "
        f"Ranks on it: {_ranks()}; {_steps(_OF_PLACE)}. "
        f"{_agent(config)} Runs with lost ranks there: {_runs()}. "
        "[[Look at the machine from its management network]]: power, console, link. If it does not come back "
        "at once, take it out of scheduling and start the run again elsewhere.",
    )


def _network(config: RuleConfig) -> AlertRule:
    nodes = listed(
        f"topk({_MOST_SHOWN}, {LOST}{matching(OF_RUN)})",
        OF_RUN,
        "{{ $series.Labels.node }}",
        "none",
        by="node",
    )
    known = value_of(
        f"count(run_node:rankwatch_ranks_seen_timestamp_seconds:max{matching(OF_RUN)})",
        OF_RUN,
        "not known",
        'printf "%.0f"',
    )
    return _lost(
        config,
        "network",
        MANY_LOST,
        f"{{{{ $value }}}} of {known} nodes of run {{{{ $labels.run }}}} are gone together, and it stands "
        f"still or is not seen at all: {nodes} (at most {_MOST_SHOWN} are listed). The first went at "
        f"{_moment(f'min({LOST}{{}})', OF_RUN)}; {_steps(OF_RUN)}. So many machines seldom fail at "
        "once: [[look at the network between them first]] (switch, fabric, power of the rack, the way from "
        "Prometheus to them), then at each node.",
    )


def _lost(config: RuleConfig, reason: str, expression: str, description: str) -> AlertRule:
    return alert_rule(
        config,
        Alert.NODE_LOST,
        expression,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        labels={"reason": reason},
        summary="A node with ranks of a run has vanished, and the run stands still.",
        description=description,
    )


def node_unseen(config: RuleConfig) -> AlertRule:
    """A node is silent while the other ranks of its run have made progress since, which they could not do
    without its ranks."""
    return alert_rule(
        config,
        Alert.TELEMETRY_ABSENT,
        f"""
            time() - {SILENT}
            and on ({NODE})
            (
              {SILENT}
              < on ({RUN}) group_left ()
              run:rankwatch_progress_timestamp_seconds:max - {config.node_silent_seconds:g}
            )
            and on ({NODE})
            {SILENT_RANKS}
            unless on ({RUN})
            {STALL}
            unless on ({NODE})
            {LOST}
        """,
        for_seconds=config.absence_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        labels={"reason": NODE_UNSEEN},
        summary="Telemetry that alerts depend on is absent, so their silence means nothing.",
        description=(
            "Node {{ $labels.node }} is not seen since "
            f"{_moment(SILENT, _OF_PLACE)}, but run {{{{ $labels.run }}}} goes on, so its ranks there live: "
            f"{_ranks()}. {_agent(config)} What happens on the node goes unwatched: [[start its agent "
            "again]], or restore the way from Prometheus to it."
        ),
    )


def _standstill() -> str:
    return looked_up(
        f"run:rankwatch_ranks_running:sum{matching(OF_RUN)}",
        OF_RUN,
        "run {{ $labels.run }} stands still without it",
        "no other rank of run {{ $labels.run }} is seen either",
    )


def _moment(series: str, labels: tuple[str, ...]) -> str:
    selected = series.replace("{}", matching(labels)) if "{}" in series else series + matching(labels)
    return value_of(selected, labels, "a moment not known", "humanizeTimestamp")


def _ranks() -> str:
    """The ranks in order of their numbers, which as text would be 10, 8, 9."""
    silent = SILENT_RANKS + matching(_OF_PLACE)
    ordered = f"topk({_MOST_SHOWN}, {silent})"
    for digits in range(1, _RANK_DIGITS):
        zeros = "0" * (_RANK_DIGITS - digits)
        ordered = f'label_replace({ordered}, "order", "{zeros}$1", "rank", "([0-9]{{{digits}}})")'
    count = value_of(f"count({silent})", _OF_PLACE, "some", 'printf "%.0f"')
    return (
        f"{listed(ordered, _OF_PLACE, '{{ $series.Labels.rank }}', 'not known', by='order')} ({count} in all)"
    )


def _steps(labels: tuple[str, ...]) -> str:
    number = 'printf "%.0f"'
    last = value_of(f"max({SILENT_RANKS}{matching(labels)})", labels, "not known", number)
    saved = value_of(f"{CHECKPOINT_STEP}{matching(OF_RUN)}", OF_RUN, "none is known", number)
    return f"their last step: {last}; step of the run's last good checkpoint: {saved}"


def _runs() -> str:
    return listed(
        f"topk({_MOST_SHOWN}, group by (run) ({LOST}{matching(_OF_NODE)}))",
        _OF_NODE,
        "{{ $series.Labels.run }}",
        "none",
        by="run",
    )


def _agent(config: RuleConfig) -> str:
    """What answers in place of the node tells a machine that is gone from an agent that is.

    The longest of some scrapes, because the kernel fails a connection at once that it makes just before it
    gives up looking for the machine.
    """
    job = f'{{job="{config.agent_job}"}}'
    window = f"{duration(config.node_silent_seconds)}:{duration(config.scrape_interval_seconds)}"
    failing = (
        f"max(max_over_time((scrape_duration_seconds{job} and on (instance) (up{job} == 0))[{window}]) "
        f"and on (instance) {AGENT}{matching(_OF_NODE)})"
    )
    slow = min(_NO_ANSWER_SECONDS, config.scrape_interval_seconds / 2)
    scraped = looked_up(
        failing,
        _OF_NODE,
        f"{{{{ if gt (. | first | value) {slow:.1f} }}}}Scrapes of its agent get no answer: the machine is "
        "not reached.{{ else }}Scrapes of its agent are refused at once: the machine may be up without the "
        "agent.{{ end }}",
        "Its agent is no scrape target any more.",
    )
    return looked_up(
        f"rankwatch_agent_info{matching(_OF_NODE)}",
        _OF_NODE,
        "Its agent answers again, but the ranks are not there: the machine has restarted.",
        scraped,
    )
