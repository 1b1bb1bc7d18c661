"""The indicators of whether rankwatch itself sees everything."""

from __future__ import annotations

from rankwatch_alerts.catalogue.sli import Good, sli
from rankwatch_alerts.delivery import Owner
from rankwatch_alerts.rules import Alert

TELEMETRY = (
    sli(
        "agents",
        "Does every node report?",
        "rankwatch_agent_info",
        figure="count by (cluster) (rankwatch_agent_info)",
        unit="agents",
        good=Good.HIGHER,
        owner=Owner.PLATFORM,
        alerts=(
            Alert.TELEMETRY_ABSENT,
            Alert.NODE_LOST,
            Alert.WATCHDOG,
        ),
    ),
    sli(
        "collectors",
        "Does every source of data work?",
        "rankwatch_collector_state",
        figure='sum by (cluster) (rankwatch_collector_state{state="failed"})',
        unit="failing collectors",
        good=Good.LOWER,
        objective=0.0,
        owner=Owner.PLATFORM,
        alerts=(Alert.COLLECTOR_FAILING,),
    ),
    sli(
        "black boxes",
        "Is anything of a run left out?",
        "rankwatch_blackbox_faults_total",
        "rankwatch_blackbox_last_fault_timestamp_seconds",
        "rankwatch_blackbox_records_missed_total",
        "rankwatch_node_records_missed_total",
        figure="sum by (cluster, node) (increase(rankwatch_blackbox_faults_total[$window]))",
        unit="faults",
        good=Good.LOWER,
        objective=0.0,
        window="event_window_seconds",
        owner=Owner.PLATFORM,
        alerts=(Alert.BLACK_BOXES_LEFT_OUT, Alert.RECORDS_MISSED),
    ),
)
