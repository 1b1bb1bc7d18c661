"""A flipped bit in a parameter of one of four replicas, in the black boxes and as an alert: a cluster of the
game day. Replicas that are equal raise no alert."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankwatch_alerts import Alert
from rankwatch_diagnosis.run.boxes import read_boxes
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.replicas import Replicas, judge_replicas
from rankwatch_diagnosis.run.report import lines
from support.e2e.game_day import CONFIG, GameDay
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem, complete
from support.servers.prometheus import poll, query

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

NODE = "n0"
RANKS, EQUAL_RANKS, ODD = 4, 2, 2
EVERY, FLIPPED_AT = 20, 45
NEXT_STEP = 60
SETTINGS = {"RANKWATCH_FINGERPRINT_STEPS": str(EVERY)}
TOO_LATE = f'max_over_time(run:rankwatch_replicas_equal:step{{run="flipped"}}[10m]) >= {FLIPPED_AT}'
TOO_EARLY = f'min_over_time(rank:rankwatch_replica_differs:step{{run="flipped"}}[10m]) < {NEXT_STEP}'
DEVIATION = 'max(max_over_time(rank:rankwatch_gradient_norm_deviation:ratio{run="flipped"}[10m]))'


class Flipped(NamedTuple):
    """The system, the boxes as soon as they showed the flip, and what Prometheus answered after the alert."""

    system: MonitoredSystem
    boxes: Path
    answers: dict[str, list[dict[str, Any]]]


def play(day: GameDay) -> Flipped:
    """The rings forget the step of the flip after a while, so they are copied as soon as they show it."""
    system = day.cluster("replicas", (NODE,))
    system.stack.enter_context(day.room_for(RANKS + EQUAL_RANKS))
    fault = f"flip-bit:rank={ODD},from={FLIPPED_AT}"
    system.train("flipped", (fault,), node=NODE, ranks=RANKS, settings=SETTINGS)
    system.train("equal", (), node=NODE, ranks=EQUAL_RANKS, settings=SETTINGS)
    run = system.boxes(NODE) / "flipped"

    def differing() -> bool:
        return len(list(run.glob("*.blackbox"))) == RANKS and bool(_judged(run).differing)

    poll(differing, SECONDS_TO_ALERT, "replicas that differ in the boxes")
    boxes = shutil.copytree(
        run, system.directory / "copies", ignore=shutil.ignore_patterns("*.sock", "*-new")
    )
    equal = 'run:rankwatch_replicas_equal:step{run="equal"} >= 100'
    poll(lambda: query(system.prometheus_url, equal), SECONDS_TO_ALERT, "equal replicas at step 100")
    system.alert("flipped", Alert.REPLICAS_DISAGREE, reason="rank_known")
    answers = {asked: query(system.prometheus_url, asked) for asked in (TOO_LATE, TOO_EARLY, DEVIATION)}
    system.end()
    return Flipped(system, boxes, answers)


def _judged(run: Path) -> Replicas:
    return judge_replicas(read_boxes(find_run(run).boxes, copied=None), {})


def test_boxes(shown: Flipped) -> None:
    """They name the rank at the next aligned step, and no step before the flip."""
    (found,) = _judged(shown.boxes).differing
    assert (found.newest_equal_step, found.differing_step) == (NEXT_STEP - EVERY, NEXT_STEP)
    assert (found.odd_ranks, found.ranks) == ((ODD,), tuple(range(RANKS)))
    assert len(found.parameters) == 1
    line = f"replicas:    rank {ODD} differs from the majority of ranks 0-3 at step {NEXT_STEP}, equal at"
    assert any(each.startswith(line) for each in lines(diagnose_run(shown.boxes)))


def test_alert(shown: Flipped) -> None:
    """It names the rank alone. The sum of the gradients, and so the norms, stay equal."""
    alert, *others = shown.system.delivered()
    assert not others
    assert complete(alert, CONFIG), str(alert)
    named = {each: alert.labels.get(each) for each in ("alertname", "run", "rank", "node", "name")}
    of_rank = {"run": "flipped", "rank": str(ODD), "node": NODE, "name": None}
    assert named == {"alertname": str(Alert.REPLICAS_DISAGREE), **of_rank}
    assert not shown.answers[TOO_LATE] and not shown.answers[TOO_EARLY]
    assert [each["value"][1] for each in shown.answers[DEVIATION]] == ["0"]
