"""Rules, panels and runbooks are asked of a Prometheus that holds recorded runs, healthy and faulty."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import ON_CALL_UID, RUN_DEBUG_UID, Alert, RuleConfig, alert_groups, recording_groups
from rankwatch_dashboards import dashboards
from rankwatch_dashboards.first_acts import first_acts
from rankwatch_dashboards.preview import Prometheus, draw
from support.alerts.lint import runbook_queries, template_queries
from support.alerts.promql import parse, selectors
from support.dashboards.lint import filled_in, targets
from support.recorded.absent import NOT_RECORDED, reason
from support.recorded.loaded import Loaded, loaded_prometheus
from support.recorded.preview import pictures, view
from support.recorded.runs import CONFIG, CRASHING, FILE, HEALTHY, NODE, RUNS, Recorded
from support.servers.prometheus import get_json, require

pytestmark = pytest.mark.process

RUNBOOKS = Path(__file__).parents[2] / "runbooks"
LARGEST_BYTES = 5_000_000
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


def _firing(loaded: Loaded, run: str) -> list[dict[str, str]]:
    found = loaded.ask(f'ALERTS{{alertstate="firing", run="{run}"}}')
    return [each["metric"] for each in found]


@pytest.mark.parametrize("each", [each for each in RUNS if each.alert], ids=lambda each: each.run)
def test_fault_raises_its_alert(each: Recorded, loaded: Loaded) -> None:
    """With the rank and the node that the fault was given."""
    wanted = {"alertname": str(each.alert), **each.labels}
    assert any(wanted.items() <= alert.items() for alert in _firing(loaded, each.run)), _firing(
        loaded, each.run
    )


def test_healthy_run_raises_no_alert(loaded: Loaded) -> None:
    """It ran as long as the others, on the same node."""
    steps = loaded.ask(f'max(rankwatch_steps_total{{run="{HEALTHY}"}})')
    assert float(steps[0]["values"][-1][1]) > 150, "its steps were recorded"
    assert _firing(loaded, HEALTHY) == []


def test_rules_are_answered(loaded: Loaded) -> None:
    """Every expression of every rule is a query that Prometheus accepts."""
    rules = [rule for group in (*recording_groups(CONFIG), *alert_groups(CONFIG)) for rule in group.rules]
    assert len(rules) > 100
    for rule in rules:
        loaded.ask(rule.expression)


def test_queries_of_annotations_are_answered(loaded: Loaded) -> None:
    """Alerts ask Prometheus for what their texts and labels say."""
    rules = [rule for group in alert_groups(CONFIG) for rule in group.rules]
    texts = [text for rule in rules for text in (*rule.annotations.values(), *rule.labels.values())]
    queries = {query for text in texts for query in template_queries(text)}
    assert len(queries) > 10
    for query in queries:
        loaded.ask(query)


def test_queries_of_runbooks_are_answered(loaded: Loaded) -> None:
    """Commands to copy that ask Prometheus."""
    queries = {query for page in RUNBOOKS.glob("*.md") for query in runbook_queries(page.read_text())}
    assert len(queries) > 20
    for query in queries:
        loaded.ask(query)


def test_recorded_series_are_of_present_rules(loaded: Loaded) -> None:
    """A rule that was renamed since makes the recording stale: run `make record`."""
    known = {str(rule.record) for group in recording_groups(CONFIG) for rule in group.rules}
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
    """The straggler fires as a page and as a ticket, and stands there as a page."""
    rows = _at_end(loaded, ON_CALL_UID, "What is wrong now")
    (straggler,) = [each for each in rows if each["alertname"] == Alert.STRAGGLER]
    assert straggler["severity"] == "critical"
    assert {each["severity"] for each in rows} == {"critical", "warning"}


def test_on_call_says_why(loaded: Loaded) -> None:
    """Each alert on a run has a cause and blames a rank, and its first act is known."""
    rows = _at_end(loaded, ON_CALL_UID, "What is wrong now", "B")
    why = {
        (each["alertname"], each["run"]): (
            each.get("cause"),
            each.get("blamed_rank"),
            each.get("blamed_node"),
        )
        for each in rows
    }
    assert why[Alert.STRAGGLER, "slow-rank"] == ("slow: compute", "2", "node-a")
    assert why[Alert.RUN_STALLED, "stalled-rank"] == ("not_enqueued", "1", "node-a")
    assert why[Alert.GPU_LOST, "lost-gpu"] == (Alert.GPU_LOST, "5", "node-b")
    assert why[Alert.CHECKPOINT_FAILED, "bad-disk"][0].startswith("OSError: No space left on device")
    assert (Alert.RUN_STALLED, "lost-gpu") not in why, "the lost GPU explains it"
    assert why[Alert.LOSS_NON_FINITE, "nan-loss"] == ("first NaN or infinity", "1", "node-a")
    assert len(rows) == len(_at_end(loaded, ON_CALL_UID, "What is wrong now")), "none stands twice"


def test_on_call_says_what_to_do_first(loaded: Loaded) -> None:
    """What each alert asks for."""
    acts = first_acts(RuleConfig())

    def act(text: str) -> str:
        return next(act for pattern, act in acts.items() if re.search(pattern.strip("/"), text))

    rows = _at_end(loaded, ON_CALL_UID, "What is wrong now", "B")
    first = {(each["alertname"], each["run"]): act(each["act"]) for each in rows}
    assert first[Alert.RUN_STALLED, "stalled-rank"] == "Dump the stack of this rank"
    assert first[Alert.GPU_LOST, "lost-gpu"] == "Drain the node, restart the run without it"


def test_on_call_says_when_faults_began(loaded: Loaded) -> None:
    """Before the alert: a straggler at its first slow steps, a stall at the last progress."""
    moments = {
        (each["metric"]["alertname"], each["metric"]["run"]): float(each["values"][-1][1]) / 1000
        for each in _answers(loaded, ON_CALL_UID, "What is wrong now", "E")
    }
    (straggler,) = loaded.ask(f'ALERTS_FOR_STATE{{alertname="{Alert.STRAGGLER}", severity="critical"}}')
    began = float(straggler["values"][-1][1])
    assert began - 30 <= moments[Alert.STRAGGLER, "slow-rank"] < began
    (progress,) = loaded.ask('run:rankwatch_progress_timestamp_seconds:max{run="stalled-rank"}')
    assert moments[Alert.RUN_STALLED, "stalled-rank"] == pytest.approx(
        float(progress["values"][-1][1]), abs=0.01
    )


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
    """Not the failure of its last attempt, which fires longer."""
    assert Alert.RUN_FAILED in {each["alertname"] for each in _firing(loaded, CRASHING.run)}
    (verdict,) = _at_end(loaded, RUN_DEBUG_UID, "Verdict", run=CRASHING.run)
    assert verdict["alertname"] == Alert.RUN_CRASH_LOOPING


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


def test_dashboards_are_drawn(loaded: Loaded) -> None:
    """Every picture of `make preview` can be drawn, and shows data of its run."""
    drawn = [
        (name, draw(board, view(loaded, board, each), Prometheus(url=loaded.url)))
        for board, each, name in pictures(dashboards(RuleConfig()))
    ]
    assert drawn
    for name, drawing in drawn:
        assert not drawing.unknown, name
        assert len(drawing.empty) < drawing.panels, f"{name}: nothing is shown"


def test_recording_is_small() -> None:
    """It lies in the repository."""
    assert FILE.stat().st_size < LARGEST_BYTES
