"""The service level indicators: each has its series, its panels, and its alerts or the reason for none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from rankwatch.conventions.metrics import METRICS
from rankwatch_alerts import RuleConfig, alert_rules, recording_rules
from rankwatch_alerts.checks import check_expression
from rankwatch_alerts.config.thresholds import DEFAULT_CLASS
from rankwatch_alerts.promql import parse, result_labels
from rankwatch_dashboards.slis import Sli, named_in, panels_by_series, slis, slis_reference

DECLARED = {*(each.name for each in METRICS), *(each.record for each in recording_rules(RuleConfig()))}
PANELS = panels_by_series(RuleConfig())


def sources_by_alert(config: RuleConfig) -> Mapping[str, set[str]]:
    """Alert, and `alert/reason` -> every series that its rules depend on, also through recording rules."""
    sources: dict[str, set[str]] = {}
    for rule in recording_rules(config):
        sources.setdefault(rule.record, set()).update(named_in(rule.expression))
    found: dict[str, set[str]] = {}
    for alert in alert_rules(config):
        for name in {alert.alert, *(f"{alert.alert}/{reason}" for reason in alert.reasons)}:
            found.setdefault(name, set()).update(_closure(named_in(alert.expression), sources))
    return found


def _closure(found: Iterable[str], sources: Mapping[str, set[str]]) -> set[str]:
    """These series, and all that they are recorded from."""
    known: set[str] = set()
    pending = list(found)
    while pending:
        name = pending.pop()
        if name not in known:
            known.add(name)
            pending += sources.get(name, ())
    return known


SOURCES = sources_by_alert(RuleConfig())
RECORDED_FROM = {rule.record: named_in(rule.expression) for rule in recording_rules(RuleConfig())}
ALL = [sli for listed in slis().values() for sli in listed]


def test_each_has_its_own_name() -> None:
    """Each indicator stands once."""
    assert len({sli.name for sli in ALL}) == len(ALL)


@pytest.mark.parametrize("sli", ALL, ids=lambda sli: sli.name)
def test_indicator(sli: Sli) -> None:
    """Its series exist, each alert depends on one, and a panel shows one. Without alerts it has a reason."""
    assert sli.series
    assert set(sli.series) <= DECLARED
    assert bool(sli.alerts) != bool(sli.no_alert)
    for alert in sli.alerts:
        assert SOURCES[alert] & set(sli.series), f"{alert} does not depend on {sli.series}"
    assert any(name in PANELS for name in sli.series), f"no panel shows {sli.series}"
    assert sli.good in ("lower", "higher", "neither")


@pytest.mark.parametrize("sli", ALL, ids=lambda sli: sli.name)
def test_figure(sli: Sli) -> None:
    """It parses, uses known names correctly, and says of which cluster it is: Prometheus may hold several."""
    figure = sli.expression(RuleConfig())
    assert check_expression(sli.name, figure) == []
    assert "cluster" in result_labels(parse(figure))
    assert named_in(figure) & _with_sources(sli.series), "the figure is not made of the series"
    assert ("$window" in sli.figure) <= bool(sli.window)


def _with_sources(series: tuple[str, ...]) -> set[str]:
    """The series, and what is recorded from them: an alert on either depends on the same figures."""
    return {*series, *(name for name in DECLARED if RECORDED_FROM.get(name, set()) & set(series))}


@pytest.mark.parametrize("sli", ALL, ids=lambda sli: sli.name)
def test_absence(sli: Sli) -> None:
    """An alert of the rules tells that it is not measured."""
    assert sli.absence
    assert set(sli.absence) <= SOURCES.keys()


def test_objectives_follow_the_settings() -> None:
    """By class where the setting has classes, and for all runs alike elsewhere."""
    config = RuleConfig(success_objectives={"default": 0.9, "nightly": 0.95}, loss_deviation=7.0)
    by_name = {sli.name: sli for sli in ALL}
    assert by_name["run success"].objectives(config) == {"default": 0.9, "nightly": 0.95}
    assert by_name["loss"].objectives(config) == {"default": 7.0}
    assert by_name["throughput"].objectives(config) == {}
    for sli in ALL:
        assert DEFAULT_CLASS in sli.objectives(config) or sli.objective is None


def test_window_follows_the_settings() -> None:
    """The figure is over the window that its rules take."""
    by_name = {sli.name: sli for sli in ALL}
    config = RuleConfig(step_window_seconds=120.0)
    assert "[2m]" in by_name["throughput"].expression(config)


def test_page() -> None:
    """Two rows for each indicator, one for how it is measured and one for who looks at it."""
    rows = [line for line in slis_reference(RuleConfig()) if line.startswith("| ")]
    for sli in ALL:
        measured, judged = (row for row in rows if row.startswith(f"| {sli.name} |"))
        assert f" {sli.unit} | {sli.good} |" in measured
        assert all(alert in judged for alert in (*sli.alerts, *sli.absence))
