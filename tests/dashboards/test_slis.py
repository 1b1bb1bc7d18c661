"""The service level indicators: each has its series, its alerts and its panels, or the reason for none."""

from __future__ import annotations

import pytest

from rankwatch.conventions import METRICS, RECORDED_SERIES
from rankwatch_alerts import RuleConfig
from rankwatch_alerts.catalogue import SLIS, Sli
from rankwatch_dashboards.slis import panels_by_series, sources_by_alert

DECLARED = {each.name for each in (*METRICS, *RECORDED_SERIES)}
PANELS = panels_by_series(RuleConfig())
SOURCES = sources_by_alert(RuleConfig())
ALL = [sli for slis in SLIS.values() for sli in slis]


def test_each_has_its_own_name() -> None:
    """Each indicator stands once."""
    assert len({sli.name for sli in ALL}) == len(ALL)


@pytest.mark.parametrize("sli", ALL, ids=lambda sli: sli.name)
def test_indicator(sli: Sli) -> None:
    """Its series exist; each alert depends on one of them; a panel shows one. A reason stands for none."""
    assert sli.series
    assert set(sli.series) <= DECLARED
    assert bool(sli.alerts) != bool(sli.no_alert)
    for alert in sli.alerts:
        assert SOURCES[alert] & set(sli.series), f"{alert} does not depend on {sli.series}"
    shown = any(name in PANELS for name in sli.series)
    assert shown != bool(sli.no_panel), f"{sli.series} on a panel: {shown}"
