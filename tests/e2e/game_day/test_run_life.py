"""The life of runs: a failure, a loop of crashes, a class of runs that fails and restarts too often, one that
is preempted, one that makes no progress, a slow start, steps that become slow, a deadline that will be
missed, and files that are no black boxes.

Each raises its alert on a real system, and none that it does not explain: a cluster of the game day.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

import pytest

from rankwatch_alerts import Alert
from support.e2e.game_day import CONFIG, GameDay
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem, complete, told
from support.servers.prometheus import poll, query
from support.training.ranks import go_on

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

NODE = "node-a"
FAILS = """
steps(5)
print("ready", flush=True)
sys.stdin.readline()
steps(1)
raise IndexError("shard 7 holds 0 sequences")
"""
"""All attempts end at the same step."""
STARTS = 'print("ready", flush=True)\ntime.sleep(1000)\n'
STANDS = 'steps(20, forward=0.1)\nprint("ready", flush=True)\ntime.sleep(1000)\n'
IN_EXPERIMENT = "os.environ['RANKWATCH_RUN_CLASS'] = 'experiment'"
"""No other run is in the class of this one, which makes no more progress."""
IS_PREEMPTED = """
steps(5)
print("ready", flush=True)
sys.stdin.readline()
run.preempted()
run.finish()
"""
CRAWLS = 'print("ready", flush=True)\nsteps(10**6, forward=1.0)\n'
DUE_SOON = "os.environ['RANKWATCH_DEADLINE'] = str(time.time() + 40.0)"
"""At a second a step it takes 100 s to the last of 100 steps."""
SLOWS = """
print("ready", flush=True)
slow_from = time.monotonic() + 45.0
while time.monotonic() < slow_from: steps(10, forward=0.01)
steps(10**6, forward=4.0)
"""
"""After most of a minute: the median of the past is that of its fast steps."""
RESTARTED = "os.environ.update(RANKWATCH_RUN_CLASS='{run_class}', TORCHELASTIC_RESTART_COUNT='{restarts}')"
ATTEMPTS = 4
"""The first one made progress."""
RECLAIMED = tuple(f"reclaimed-{number}" for number in range(4))
EXPECTED: tuple[tuple[str, Alert, dict[str, str]], ...] = (
    ("fails-once", Alert.RUN_FAILED, {"reason": "failed", "rank": "0", "node": NODE, "kind": "exception"}),
    ("loops", Alert.RUN_FAILED, {"reason": "restarts_fail"}),
    ("slow-start", Alert.RUN_LATE, {"reason": "startup"}),
    ("late", Alert.RUN_LATE, {"reason": "behind_plan"}),
    ("stands", Alert.RUN_STALLED, {"reason": "rank_unknown"}),
    ("slows", Alert.RUN_SLOW, {"cause": "own_past"}),
    ("", Alert.TELEMETRY_INCOMPLETE, {"reason": "black_boxes", "node": NODE}),
    ("", Alert.SUCCESS_BUDGET, {"reason": "day", "run_class": "production", "severity": "critical"}),
    ("", Alert.SUCCESS_BUDGET, {"reason": "period", "run_class": "production", "severity": "warning"}),
    ("", Alert.SUCCESS_BUDGET, {"reason": "restarts", "run_class": "production"}),
    ("", Alert.SUCCESS_BUDGET, {"reason": "preemptions", "run_class": "spot"}),
    ("", Alert.GOODPUT_BUDGET, {"reason": "fast", "run_class": "experiment", "severity": "warning"}),
)
"""Run, the alert it must raise, and labels this must have beside `run`."""


def play(day: GameDay) -> MonitoredSystem:
    """An agent counts what ends a minute after it has first seen a run of the class."""
    system = day.cluster("life", (NODE,))
    system.rank(NODE, STARTS, run="slow-start")
    system.rank(NODE, STANDS, run="stands", before=IN_EXPERIMENT)
    system.rank(NODE, SLOWS, run="slows")
    system.rank(NODE, CRAWLS, run="late", before=DUE_SOON)
    copied = system.boxes(NODE) / "copied"
    copied.mkdir()
    (copied / "0.blackbox").write_bytes(b"rankwatch")
    reclaimed = _started(system, RECLAIMED, IS_PREEMPTED, "spot")
    failing = _started(system, ("fails-once", "loops"), FAILS, "production")
    _end(system, RECLAIMED, reclaimed)
    _end(system, ("fails-once", "loops"), failing)
    for number in range(1, ATTEMPTS):
        _end(system, ("loops",), _started(system, ("loops",), FAILS, "production", number))
    system.end_when_seen(EXPECTED)
    return system


def _started(
    system: MonitoredSystem, runs: Sequence[str], code: str, run_class: str, number: int = 0
) -> list[subprocess.Popen[str]]:
    """An attempt of each run, which has been seen while it goes on."""
    before = time.time() - 0.5  # start times of processes are rounded to ticks
    restarted = RESTARTED.format(run_class=run_class, restarts=number)
    processes = [system.rank(NODE, code, run=each, before=restarted) for each in runs]
    _poll_all(system, runs, "rankwatch_run_attempt_start_timestamp_seconds{%s} >= " + str(before))
    return processes


def _end(system: MonitoredSystem, runs: Sequence[str], processes: Sequence[subprocess.Popen[str]]) -> None:
    """End the attempt of each run, and wait until that has been seen, too."""
    for process in processes:
        go_on(process)
    _poll_all(system, runs, 'rankwatch_rank_state{%s, state!~"starting|running"} == 1')


def _poll_all(system: MonitoredSystem, runs: Sequence[str], condition: str) -> None:
    found = f"count({condition})" % f'run=~"{"|".join(runs)}"' + f" == {len(runs)}"
    poll(lambda: query(system.prometheus_url, found), SECONDS_TO_ALERT, found)


@pytest.mark.parametrize(
    ("run", "name", "labels"),
    EXPECTED,
    ids=["-".join((name, labels.get("reason") or labels["cause"])) for _, name, labels in EXPECTED],
)
def test_alert(run: str, name: Alert, labels: dict[str, str], shown: MonitoredSystem) -> None:
    """Alertmanager delivers the alert with run, rank and node, and with complete annotations."""
    alert = shown.alert(run, name, **labels)
    assert complete(alert, CONFIG), str(alert)
    assert run in alert.annotations["description"]


def test_message_of_the_failure(shown: MonitoredSystem) -> None:
    """The text says what the trainer said last."""
    alert = shown.alert("fails-once", Alert.RUN_FAILED, reason="failed")
    assert "(IndexError): shard 7 holds 0 sequences" in alert.annotations["description"]


def test_no_other_alert(shown: MonitoredSystem) -> None:
    """A run that only starts also stands still, and the first failures of a loop are not yet known as one."""
    delivered = {told(each) for each in shown.delivered()}
    expected = {(run, str(name), more.get("reason") or more["cause"]) for run, name, more in EXPECTED}
    stalls = {("slow-start", str(Alert.RUN_STALLED), each) for each in ("rank_known", "rank_unknown")}
    assert delivered <= expected | stalls | {("loops", str(Alert.RUN_FAILED), "failed")}
