"""Rules, panels and runbooks are asked of a Prometheus that holds recorded runs, healthy and faulty."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import ON_CALL_UID, RUN_DEBUG_UID, Alert, RuleConfig, alert_rules, recording_rules
from rankwatch_alerts.checks import template_queries
from rankwatch_alerts.promql import parse, selectors
from rankwatch_dashboards import dashboards
from rankwatch_dashboards.alert_table import first_acts
from support.alerts.runbooks import runbook_queries
from support.dashboards.lint import filled_in, targets
from support.recorded.absent import NOT_RECORDED, reason
from support.recorded.loaded import Loaded, loaded_prometheus
from support.recorded.runs import (
    CLUSTER,
    CONFIG,
    CRASHING,
    FILE,
    GPU_NODE,
    HEALTHY,
    LOST_GPU,
    NODE,
    RUNS,
    Recorded,
)
from support.servers.prometheus import get_json, require

pytestmark = pytest.mark.process

RUNBOOKS = Path(__file__).parents[2] / "runbooks"
LARGEST_BYTES = 5_000_000
TABLE, QUIET = "What is wrong now, and the other runs", "without alert"
_TELLS_APART = ("alertname", "severity", "reason", "run", "rank", "node", "gpu", "device")
"""Labels of the rows of the table."""
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")
_LEGEND_LABEL = re.compile(r"{{\s*(\w+)\s*}}")


_ALL_OF_THEM = {
    **dict.fromkeys(("cluster", "rank", "node", "gpu"), ".*"),
    "run": ".+",
    "__rate_interval": "20s",
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """Prometheus on the recording, scraping nothing."""
    require("prometheus", "promtool")
    with loaded_prometheus(tmp_path_factory.mktemp("recorded")) as recording:
        yield recording


def _firing(loaded: Loaded, of: str = "") -> list[dict[str, str]]:
    found = loaded.ask(f'ALERTS{{alertstate="firing", {of}}}')
    return [each["metric"] for each in found]


@pytest.mark.parametrize("each", [each for each in RUNS if each.alert], ids=lambda each: each.run)
def test_fault_raises_its_alert(each: Recorded, loaded: Loaded) -> None:
    """With the rank and the node that the fault was given."""
    firing = _firing(loaded)
    assert any(each.wanted.items() <= alert.items() for alert in firing), firing


def test_healthy_run_raises_no_alert(loaded: Loaded) -> None:
    """It ran as long as the others, on the same node."""
    steps = loaded.ask(f'max(rankwatch_steps_total{{run="{HEALTHY}"}})')
    assert float(steps[0]["values"][-1][1]) > 150, "its steps were recorded"
    assert _firing(loaded, f'run="{HEALTHY}"') == []


def _of_rules() -> set[str]:
    return {rule.expression for rule in (*recording_rules(CONFIG), *alert_rules(CONFIG))}


def _of_annotations() -> set[str]:
    """Alerts ask Prometheus for what their texts and labels say."""
    rules = alert_rules(CONFIG)
    texts = [text for rule in rules for text in (*rule.annotations.values(), *rule.labels.values())]
    return {query for text in texts for query in template_queries(text)}


def _of_runbooks() -> set[str]:
    """Commands to copy that ask Prometheus."""
    return {query for page in RUNBOOKS.glob("*.md") for query in runbook_queries(page.read_text())}


@pytest.mark.parametrize(("queries", "least"), [(_of_rules, 100), (_of_annotations, 10), (_of_runbooks, 20)])
def test_queries_are_answered(queries: Callable[[], set[str]], least: int, loaded: Loaded) -> None:
    """Every one is a query that Prometheus accepts."""
    asked = queries()
    assert len(asked) > least
    for query in asked:
        loaded.ask(query)


@pytest.mark.parametrize("each", [each for each in RUNS if each.alert], ids=lambda each: each.run)
def test_runbook_answers_for_its_fault(each: Recorded, loaded: Loaded) -> None:
    """With the labels of the alert. A label that series do not have would answer nothing, as in health."""
    labels = {"CLUSTER": CLUSTER, "RUN": each.run, "RANK": "0", "NODE": NODE}
    labels |= {name.upper(): value for name, value in each.labels.items()}
    page = (RUNBOOKS / f"{each.alert}.md").read_text()
    assert any(loaded.ask(query) for query in runbook_queries(page, labels))


def test_recorded_series_are_of_present_rules(loaded: Loaded) -> None:
    """A rule that was renamed since makes the recording stale: run `make record`."""
    known = {rule.record for rule in recording_rules(CONFIG)}
    names = get_json(f"{loaded.url}/api/v1/label/__name__/values")["data"]
    recorded = {name for name in names if ":" in name}
    assert len(recorded) > 30
    assert recorded <= known


def test_panels_are_answered(loaded: Loaded) -> None:
    """No query fails, none is empty without a reason, and the labels of legends exist."""
    names = set(get_json(f"{loaded.url}/api/v1/label/__name__/values")["data"])
    asked = [each for dashboard in dashboards(RuleConfig()) for each in targets(dashboard)]
    for each in asked:
        expression = filled_in(each.expression, _ALL_OF_THEM)
        series = loaded.ask(expression)
        used = [one.metric for one in selectors(parse(expression))]
        if not series:
            why = reason([one for one in used if one not in names], expression)
            assert why, f"{each.where}, {each.panel['title']}, is empty: {expression}"
        for label in _LEGEND_LABEL.findall(str(each.target.get("legendFormat", ""))):
            if series and "ALERTS" not in each.expression:  # each alert has labels of its own
                assert any(label in one["metric"] for one in series), f"{each.where}: {label}"


def _answers(loaded: Loaded, uid: str, title: str, letter: str, run: str = ".+") -> list[dict[str, Any]]:
    """What a query of a panel answers at the end of the recording."""
    asked = (each for dashboard in dashboards(RuleConfig()) for each in targets(dashboard))
    (found,) = [
        each.expression
        for each in asked
        if each.where.startswith(f"{uid}/")
        and each.panel["title"] == title
        and each.target["refId"] == letter
    ]
    series = loaded.ask(filled_in(found, {**_ALL_OF_THEM, "run": run}))
    return [each for each in series if each["values"][-1][0] == loaded.end]


def _at_end(loaded: Loaded, uid: str, title: str, letter: str = "A", run: str = ".+") -> list[dict[str, str]]:
    """Labels of these series."""
    return [each["metric"] for each in _answers(loaded, uid, title, letter, run)]


def test_on_call_shows_each_alert_once(loaded: Loaded) -> None:
    """The straggler that costs much stands there as a page alone, and below all alerts stand other runs."""
    rows = _at_end(loaded, ON_CALL_UID, TABLE)
    (straggler,) = [each for each in rows if each.get("reason") == "slow_rank"]
    assert straggler["severity"] == "critical"
    assert {each["severity"] for each in rows} == {"critical", "warning", QUIET}
    assert [each["run"] for each in rows if each["severity"] == QUIET] == [HEALTHY]
    told_apart = {tuple(each.get(name) for name in _TELLS_APART) for each in rows}
    assert len(told_apart) == len(rows)


def test_on_call_says_why(loaded: Loaded) -> None:
    """Each alert on a run has the cause and the suspect of the run, also what follows from its lost GPU."""
    why = {
        (each["alertname"], each["reason"], each["run"]): (each.get("cause", ""), each.get("suspect", ""))
        for each in _at_end(loaded, ON_CALL_UID, TABLE)
        if each["severity"] != QUIET and "run" in each
    }
    assert why[Alert.RUN_SLOW, "slow_rank", "slow-rank"] == ("slow: compute", "2 on node-a")
    assert why[Alert.RUN_STALLED, "rank_known", "stalled-rank"] == ("not_enqueued", "1 on node-a")
    assert why[Alert.LOSS_DIVERGING, "non_finite", "nan-loss"] == ("first NaN or infinity", "1 on node-a")
    cause, suspect = why[Alert.CHECKPOINT_AT_RISK, "failed", "bad-disk"]
    assert cause.startswith("OSError: No space left on device") and suspect == "0 on node-a"
    for fault in ((Alert.GPU_FAULT, "lost"), (Alert.RUN_STALLED, "rank_unknown")):
        cause, suspect = why[(*fault, "lost-gpu")]
        assert cause.startswith(Alert.GPU_FAULT) and suspect == f"{LOST_GPU} on {GPU_NODE}"


def test_on_call_names_rank_and_node(loaded: Loaded) -> None:
    """Of the alert itself; one on a GPU has the rank that works on it."""
    rows = _at_end(loaded, ON_CALL_UID, TABLE)
    named = {(each.get("reason"), each.get("rank"), each.get("node")) for each in rows}
    assert {
        ("slow_rank", "2", NODE),
        ("rank_known", "1", NODE),
        ("failed", "0", NODE),
        ("lost", str(LOST_GPU), GPU_NODE),
    } <= named


def test_on_call_says_what_to_do_first(loaded: Loaded) -> None:
    """What each alert asks for."""
    acts = first_acts(RuleConfig())

    def act(text: str) -> str:
        return next(act for pattern, act in acts.items() if re.search(pattern.strip("/"), text))

    rows = [each for each in _at_end(loaded, ON_CALL_UID, TABLE) if "alertname" in each]
    first = {(each["reason"], each.get("run")): act(each["act"]) for each in rows}
    rules = alert_rules(RuleConfig())
    asked = {(rule.alert, reason): act for rule in rules for reason, act in rule.first_acts.items()}
    assert first["rank_known", "stalled-rank"] == asked[Alert.RUN_STALLED, "rank_known"]
    assert first["lost", "lost-gpu"] == asked[Alert.GPU_FAULT, "lost"]


def test_on_call_says_what_it_costs(loaded: Loaded) -> None:
    """Beside each alert stand what its run loses and how it does: no ordering by cost without it."""
    rows = {
        letter: {
            (each["metric"].get("reason"), each["metric"].get("run")): float(each["values"][-1][1])
            for each in _answers(loaded, ON_CALL_UID, TABLE, letter)
        }
        for letter in "BCDEF"
    }
    lost, cost, age, goodput, done = rows.values()
    stalled, healthy = ("rank_known", "stalled-rank"), (None, HEALTHY)
    assert lost[stalled] > lost[healthy] and cost[stalled] > cost[healthy]
    assert goodput[stalled] < goodput[healthy] <= 1.0
    assert 0.0 < done[stalled] < done[healthy] < 1.0
    assert all(0.0 <= each < loaded.end - loaded.start for each in age.values())
    assert age.keys() >= {stalled, ("lost", "lost-gpu"), ("failed", "bad-disk")}


def test_on_call_goes_back_before_the_first_nan(loaded: Loaded) -> None:
    """A run saves, and its agent verifies, checkpoints of what is not finite any more."""
    panel = "Last good checkpoint and work at risk"
    back, first, saved = (
        {each["metric"]["run"]: float(each["values"][-1][1]) for each in series}
        for series in (
            _answers(loaded, ON_CALL_UID, panel, "B"),
            _answers(loaded, ON_CALL_UID, panel, "E"),
            loaded.ask("run:rankwatch_checkpoint_last_good_step:max"),
        )
    )
    assert 0 < back["nan-loss"] < first["nan-loss"] <= saved["nan-loss"]
    assert back[HEALTHY] == saved[HEALTHY]


def test_run_debug_shows_evidence(loaded: Loaded) -> None:
    """Beside the rank that the fault was given."""
    rows = _at_end(loaded, RUN_DEBUG_UID, "Suspects", "G")
    # What is measured is another number in each recording, and paths differ.
    measured = r"[\d.]+(?= times)|(?<=device: ).+"
    evidence = {(each["run"], each["rank"], re.sub(measured, "N", each["evidence"])) for each in rows}
    assert evidence == {
        ("slow-rank", "2", "100 % of its excess is compute"),
        ("nan-loss", "1", "loss is not finite from step 200"),
        ("bad-disk", "0", "OSError: No space left on device: N"),
        ("lost-gpu", "5", "XID 79 of GPU 5"),
        ("stalled-rank", "1", "behind in group default_pg, ranks 0-1"),
        ("crash-loop", "0", "IndexError: shard 7 holds 0 sequences"),
        ("foreign-data", "1", "loss is N times the median rank's"),
    }


def test_lost_time_adds_up(loaded: Loaded) -> None:
    """The parts are the whole that the tile above them shows."""
    parts = _answers(loaded, RUN_DEBUG_UID, "What lost time went to", "A", "bad-disk")
    (whole,) = _answers(loaded, RUN_DEBUG_UID, "Lost time", "A", "bad-disk")
    shown = sum(float(each["values"][-1][1]) for each in parts)
    assert shown == pytest.approx(float(whole["values"][-1][1]))


def test_crash_loop_is_the_verdict(loaded: Loaded) -> None:
    """Not the failure of its last attempt: that is a ticket, which fires longer and would be below zero."""
    reasons = {each["reason"] for each in _firing(loaded, f'run="{CRASHING.run}"')}
    assert reasons == {"failed", "restarts_fail"}
    (verdict,) = _answers(loaded, RUN_DEBUG_UID, "Verdict", "A", CRASHING.run)
    assert verdict["metric"]["alertname"] == Alert.RUN_FAILED
    assert float(verdict["values"][-1][1]) > 0.0


@pytest.mark.parametrize("pattern", NOT_RECORDED)
def test_reasons_are_true(pattern: str, loaded: Loaded) -> None:
    """What the recording holds by now needs no reason why it is not there."""
    names = get_json(f"{loaded.url}/api/v1/label/__name__/values")["data"]
    assert not [name for name in names if fnmatchcase(name, pattern)]


def test_variables_and_annotations_are_answered(loaded: Loaded) -> None:
    """The variables offer the recorded runs, ranks and the node; annotations show the alerts."""
    offered: dict[str, set[str]] = {}
    for dashboard in dashboards(RuleConfig()):
        for variable in dashboard["templating"]["list"]:
            found = _LABEL_VALUES.fullmatch(str(variable.get("query", "")))
            if found:
                series = loaded.ask(filled_in(found[1]))
                values = {one["metric"].get(found[2], "") for one in series}
                offered.setdefault(found[2], set()).update(values)
        for annotation in dashboard["annotations"]["list"]:
            loaded.ask(filled_in(annotation["expr"]))
    assert {each.run for each in RUNS} <= offered["run"]
    assert NODE in offered["node"]
    assert {"0", "1", "2", "3"} <= offered["rank"]


def test_recording_is_small() -> None:
    """It lies in the repository."""
    assert FILE.stat().st_size < LARGEST_BYTES
