"""The indicators of whether rankwatch itself sees everything."""

from __future__ import annotations

from rankwatch_alerts.catalogue.sli import sli
from rankwatch_alerts.rules import Alert

TELEMETRY = (
    sli(
        "agents",
        "Does every node report?",
        "rankwatch_agent_info",
        alerts=(
            Alert.TELEMETRY_ABSENT,
            Alert.NODE_LOST,
        ),
    ),
    sli(
        "collectors",
        "Does every source of data work?",
        "rankwatch_collector_state",
        alerts=(Alert.COLLECTOR_FAILING,),
    ),
    sli(
        "black boxes",
        "Is anything of a run left out?",
        "rankwatch_blackbox_faults_total",
        alerts=(Alert.BLACK_BOXES_LEFT_OUT,),
    ),
)
