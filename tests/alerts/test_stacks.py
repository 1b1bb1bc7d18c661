"""The rules on other people's stacks: each program that is found loads them and gives the same results.

docs/support.md lists what was run. `tests/e2e/test_stacks.py` runs the servers.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import Alert, RuleConfig, alertmanager_config, to_yaml, write_rules
from rankwatch_alerts.alertmanager import TEMPLATES
from rankwatch_alerts.rules import REASONS, duration
from support.alerts.rule_test import (
    CASES,
    Group,
    cases_in,
    check,
    groups_of,
    without,
    without_keeping,
    write_cases,
)
from support.alerts.scenarios import (
    STEP_SECONDS,
    Key,
    Scenario,
    TimeSeries,
    continued,
    scenarios,
    seldom,
    written,
)
from support.servers.stacks import beside_path, for_each, installed, use

pytestmark = pytest.mark.process

LOADING: Mapping[str, tuple[str, ...]] = {
    "promtool": ("check", "rules", "--lint=all", "--lint-fatal", "RULES"),
    "vmalert": ("-dryRun", "-rule=RULES"),
    "thanos": ("tools", "rules-check", "--rules=RULES"),
    "mimirtool": ("rules", "check", "--strict", "RULES"),
}
"""How each program checks files of rules; an argument with RULES stands for one with each file."""
TESTERS = ("promtool", "vmalert-tool")
SECONDS_TO_RUN = 280.0
"""For one program, less than a test may take."""
INTERVALS = (15, 30, 60)
"""Seconds between scrapes, and between evaluations: ours, and those of hosted rulers."""
SELDOM_KEY = "scrape_interval_seconds"
LATE = 4
"""Intervals by which an alert may come later than with scrapes every 15 s, and for which it then stands."""
EARLY = 2
"""Intervals by which it may come sooner: windows hold one sample more or less."""
MOST_LINKS = 24
"""Recorded series that an alert builds on, one upon the other, at most. vmalert sees what a rule records at
the next evaluation, so with it an alert may come so many intervals later."""
_RECORDED = re.compile(r"\w+:\w+(?::\w+)?")
_YEAR_2000 = 946684800
"""When the time of `vmalert-tool` begins; that of promtool begins in 1970."""
_VALUE = re.compile(r"(?<!\S)(-?[\d.]+(?:e[-+]?\d+)?)")
"""At the beginning of a token such as `0+15x20`."""
HEALTHY_SECONDS = 3600
GROUPS = groups_of(RuleConfig())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for_each(metafunc, "loading", installed(*LOADING))
    for_each(metafunc, "amtool", installed("amtool"))
    for_each(metafunc, "tester", installed(*TESTERS))
    for_each(metafunc, "promtool", beside_path("promtool"))  # tests/alerts/test_rules.py has that of PATH


def test_loads(loading: Path, tmp_path: Path) -> None:
    """Without a complaint: names and expressions, and for Mimir the names of what is recorded."""
    files = write_rules(RuleConfig(), tmp_path)
    arguments = [
        each.replace("RULES", str(file))
        for each in LOADING[loading.name]
        for file in (files if "RULES" in each else files[:1])
    ]
    done = _run(loading, arguments)
    assert done.returncode == 0, done.stdout


def test_alertmanager_loads(amtool: Path, tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(to_yaml(alertmanager_config(RuleConfig())))
    (tmp_path / TEMPLATES.name).write_text(TEMPLATES.read_text())
    done = _run(amtool, ["check-config", str(path)])
    assert done.returncode == 0, done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("cases", sorted(CASES.glob("*.yml")), ids=lambda path: path.stem)
def test_cases(promtool: Path, cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What promtool 2 shows of each rule every 15 s, other releases show too, but for digits in texts."""
    use(promtool, tmp_path, monkeypatch)
    content = cases_in(cases)
    alike = [_without_texts(case) for case in content["tests"] if SELDOM_KEY not in case]
    groups = without(without_keeping(GROUPS), "annotations")
    _check(promtool, alike, groups, content["evaluation_interval"], tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", INTERVALS)
@pytest.mark.parametrize("alert", [each for each in Alert if each != Alert.WATCHDOG])
def test_intervals(
    tester: Path, alert: str, seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert fires about when it does with more scrapes, and then stands."""
    use(tester, tmp_path, monkeypatch)
    cases = _lasting_cases(tester, alert, seconds, fewer=True)
    _check(tester, cases, _groups(seconds), duration(seconds), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("alert", [each for each in Alert if each != Alert.WATCHDOG])
def test_slow_ruler(tester: Path, alert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of rules as shipped, where the server evaluates no group more often than once a minute."""
    seconds = max(INTERVALS)
    use(tester, tmp_path, monkeypatch)
    cases = _lasting_cases(tester, alert, seconds, fewer=False)
    _check(tester, cases, _without_intervals(), duration(seconds), tmp_path)


@pytest.mark.parametrize("seconds", INTERVALS)
def test_healthy(tester: Path, seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fires but the alert that always does, at any evaluation of a healthy hour."""
    declared, *_ = cases_in(CASES / "healthy.yml")["tests"]
    last = HEALTHY_SECONDS // STEP_SECONDS
    series = [continued(each, last - 1, last) for each in declared["input_series"]]
    firing = f'ALERTS{{alertname!="{Alert.WATCHDOG}", alertstate="firing"}}'
    expression = f"count by (alertname) (last_over_time({firing}[{HEALTHY_SECONDS}s]))"
    asked = [{"expr": expression, "eval_time": f"{HEALTHY_SECONDS}s", "exp_samples": []}]
    case = _case(series, seconds // STEP_SECONDS, seconds, asked)
    use(tester, tmp_path, monkeypatch)
    _check(tester, [case], _groups(seconds), duration(seconds), tmp_path, every_rule=True)


@cache
def _scenarios() -> Mapping[Key, Scenario]:
    return scenarios((3 * LATE + MOST_LINKS) * max(INTERVALS) // STEP_SECONDS)


@cache
def _groups(seconds: int) -> list[Group]:
    return groups_of(RuleConfig(scrape_interval_seconds=seconds))


@cache
def _without_intervals() -> list[Group]:
    return [{name: each[name] for name in ("name", "rules")} for each in GROUPS]


@cache
def _links(alert: str) -> int:
    """Recorded series that the alert builds on, one upon the other."""
    links: dict[str, int] = {}
    longest = 0
    for rule in (each for group in GROUPS for each in group["rules"]):
        names = {*_RECORDED.findall(rule["expr"])} - {rule.get("record")}
        below = max((links.get(each, 0) for each in names), default=0)
        if "record" in rule:
            links[rule["record"]] = max(links.get(rule["record"], 0), below + 1)
        elif rule["alert"] == alert:
            longest = max(longest, below)
    return longest


def _lasting_cases(tester: Path, alert: str, seconds: int, *, fewer: bool) -> list[dict[str, Any]]:
    """One case of each rule of the alert, with fewer samples or as it is."""
    late = LATE + (_links(alert) if tester.name == "vmalert-tool" else 0)
    found = [
        _lasting_case(scenario, seconds, late, every=seconds // scenario.step_seconds if fewer else 1)
        for key, scenario in _scenarios().items()
        if key[0] == alert and scenario.step_seconds <= seconds
    ]
    if not found:
        pytest.skip("its cases have few samples as they are")
    return found


def _lasting_case(scenario: Scenario, seconds: int, late: int, *, every: int) -> dict[str, Any]:
    """Silent before it fires when evaluated every 15 s, and `late` intervals later firing at each evaluation;
    where it may be later still, at as many of them: an alert that is told for a while may have ended by then.

    Of the samples one in `every` is there.
    """
    told = {name: text for name, text in scenario.labels.items() if name in ("severity", *REASONS)}
    labels = {"alertname": scenario.key[0], "alertstate": "firing", **told}
    this = ", ".join(f'{name}="{text}"' for name, text in labels.items())
    fires = scenario.fires * scenario.step_seconds
    expected = -(-fires // seconds)
    before = max(0, expected - 1 - EARLY) * seconds
    window = late * seconds
    settled = (expected + LATE) * seconds + window
    asked = [
        {"expr": f"count(ALERTS{{{this}}})", "eval_time": f"{before}s", "exp_samples": []},
        {
            "expr": f"max(count_over_time(ALERTS{{{this}}}[{window - 1}s:{seconds}s])) >= bool {LATE}",
            "eval_time": f"{settled}s",
            "exp_samples": [{"labels": "{}", "value": 1}],
        },
    ]
    return _case(scenario.series, every, every * scenario.step_seconds, asked)


def _case(
    series: Iterable[TimeSeries], every: int, seconds: int, asked: Sequence[Mapping[str, object]]
) -> dict[str, Any]:
    """With one of so many samples."""
    return {
        "interval": duration(seconds),
        "input_series": [written(seldom(each, every)) for each in series],
        "promql_expr_test": asked,
    }


def _check(
    tester: Path,
    cases: Sequence[Mapping[str, Any]],
    groups: Sequence[Group],
    interval: str,
    directory: Path,
    *,
    every_rule: bool = False,
) -> None:
    """All that the cases expect is so, says the program."""
    if tester.name == "promtool":
        check(cases, groups, interval, directory, every_rule=every_rule)
        return
    bare = without(groups, "annotations")
    for path in write_cases(cases, bare, interval, directory, every_rule=every_rule):
        path.write_text(json.dumps(_for_vmalert(json.loads(path.read_text()))))
        done = _run(tester, ["unittest", "--disableAlertgroupLabel", f"--files={path}"])
        assert done.returncode == 0, done.stdout


def _without_texts(case: Mapping[str, Any]) -> dict[str, Any]:
    alerts = [
        {**each, "exp_alerts": [{"exp_labels": alert["exp_labels"]} for alert in each["exp_alerts"]]}
        for each in case.get("alert_rule_test", ())
    ]
    return {**case, "alert_rule_test": alerts}


def _for_vmalert(document: Mapping[str, Any]) -> dict[str, Any]:
    """A file of cases as `vmalert-tool` reads it: other names, and moments from its own beginning."""
    (case,) = document["tests"]
    kept = {name: value for name, value in case.items() if name != "promql_expr_test"}
    moved = [_moved(each) for each in case["input_series"]]
    asked = case.get("promql_expr_test", [])
    return {**document, "tests": [{**kept, "input_series": moved, "metricsql_expr_test": asked}]}


def _moved(series: Mapping[str, str]) -> dict[str, str]:
    """A series whose values are moments counts them from the year 2000."""
    if not series["series"].partition("{")[0].endswith("_timestamp_seconds"):
        return dict(series)
    moved = _VALUE.sub(lambda found: repr(float(found[1]) + _YEAR_2000), str(series["values"]))
    return {**series, "values": moved}


def _run(program: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nice", "-n", "5", str(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS_TO_RUN,
    )
