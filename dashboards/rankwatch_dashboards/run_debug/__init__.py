"""The run-debug dashboard, which alerts on runs link to: its rows in the order of triage."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import RUN_DEBUG_UID, RuleConfig
from rankwatch_dashboards.board import Row, Rows, board, variables_of_run
from rankwatch_dashboards.checkpoints_goodput.checkpoints import at_a_glance
from rankwatch_dashboards.panels import RUN
from rankwatch_dashboards.run_debug.attempts import ATTEMPTS
from rankwatch_dashboards.run_debug.first import first_screen
from rankwatch_dashboards.run_debug.machines import NODES, TELEMETRY
from rankwatch_dashboards.run_debug.progress import PROGRESS, STEP_SPLIT
from rankwatch_dashboards.run_debug.slow import COLLECTIVES, who_is_slow, why_slow

_NOT_SEEN = "the run is not seen: no agent is scraped on its nodes, or it has completed no step."
_NOT_COMPARED = "ranks have completed too few steps to compare, or the hooks do not record these phases."

ROWS: Rows = (
    Row("Is it making progress?", lambda _: PROGRESS, _NOT_SEEN),
    Row("How did its attempts go?", lambda _: ATTEMPTS, "no agent has seen an attempt of this run."),
    Row("Where does the step go?", lambda _: STEP_SPLIT, _NOT_SEEN),
    Row("Who is slow?", who_is_slow, _NOT_COMPARED),
    Row("No rank to blame?", why_slow, _NOT_COMPARED),
    Row("Could work be lost?", at_a_glance, "the hooks have seen no checkpoint of this run."),
    Row(
        "Collectives",
        lambda _: COLLECTIVES,
        "no collective was recorded: a single rank, or a back end that the row below calls not visible.",
    ),
    Row(
        "Nodes of the run",
        lambda _: NODES,
        "the nodes have no such part, or their agents are not scraped: see the board of agents.",
    ),
    Row("Can the data be trusted?", lambda _: TELEMETRY, "no agent is scraped on the nodes of this run."),
)


def run_debug(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the dashboard of one run."""
    return board(
        "Rankwatch / Run debug",
        RUN_DEBUG_UID,
        "One training run: progress, step split, stragglers, checkpoints, nodes.",
        variables=variables_of_run(),
        events=RUN,
        screen=first_screen(config),
        rows=ROWS,
        config=config,
    )
