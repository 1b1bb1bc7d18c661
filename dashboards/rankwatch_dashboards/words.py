"""Plain words that boards show in the place of our own: causes, reasons, phases, and states of time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from rankwatch.conventions.states import SlowPhase
from rankwatch_alerts import Alert

Words = Mapping[str, str]
"""A value of a label, and what a reader understands."""

_SHORT_FORMS = {"Gpu": "GPU", "Gpus": "GPUs"}
_FILE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def words_of(alert: Alert) -> str:
    """Return the name of an alert as words: RankwatchGpuFault is "GPU fault"."""
    parts = re.findall("[A-Z][a-z]+", alert.removeprefix("Rankwatch"))
    return " ".join(_SHORT_FORMS.get(each, each.lower()) for each in parts)


ALERTS: Words = {each: words_of(each) for each in Alert}
_PACE: Words = {**_FILE["pace"], **{f"slow: {each}": f"slow: {each.replace('_', ' ')}" for each in SlowPhase}}
REASONS: Words = {
    **{
        reason: text
        for about in ("stalls", "parts", "checkpoints", "telemetry", "learning")
        for reason, text in _FILE[about].items()
    },
    **_PACE,
    **_FILE["replicas"],
}
"""Reasons of alerts, beside the words of the alert."""
SUSPICIONS: Words = {
    **_FILE["stalls"],
    **_PACE,
    **{
        f"{alert} {reason}": f"{ALERTS[alert]}: {REASONS[reason]}"
        for alert, reasons in _FILE["suspicions"].items()
        for reason in reasons
    },
}
"""Causes that a run can have: few, because each is an override in the JSON."""
PHASES: Words = _FILE["phases"]
STATES: Words = _FILE["states"]
"""States of goodput, where their own names say less."""
