"""The board of a person on call, on alerts as Prometheus and Grafana write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import ON_CALL_UID, RuleConfig
from rankwatch_dashboards import all_panels, dashboards
from rankwatch_dashboards.firing import of_runs
from rankwatch_dashboards.panels import GREEN, ORANGE, RED, YELLOW
from support.dashboards.lint import filled_in
from support.servers.prometheus import backfill, prometheus, query

MOMENTS = (-60, -45, -30, -15, 0, 15, 30, 45, 60, 75, 90, 105, 120)
"""Seconds from now of the samples: the test may take a while."""
TABLE = "What is wrong now, and the other runs"
_FIRES = 'alertstate="firing",cluster="c",product="rankwatch"'
_LATEST = "rankwatch_rank_start_timestamp_seconds:latest"
SERIES = {
    # Prometheus: a page of the GPU of rank 5, a ticket of a link, a run that stalls, and what pages nobody.
    f'ALERTS{{{_FIRES},alertname="RankwatchGpuFault",severity="critical",reason="lost",node="n",gpu="g"}}': 1,
    f'ALERTS{{{_FIRES},alertname="RankwatchLinkDown",severity="warning",reason="nic",node="m"}}': 1,
    f'ALERTS{{{_FIRES},alertname="RankwatchRunSlow",severity="critical",cause="jitter",run="slow"}}': 1,
    f'ALERTS{{{_FIRES},alertname="RankwatchWatchdog",severity="info"}}': 1,
    'ALERTS{alertstate="firing",cluster="c",alertname="KubeNodeNotReady",severity="critical",node="n"}': 1,
    # Grafana: its title says more than the name.
    f'GRAFANA_ALERTS{{{_FIRES},alertname="RankwatchRunStalled (critical, rank_known)",severity="critical",'
    'reason="rank_known",run="stalled",rank="1",node="o",grafana_rule_uid="u"}': 1,
    f'gpu:{_LATEST}{{cluster="c",node="n",gpu="g",run="lost-gpu",rank="5"}}': 100,
    f'node:{_LATEST}{{cluster="c",node="m",run="linked"}}': 100,
    **{
        f'run_state:rankwatch_goodput_ranks:mean{{cluster="c",run="{run}",state="stall"}}': lost
        for run, lost in {"lost-gpu": 1, "linked": 4, "slow": 3, "stalled": 2, "quiet": 0.5}.items()
    },
    **{
        f'run:rankwatch_ranks_running:sum{{cluster="c",run="{run}"}}': 8
        for run in ("lost-gpu", "linked", "slow", "stalled", "quiet")
    },
}


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that holds these series, and scrapes nothing."""
    directory: Path = tmp_path_factory.mktemp("on-call")
    now = time.time()
    backfill([f"{name} {value} {now + at}" for name, value in SERIES.items() for at in MOMENTS], directory)
    with prometheus({"global": {}}, directory) as url:
        yield url


def _panels() -> list[dict[str, Any]]:
    (board,) = [each for each in dashboards(RuleConfig()) if each["uid"] == ON_CALL_UID]
    return list(all_panels(board))


def _rows(url: str, letter: str) -> list[dict[str, Any]]:
    (panel,) = [each for each in _panels() if each["title"] == TABLE]
    (target,) = [each for each in panel["targets"] if each["refId"] == letter]
    return query(url, filled_in(target["expr"]))


@pytest.mark.process
def test_alerts_have_runs(prometheus_url: str) -> None:
    """A GPU that of its rank, a node that of its ranks; names and reasons are alike, whoever evaluates."""
    found = {
        tuple(each["metric"].get(name, "") for name in ("alertname", "reason", "run", "rank"))
        for each in query(prometheus_url, filled_in(of_runs()))
    }
    assert found == {
        ("RankwatchGpuFault", "lost", "lost-gpu", "5"),
        ("RankwatchLinkDown", "nic", "linked", ""),
        ("RankwatchRunSlow", "jitter", "slow", ""),
        ("RankwatchRunStalled", "rank_known", "stalled", "1"),
    }


@pytest.mark.process
def test_order(prometheus_url: str) -> None:
    """Pages by what their runs lose, then tickets, then runs without an alert; each run stands once."""
    lost = _rows(prometheus_url, "B")
    order = sorted(lost, key=lambda each: (each["metric"]["severity"], -float(each["value"][1])))
    assert [each["metric"]["run"] for each in order] == ["slow", "stalled", "lost-gpu", "linked", "quiet"]
    assert {each["metric"]["run"] for each in _rows(prometheus_url, "A")} == {
        each["metric"]["run"] for each in lost
    }
    (panel,) = [each for each in _panels() if each["title"] == TABLE]
    assert [(each["displayName"], each["desc"]) for each in panel["options"]["sortBy"]][:2] == [
        ("Severity", False),
        ("Ranks lost", True),
    ]


@pytest.mark.process
def test_suspects(prometheus_url: str) -> None:
    """The alert of a run that names no rank has the suspect of the run beside it."""
    suspects = {
        each["metric"]["run"]: each["metric"].get("suspect", "") for each in _rows(prometheus_url, "A")
    }
    assert suspects["lost-gpu"] == "5 on n"
    assert suspects["stalled"] == "1 on o"
    assert suspects["quiet"] == ""


def test_pages_are_counted_by_grafana() -> None:
    """Its own alerts are no series: counts of a query would be zero while pages fire.

    A cluster that is not a label of the alert must not hide it, and the list holds the alert that always
    fires, so that a Grafana without rules is seen.
    """
    lists = {each["title"]: each["options"] for each in _panels() if each["type"] == "alertlist"}
    assert {title: (each["viewMode"], each["alertInstanceLabelFilter"]) for title, each in lists.items()} == {
        "Pages": ("stat", '{product="rankwatch", severity="critical"}'),
        "Tickets": ("stat", '{product="rankwatch", severity="warning"}'),
        "What fires, whoever evaluates it": ("list", '{product="rankwatch"}'),
    }
    assert all(each["datasource"] == "" and each["stateFilter"]["firing"] for each in lists.values())


_TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
_SEEN_WITHOUT = {
    "red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}
"""Linear light as it is seen without one kind of cones: Machado, Oliveira and Fernandes, 2009, severity 1."""
_TOLD_APART = 20.0
"""Difference in CIE Lab, in which 2.3 is just noticeable side by side."""


def _lab(colour: str, cones: str) -> tuple[float, float, float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    light = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    for matrix in (_SEEN_WITHOUT[cones], _TO_XYZ):
        light = [sum(a * b for a, b in zip(row, light, strict=True)) for row in matrix]
    x, y, z = (max(each / white, 0) ** (1 / 3) for each, white in zip(light, (0.9505, 1, 1.089), strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _difference(one: str, other: str, cones: str) -> float:
    pairs = zip(_lab(one, cones), _lab(other, cones), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


def test_colours() -> None:
    """States are told apart without the cones for red or for green; Grafana's green and red are not."""
    for one, other in combinations((GREEN, YELLOW, ORANGE, RED), 2):
        assert all(_difference(one, other, cones) > _TOLD_APART for cones in _SEEN_WITHOUT), (one, other)
    assert _difference("#73bf69", "#f2495c", "green") < _TOLD_APART
