"""What boards show in the place of our own words."""

from __future__ import annotations

import re

import pytest

from rankwatch.conventions.metrics import METRICS
from rankwatch.conventions.states import Cause, GoodputState, SlowPhase
from rankwatch_alerts import Alert, RuleConfig, alert_groups
from rankwatch_dashboards import all_panels, dashboards
from rankwatch_dashboards.words import REASONS, STATES, SUSPICIONS, words_of


def test_reasons_of_alerts() -> None:
    """A reader meets no identifier, except the name of a series that is absent."""
    rules = [rule for group in alert_groups(RuleConfig()) for rule in group.rules]
    reasons = {rule.labels["reason"] for rule in rules if "reason" in rule.labels}
    series = {metric.name for metric in METRICS}
    assert len(reasons) > 20
    assert {each for each in reasons - series if "_" in each} <= REASONS.keys()


def test_reasons_that_panels_name() -> None:
    """Beside an alert, in brackets, as the alert carries it: a reader searches for it."""
    texts = [
        panel.get("description", "") for board in dashboards(RuleConfig()) for panel in all_panels(board)
    ]
    named = {reason for text in texts for reason in re.findall(r"Rankwatch\w+(?: \(|: )(\w+)\)", text)}
    assert len(named) > 20
    assert named <= REASONS.keys()


def test_causes() -> None:
    """Each phase is part of the cause that a board shows. No word is for a state that does not exist."""
    assert {f"slow: {each}" for each in SlowPhase} <= SUSPICIONS.keys()
    assert {Cause.SLOW_STAGE, Cause.SLOW_RANK, Cause.NETWORK, Cause.JITTER} <= SUSPICIONS.keys()
    assert STATES.keys() <= set(GoodputState)


@pytest.mark.parametrize(
    ("alert", "words"),
    [
        (Alert.GPU_FAULT, "GPU fault"),
        (Alert.GPUS_WASTED, "GPUs wasted"),
        (Alert.CHECKPOINT_AT_RISK, "checkpoint at risk"),
    ],
)
def test_words_of_alerts(alert: Alert, words: str) -> None:
    """Names become words, and short forms keep their capitals."""
    assert words_of(alert) == words
