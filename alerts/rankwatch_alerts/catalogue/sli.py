"""One service level indicator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.delivery import Owner
from rankwatch_alerts.rules import Alert, duration


class Good(StrEnum):
    """The direction in which the figure gets better."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True, kw_only=True)
class Sli:
    """One service level indicator."""

    name: str
    question: str
    """What a person on call asks."""
    series: tuple[str, ...]
    """Metrics of the agent and recorded series that answer it."""
    figure: str
    """The answer as one PromQL expression; `$window` stands for the window."""
    unit: str
    good: Good
    objective: str | float | None
    """What the figure is to reach or not to exceed: a setting of the rules, or a number that no user changes.
    None where each run only has its own past."""
    window: str
    """The setting that is the window; empty for what holds at this instant."""
    owner: Owner
    absent: tuple[Alert, ...]
    """What tells that it is not measured."""
    needs: str
    """Where it is never measured in health, and no alert can ask for it: what a run or a node must have."""
    alerts: tuple[Alert, ...] = ()
    """What judges it."""
    no_alert: str = ""
    """Why nothing does; empty where something does."""
    no_panel: str = ""
    """Why no panel shows it; empty where one does."""

    def expression(self, config: RuleConfig) -> str:
        """The figure over its window, as Prometheus reads it."""
        window = duration(getattr(config, self.window)) if self.window else ""
        return self.figure.replace("$window", window)

    def objectives(self, config: RuleConfig) -> Mapping[str, float]:
        """Class of runs -> objective; the class `default` stands for all others. Empty for none."""
        if self.objective is None:
            return {}
        value = getattr(config, self.objective) if isinstance(self.objective, str) else self.objective
        return value if isinstance(value, Mapping) else {"default": value}

    @property
    def absence(self) -> tuple[Alert, ...]:
        """The alerts that tell that it is not measured; what rules record also depends on the rules."""
        recorded = (Alert.RULES_FAILING,) if any(":" in each for each in self.series) else ()
        return (*self.absent, *recorded)


def sli(
    name: str,
    question: str,
    *series: str,
    figure: str,
    unit: str,
    good: Good,
    objective: str | float | None = None,
    window: str = "",
    owner: Owner = Owner.TRAINING,
    absent: tuple[Alert, ...] = (Alert.TELEMETRY_ABSENT,),
    needs: str = "",
    alerts: tuple[Alert, ...] = (),
    no_alert: str = "",
    no_panel: str = "",
) -> Sli:
    """An indicator by its name, its question and its series."""
    return Sli(
        name=name,
        question=question,
        series=series,
        figure=figure,
        unit=unit,
        good=good,
        objective=objective,
        window=window,
        owner=owner,
        absent=absent,
        needs=needs,
        alerts=alerts,
        no_alert=no_alert,
        no_panel=no_panel,
    )
