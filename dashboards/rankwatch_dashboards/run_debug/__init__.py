"""The run-debug dashboard, which alerts on runs link to: its rows in the order of triage."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import RUN_DEBUG_UID, RuleConfig
from rankwatch_dashboards.board import Rows, board, variables_of_run
from rankwatch_dashboards.checkpoints_goodput.checkpoints import at_a_glance
from rankwatch_dashboards.panels import RUN
from rankwatch_dashboards.run_debug.learning import learning
from rankwatch_dashboards.run_debug.machines import NODES, TELEMETRY
from rankwatch_dashboards.run_debug.progress import PROGRESS, STEP_SPLIT
from rankwatch_dashboards.run_debug.slow import COLLECTIVES, who_is_slow, why_slow

ROWS: Rows = (
    ("Is it making progress?", lambda _: PROGRESS),
    ("Where does the step go?", lambda _: STEP_SPLIT),
    ("Who is slow?", who_is_slow),
    ("No rank to blame?", why_slow),
    ("Is it learning?", learning),
    ("Could work be lost?", at_a_glance),
    ("Collectives", lambda _: COLLECTIVES),
    ("Nodes of the run", lambda _: NODES),
    ("Can the data be trusted?", lambda _: TELEMETRY),
)


def run_debug(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the dashboard of one run."""
    return board(
        "Rankwatch / Run debug",
        RUN_DEBUG_UID,
        "One training run: progress, step split, stragglers, learning, checkpoints, nodes.",
        variables=variables_of_run(),
        events=RUN,
        rows=ROWS,
        config=config,
    )
