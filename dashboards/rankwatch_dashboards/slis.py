"""The page on the service level indicators: their series, and the alerts and panels that use them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from rankwatch.conventions.metrics import METRICS
from rankwatch.settings import field_names
from rankwatch_alerts import RuleConfig, recording_rules
from rankwatch_alerts.config.thresholds import DEFAULT_CLASS
from rankwatch_alerts.rule_files import RuleFileError, document
from rankwatch_alerts.rules import Alert, duration
from rankwatch_dashboards import all_panels, dashboards

_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_SERIES: Mapping[str, str] = {
    **{name: each.name for each in METRICS for name in (each.name, *each.series)},
    **{each.record: each.record for each in recording_rules(RuleConfig())},
}
"""A name in an expression -> the series or histogram that it is of."""
_MOST_PANELS = 3

_HEAD = """\
Each service level indicator is one question that a person on call asks, and one figure that answers it. The
first table of each part says how it is measured: figure, window, unit, the direction that is good, objective
by class of runs, and who acts on it. The second one says who looks at it: the series, the alerts that judge
the indicator, the alerts that tell that it is not measured, and the first panels that show it. Where there
is none, the reason stands in its place.

Objectives, windows and thresholds are [settings of the rules](rules.md#settings).
"""


def panels_by_series(config: RuleConfig) -> Mapping[str, list[str]]:
    """Return the panels whose queries name a series, by series, as "dashboard: title"."""
    found: dict[str, list[str]] = {}
    for board in dashboards(config):
        name = board["title"].removeprefix("Rankwatch / ")
        for panel in all_panels(board):
            for series in {each for query in panel.get("targets", ()) for each in named_in(query["expr"])}:
                found.setdefault(series, []).append(f"{name}: {panel['title']}")
    return found


def slis_reference(config: RuleConfig) -> Iterator[str]:
    """Yield the page, below its title, in Markdown."""
    shown = panels_by_series(config)
    yield _HEAD
    for part, listed in slis(config.rules_directory).items():
        yield from (
            f"## {part}",
            "",
            "| indicator | question | figure | window | unit | good | objective | owner |",
        )
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
        yield from (_measured(config, each) for each in listed)
        yield from ("", "| indicator | series | alerts | tells its absence | panels |")
        yield "| --- | --- | --- | --- | --- |"
        yield from (_judged(each, shown) for each in listed)
        yield ""


def _measured(config: RuleConfig, sli: Sli) -> str:
    window = duration(getattr(config, sli.window)) if sli.window else "now"
    objectives = sli.objectives(config)
    several = ", ".join(f"{name} {value:g}" for name, value in objectives.items())
    objective = f"{objectives[DEFAULT_CLASS]:g}" if len(objectives) == 1 else several or "its own past"
    if isinstance(sli.objective, str):
        objective += f" (`{sli.objective}`)"
    figure = sli.expression(config).replace("|", "\\|")
    cells = (sli.name, sli.question, f"`{figure}`", window, sli.unit, sli.good, objective, sli.owner)
    return f"| {' | '.join(cells)} |"


def _judged(sli: Sli, shown: Mapping[str, list[str]]) -> str:
    series = ", ".join(f"`{name}`" for name in sli.series)
    alerts = ", ".join(sli.alerts) or f"none: {sli.no_alert}"
    absence = ", ".join(sli.absence) + (f"; none without {sli.needs}" if sli.needs else "")
    panels = list(dict.fromkeys(each for name in sli.series for each in shown.get(name, ())))
    listed = "; ".join(panels[:_MOST_PANELS])
    return f"| {sli.name} | {series} | {alerts} | {absence} | {listed} |"


def named_in(expression: str) -> set[str]:
    """Return the declared series that an expression names."""
    return {_SERIES[each] for each in _NAME.findall(expression) if each in _SERIES}


ABSENT = (str(Alert.TELEMETRY_ABSENT),)
"""The alert that tells that something is not measured, where an indicator names no other."""
RULES_FAILING = f"{Alert.TELEMETRY_ABSENT}/rules_failing"


@dataclass(frozen=True, kw_only=True)
class Sli:
    """One service level indicator."""

    name: str
    question: str
    """Question that a person on call asks."""
    series: Sequence[str]
    """Metrics of the agent and recorded series that answer it."""
    figure: str
    """The answer as one PromQL expression; `$window` stands for the window."""
    unit: str
    good: str = "lower"
    """Side on which the figure is better: `lower`, `higher` or `neither`."""
    objective: str | float | None = None
    """Value that the figure is to reach or not to exceed: a setting of the rules, or a number that no user
    changes. None where each run only has its own past."""
    window: str = ""
    """The setting that is the window; empty for what holds at this instant."""
    owner: str = "training"
    absent: Sequence[str] = ABSENT
    """Alerts that tell that it is not measured, each `name` or `name/reason`."""
    needs: str = ""
    """Thing a run or node must have where it is never measured in health, and no alert can ask for it."""
    alerts: Sequence[str] = ()
    """Alerts that judge it, each `name` or `name/reason`."""
    no_alert: str = ""
    """Why nothing does; empty where something does."""

    def expression(self, config: RuleConfig) -> str:
        """Return the figure over its window, as Prometheus reads it."""
        window = duration(getattr(config, self.window)) if self.window else ""
        return self.figure.replace("$window", window)

    def objectives(self, config: RuleConfig) -> Mapping[str, float]:
        """Return objectives by class of runs; the class `default` stands for all others. Empty for none."""
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
    """Return every indicator, by what it is about; of the user's own directory if it has the file. Raises
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
