"""The dashboard of what a run could lose, and of what its time and money are spent on."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import CHECKPOINTS_GOODPUT_UID, RuleConfig
from rankwatch_dashboards.board import Row, Rows, board, variables_of_run
from rankwatch_dashboards.checkpoints_goodput.checkpoints import NEWEST, at_a_glance, saving
from rankwatch_dashboards.checkpoints_goodput.cost import cost
from rankwatch_dashboards.checkpoints_goodput.first import first_screen
from rankwatch_dashboards.checkpoints_goodput.goodput import checkpoint_interval, goodput
from rankwatch_dashboards.checkpoints_goodput.life import life
from rankwatch_dashboards.checkpoints_goodput.verification import verification
from rankwatch_dashboards.panels import RUN

ROWS: Rows = (
    Row("Could work be lost?", at_a_glance, "the hooks have seen no checkpoint of this run."),
    Row(
        "What is saved, and what is at risk?",
        lambda _: NEWEST,
        "the hooks have seen no checkpoint of this run.",
    ),
    Row("How do saves go?", saving, "the hooks have seen no checkpoint of this run."),
    Row(
        "Is what was saved still what was written?",
        verification,
        "no agent verifies checkpoints of this run.",
    ),
    Row(
        "Which share of the time makes progress?",
        goodput,
        "agents have not yet seen the run for the window of goodput, or it states no work.",
    ),
    Row(
        "Would another checkpoint interval cost less?",
        checkpoint_interval,
        "the run has not yet saved and failed often enough.",
    ),
    Row(
        "How do attempts end, and when will it be done?",
        life,
        "no attempt has ended, or the run states no target or deadline.",
    ),
    Row("What does it cost?", cost, "no price is set: see docs/cost.md."),
)


def checkpoints_goodput(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the dashboard."""
    return board(
        "Rankwatch / Checkpoints and goodput",
        CHECKPOINTS_GOODPUT_UID,
        "One training run: checkpoints, work at risk, goodput, cost, attempts.",
        variables=variables_of_run(),
        events=RUN,
        screen=first_screen(config),
        rows=ROWS,
        config=config,
    )
