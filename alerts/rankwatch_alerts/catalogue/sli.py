"""One service level indicator."""

from __future__ import annotations

from dataclasses import dataclass

from rankwatch_alerts.rules import Alert


@dataclass(frozen=True, kw_only=True)
class Sli:
    """One service level indicator."""

    name: str
    question: str
    """What a person on call asks."""
    series: tuple[str, ...]
    """Metrics of the agent and recorded series that answer it."""
    alerts: tuple[Alert, ...] = ()
    """What judges it."""
    no_alert: str = ""
    """Why nothing does; empty where something does."""
    no_panel: str = ""
    """Why no panel shows it; empty where one does."""


def sli(
    name: str,
    question: str,
    *series: str,
    alerts: tuple[Alert, ...] = (),
    no_alert: str = "",
    no_panel: str = "",
) -> Sli:
    """An indicator by its name, its question and its series."""
    return Sli(
        name=name, question=question, series=series, alerts=alerts, no_alert=no_alert, no_panel=no_panel
    )
