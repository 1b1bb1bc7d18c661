"""The simulated life of a fleet: the model, its Alertmanager beside a real one, and the page budget."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from rankwatch.conventions.metrics import METRICS
from rankwatch_alerts import ALERT_NAMES, RuleConfig, alertmanager_config
from support.alerts.fleet.day import REQUIRED, Day, Fault, FaultKind, Place
from support.alerts.fleet.firing import Labels, delayed, shipped
from support.alerts.fleet.machines import write_machines
from support.alerts.fleet.page import ABSENT, Pages, Target, notation, received, reset
from support.alerts.fleet.paging import Notification, Pager, inhibited, read_inhibitions, read_route, route_of
from support.alerts.fleet.ranks import write_runs
from support.alerts.fleet.schedule import LARGE_RUN, day, shifts
from support.alerts.fleet.verdict import BUDGET, Verdict, judge, live, together
from support.recorded.runs import HEALTHY, read
from support.servers.prometheus import alertmanager, get_json, poll, post_json

INTERVAL = 30
LEFT_OUT = {
    "checkpoint_last_good_step": "only runs that verify their own checkpoints",
    "checkpoint_last_verified_timestamp_seconds": "likewise",
    "collective_last_completed": "only in a hang",
    "collective_last_enqueued": "only in a hang",
    "flight_recorder_silent_seconds": "only where recorders are asked",
    "recent_run_covariance_ratio": "only runs whose work varies",
    "run_budget": "not declared",
    "run_deadline_timestamp_seconds": "not declared",
}
"""Metric without its prefix -> why a healthy run of the model has none."""
ENDS_OF_OTHERS = ("finished", "preempted", "faulty_gpu")
"""Ends of runs that have no bug of their user."""
SHORT_HOURS, SHORT_NODES = 1.5, 8
SHORT_FAULTS = (FaultKind.LOST_NODE, FaultKind.GPU)
_SERIES = re.compile(r"(\w+)\{(.*)\}")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def _labels(**labels: str) -> Labels:
    return tuple(sorted(labels.items()))


def _modelled() -> Mapping[str, set[frozenset[str]]]:
    """Label names of all series of a few runs, by metric."""
    pages = Pages(day=day(0, hours=1, large_nodes=2), interval=60, wanted={each.name for each in METRICS})
    write_runs(pages)
    write_machines(pages)
    return _label_names(each["series"] for each in pages.series)


def _label_names(series: Iterable[str]) -> Mapping[str, set[frozenset[str]]]:
    found: dict[str, set[frozenset[str]]] = defaultdict(set)
    for each in series:
        matched = _SERIES.match(each)
        if matched is not None:
            names = frozenset(name for name, value in _LABEL.findall(matched[2]) if value)
            found[matched[1]].add(
                names - {"data_parallel", "run_class", "pid", "version", "driver", "rdma_device"}
            )
    return found


def test_names_and_labels() -> None:
    """Series have the labels that they have at real agents, so that rules join them alike."""
    modelled = _modelled()
    recorded = _label_names({line.rpartition("}")[0] + "}" for line in read()})
    compared = [name for name in recorded if name in modelled and name.startswith("rankwatch_")]
    assert len(compared) > 100
    for name in compared:
        ended_well = name.endswith("attempt_end_timestamp_seconds")  # then there is nothing to say about it
        strange = {
            each
            for each in modelled[name] - recorded[name]
            if not ended_well or not any(each < other for other in recorded[name])
        }
        assert not strange, f"{name}: {[sorted(each) for each in strange]}"


def test_what_rules_read() -> None:
    """Of a healthy run, the model leaves out only what is known to be left out: rules see all else."""
    given = shipped_names()
    recorded = {line.partition("{")[0] for line in read() if f'run="{HEALTHY}"' in line}
    lacking = (given & recorded) - set(_modelled())
    assert not {name for name in lacking if name.removeprefix("rankwatch_") not in LEFT_OUT}


def shipped_names() -> set[str]:
    """Names of metrics of agents that rules read."""
    with TemporaryDirectory() as name:
        groups = shipped(RuleConfig(), Path(name)).groups
    texts = (rule["expr"] for group in groups for rule in group["rules"])
    return {name for text in texts for name in re.findall(r"(?<![\w:])rankwatch_\w+(?![\w:])", text)}


def test_schedule() -> None:
    """A day holds what the budget is stated for, and no GPU has two ranks at once."""
    days = shifts(1)
    users = [run for life in days for run in life.runs if run.name != LARGE_RUN]
    bugs = [run for run in users if run.ending not in ENDS_OF_OTHERS]
    assert len(users) == pytest.approx(200, abs=10)
    assert len(bugs) == pytest.approx(50, abs=5)
    assert sum(run.ending == "preempted" for run in users) == pytest.approx(10, abs=2)
    assert {fault.kind for life in days for fault in life.faults} >= set(REQUIRED)
    used: dict[tuple[int, Place], list[tuple[float, float]]] = defaultdict(list)
    for life in days:
        for run in life.runs:
            for attempt in run.attempts:
                for place in attempt.places:
                    used[life.seed, place].append((attempt.start, attempt.end))
    for times in used.values():
        times.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(times))


def test_same_seed() -> None:
    """A seed gives the same day again, so that a page can be looked into."""
    assert day(3, hours=6) == day(3, hours=6)
    assert day(3, hours=6) != day(4, hours=6)


@pytest.mark.parametrize(
    ("values", "first", "failed", "away", "starts", "expected"),
    [
        (range(20), 0, range(5, 7), (), (), "0+1x4 stale _x1 7+1x12"),
        ([2] * 20, 0, (), range(5, 7), (), "2x4 _x2 2x12"),
        ([1, 2, 4], 3, (), (), (), "_x3 1+1x1 4 stale _x13"),
        (range(0, 200, 10), 0, (5,), (), (6,), "0+10x4 stale 10+10x13"),
    ],
    ids=["failed-scrape", "server-away", "end-of-series", "restarted-agent"],
)
def test_series(
    values: Iterable[int],
    first: int,
    failed: Iterable[int],
    away: Iterable[int],
    starts: tuple[int, ...],
    expected: str,
) -> None:
    """A failed scrape marks the end of a series, which goes on after it; so does the scrape after its last
    sample. Nobody marks anything while Prometheus is away. Counters begin anew with their agent."""
    scraped, marked, whole = np.ones(20, np.bool_), np.ones(20, np.bool_), np.full(20, ABSENT)
    scraped[[*failed, *away]] = False
    marked[[*away]] = False
    target = Target(scraped, marked, starts)
    given = reset(np.array(values, np.float64), first, target)
    whole[first : first + len(given)] = given
    assert notation(received(whole, 0, target), target) == expected


def test_delayed_rules() -> None:
    """Selectors of scraped series look back, with their own offsets; recorded series and strings do not."""
    rate = 'rate(rankwatch_a_total{x="rankwatch_b"}[5m] offset %s)'
    recorded = "and run:rankwatch_a:sum unless up"
    rule = {"record": "r", "expr": f"{rate % '1m'} {recorded} == 0"}
    (changed,) = delayed({"name": "g", "rules": [rule]}, 60)["rules"]
    assert changed["expr"] == f"{rate % '120s'} {recorded} offset 60s == 0"


_CONFIG = {
    "route": {
        "receiver": "ticket",
        "group_by": ["run"],
        "group_wait": "30s",
        "group_interval": "5m",
        "routes": [{"receiver": "page", "matchers": ['severity="critical"'], "group_interval": "1m"}],
    },
    "inhibit_rules": [
        {
            "source_matchers": ['alertname="Cause"'],
            "target_matchers": ['alertname="Effect"'],
            "equal": ["run"],
        }
    ],
}
CAUSE = _labels(alertname="Cause", severity="critical", run="r")
EFFECT = _labels(alertname="Effect", severity="critical", run="r")
TICKET = _labels(alertname="Small", severity="warning", run="r")


OF_ANOTHER_RUN = _labels(alertname="Effect", severity="critical", run="s")


@pytest.mark.parametrize(
    ("alerts", "told"),
    [
        ([(600, {CAUSE}), (600, set()), (300, {CAUSE})], [(30, "page", CAUSE), (1230, "page", CAUSE)]),
        ([(30, {CAUSE}), (270, set())], []),
        ([(300, {CAUSE, EFFECT, OF_ANOTHER_RUN})], [(30, "page", CAUSE), (30, "page", OF_ANOTHER_RUN)]),
        ([(15, {CAUSE, EFFECT}), (285, {EFFECT})], [(30, "page", EFFECT)]),
        ([(60, {CAUSE, TICKET})], [(30, "page", CAUSE), (30, "ticket", TICKET)]),
    ],
    ids=["until-resolved", "shorter-than-the-wait", "inhibited", "until-cause-ends", "receivers"],
)
def test_pager(alerts: list[tuple[float, set[Labels]]], told: list[tuple[float, str, Labels]]) -> None:
    """An incident pages once, after the wait of its group, and again if it comes back after its end. What
    another alert holds back pages when that one has ended, if it still fires."""
    pager, moment, found = Pager(_CONFIG), 0.0, []
    for seconds, firing in alerts:
        for now in np.arange(moment, moment + seconds, 15.0):
            found += [(each.moment, each.receiver, *each.alerts) for each in pager.at(now, firing)]
        moment += seconds
    assert sorted(found) == told


_BOTH_SIDES = {
    "route": {"receiver": "ticket", "group_by": ["..."]},
    "receivers": [{"name": "ticket"}],
    "inhibit_rules": [
        {
            "source_matchers": ['alertname=~"A|B"', 'gpu!=""'],
            "target_matchers": ['alertname=~"B|C"'],
            "equal": ["run", "rank", "node"],
        }
    ],
}


def _many_alerts(count: int, names: Iterable[str]) -> set[Labels]:
    random = np.random.default_rng(5)
    choices = {
        "run": ("", "r", "s"),
        "node": ("", "n1", "n2"),
        "rank": ("", "3"),
        "gpu": ("", "GPU-1", "GPU-2"),
        "reason": ("", "node", "network", "rank_known", "rank_unknown", "node_unseen", "agent_down", "link"),
        "severity": ("critical", "warning"),
        "page": ("", "yes", "no"),
        "xid": ("", "74", "79"),
    }
    found = set()
    for _ in range(count):
        labels = {name: str(random.choice(values)) for name, values in choices.items()}
        labels |= {
            "alertname": str(random.choice(sorted(names))),
            "cluster": "c",
            "product": "rankwatch",
        }
        found.add(tuple(sorted((name, value) for name, value in labels.items() if value)))
    return found


@pytest.mark.process
@pytest.mark.parametrize(
    ("config", "names", "count"),
    [(alertmanager_config(RuleConfig()), ALERT_NAMES, 400), (_BOTH_SIDES, ("A", "B", "C"), 40)],
    ids=["shipped", "both-sides"],
)
def test_as_real_alertmanager(
    config: Mapping[str, Any], names: Iterable[str], count: int, tmp_path: Path
) -> None:
    """Of many alerts at random, the same are held back, and all reach the same receivers, as in Alertmanager
    itself. An alert that is source and target of a rule is held back by no other one of both kinds."""
    alerts = _many_alerts(count, names)
    route = read_route(config["route"])
    held = inhibited(alerts, read_inhibitions(config))
    assert count / 20 < len(held) < len(alerts) - count / 20
    expected = {each: (route_of(dict(each), route).receiver, each in held) for each in alerts}
    with alertmanager(config, tmp_path) as url:
        post_json(f"{url}/api/v2/alerts", [{"labels": dict(labels)} for labels in alerts])

        def same() -> bool:
            answer = get_json(f"{url}/api/v2/alerts")
            found = {
                tuple(sorted(each["labels"].items())): (
                    each["receivers"][0]["name"],
                    bool(each["status"]["inhibitedBy"]),
                )
                for each in answer
            }
            return found == expected

        poll(same, 60, "agreement with Alertmanager")


@pytest.mark.parametrize(
    ("moment", "labels", "expected"),
    [
        (1300, {"run": "r", "rank": "3"}, (0, 0, 0)),
        (1300, {"run": "r", "rank": "4"}, (0, 1, 0)),
        (1300, {"run": "r", "node": "n2"}, (0, 1, 0)),
        (1300, {"run": "r"}, (0, 1, 0)),
        (2900, {"run": "r", "rank": "3"}, (1, 0, 0)),
        (1300, {"run": "s", "rank": "3"}, (1, 0, 1)),
    ],
    ids=["right", "another-rank", "another-node", "nobody-named", "too-late", "another-run"],
)
def test_verdict(moment: float, labels: dict[str, str], expected: tuple[int, ...]) -> None:
    """A page in time that names rank or node answers a fault; what is about another run was needless."""
    fault = Fault(FaultKind.STRAGGLER, 1000, 3000, "r", "n1", "3")
    life = Day(seed=0, seconds=7200, runs=[], nodes={}, faults=[fault], server_gap=None, cut_off=None)
    verdict = judge(life, [Notification(moment, "page", (), (_labels(alertname="A", **labels),))])
    assert tuple(map(len, (verdict.missed, verdict.misnamed, verdict.needless))) == expected
    assert len(judge(life, []).missed) == 1


def _needless(verdict: Verdict) -> list[tuple[str, tuple[Labels, ...]]]:
    return [(context, page.alerts) for context, page in verdict.needless]


@pytest.mark.process
@pytest.mark.timeout(600)
def test_short_life(tmp_path: Path) -> None:
    """In an hour and a half with bugs of users, people are called for a lost node and a faulty GPU."""
    life = day(1, hours=SHORT_HOURS, large_nodes=SHORT_NODES, faults=SHORT_FAULTS)
    assert sum(run.ending not in ENDS_OF_OTHERS for run in life.runs) >= 3
    verdict = live(life, INTERVAL, tmp_path)
    assert (verdict.missed, verdict.misnamed) == ([], [])
    assert len(verdict.needless) <= BUDGET, _needless(verdict)


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_page_budget(seed: int, tmp_path: Path) -> None:
    """In a day every fault pages with the right rank and node, and at most two other pages reach people."""
    verdict = together([live(each, INTERVAL, tmp_path) for each in shifts(seed)])
    assert (verdict.missed, verdict.misnamed) == ([], [])
    assert len(verdict.needless) <= BUDGET, _needless(verdict)
