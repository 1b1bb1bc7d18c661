"""The service level indicators, as `alerts/rules/slis.yaml` lists them.

A test holds that each alert depends on the series, and that each series is on a panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from rankwatch.settings import field_names
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rule_files import RuleFileError, document
from rankwatch_alerts.rules import Alert, duration

ABSENT = (str(Alert.TELEMETRY_ABSENT),)
"""The alert that tells that something is not measured, where an indicator names no other."""
RULES_FAILING = f"{Alert.TELEMETRY_ABSENT}/rules_failing"


@dataclass(frozen=True, kw_only=True)
class Sli:
    """One service level indicator."""

    name: str
    question: str
    """What a person on call asks."""
    series: Sequence[str]
    """Metrics of the agent and recorded series that answer it."""
    figure: str
    """The answer as one PromQL expression; `$window` stands for the window."""
    unit: str
    good: str = "lower"
    """Where the figure is better: `lower`, `higher` or `neither`."""
    objective: str | float | None = None
    """What the figure is to reach or not to exceed: a setting of the rules, or a number that no user changes.
    None where each run only has its own past."""
    window: str = ""
    """The setting that is the window; empty for what holds at this instant."""
    owner: str = "training"
    absent: Sequence[str] = ABSENT
    """What tells that it is not measured: alerts, each `name` or `name/reason`."""
    needs: str = ""
    """Where it is never measured in health, and no alert can ask for it: what a run or a node must have."""
    alerts: Sequence[str] = ()
    """What judges it: alerts, each `name` or `name/reason`."""
    no_alert: str = ""
    """Why nothing does; empty where something does."""

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
    def absence(self) -> tuple[str, ...]:
        """The alerts that tell that it is not measured; what rules record also depends on the rules."""
        return (*self.absent, *((RULES_FAILING,) if any(":" in each for each in self.series) else ()))


@cache
def slis(directory: str = "") -> Mapping[str, tuple[Sli, ...]]:
    """Every indicator, by what it is about; of the user's own directory if it has the file. Raises
    RuleFileError for a field that is missing or unknown, or names no setting."""
    try:
        parts = document("slis", directory).items()
        found = {part: tuple(Sli(**each) for each in listed) for part, listed in parts}
    except (TypeError, AttributeError) as error:
        raise RuleFileError(f"could not use slis.yaml: {error}") from error
    for each in (each for listed in found.values() for each in listed):
        for setting in (each.window, each.objective):
            if isinstance(setting, str) and setting and setting not in field_names(RuleConfig):
                raise RuleFileError(f"could not use slis.yaml: {each.name} names no setting by {setting!r}")
    return found
