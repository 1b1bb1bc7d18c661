"""Game day of the life of runs: a failure, a loop of crashes, a class of runs that fails and restarts too
often, one that is preempted, one that makes no progress, a slow start, a deadline that will be missed, and
files that are no black boxes.

Each raises its alert on a real system, and none that it does not explain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from rankwatch_alerts import Alert, RuleConfig
from support.e2e.monitored_system import MonitoredSystem, complete, monitored_system
from support.servers.prometheus import poll, query, require
from support.training import ranks as rank_processes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NODE = "node-a"
CONFIG = replace(
    RuleConfig.for_demo(),
    startup_budget_seconds=20.0,
    success_least_attempts=4.0,
    goodput_fast_window_seconds=60.0,
    goodput_slow_window_seconds=720.0,
    slo_period_seconds=6720.0,
)
"""Windows and period of goodput are in the same proportions as in production."""
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
RESTARTED = "os.environ.update(RANKWATCH_RUN_CLASS='{run_class}', TORCHELASTIC_RESTART_COUNT='{restarts}')"
ATTEMPTS = 4
"""The first one made progress."""
RECLAIMED = tuple(f"reclaimed-{number}" for number in range(4))
EXPECTED: tuple[tuple[str, Alert, dict[str, str]], ...] = (
    ("fails-once", Alert.RUN_FAILED, {"rank": "0", "node": NODE, "kind": "exception"}),
    ("loops", Alert.RUN_CRASH_LOOPING, {}),
    ("slow-start", Alert.STARTUP_SLOW, {}),
    ("late", Alert.RUN_BEHIND_PLAN, {}),
    ("stands", Alert.RUN_STALLED, {}),
    ("", Alert.BLACK_BOXES_LEFT_OUT, {"node": NODE, "reason": "truncated"}),
    ("", Alert.SUCCESS_BUDGET, {"run_class": "production", "severity": "critical"}),
    ("", Alert.SUCCESS_BUDGET, {"run_class": "production", "severity": "warning"}),
    ("", Alert.REQUEUE_RATE, {"run_class": "production"}),
    ("", Alert.PREEMPTION_STORM, {"run_class": "spot"}),
    ("", Alert.GOODPUT_BUDGET, {"run_class": "experiment", "severity": "critical"}),
)
"""Run, the alert it must raise, and labels this must have beside `run`."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredSystem]:
    """All runs are started; those that fail have failed."""
    require("prometheus", "prometheus-alertmanager")
    with monitored_system(tmp_path_factory.mktemp("life"), CONFIG, (NODE,)) as system, ExitStack() as ranks:
        boxes = system.directory / NODE / "blackboxes"
        ranks.enter_context(rank_processes.rank(boxes, STARTS, run="slow-start"))
        ranks.enter_context(rank_processes.rank(boxes, STANDS, run="stands", before=IN_EXPERIMENT))
        ranks.enter_context(rank_processes.rank(boxes, CRAWLS, run="late", before=DUE_SOON))
        (boxes / "copied").mkdir(parents=True)
        (boxes / "copied" / "0.blackbox").write_bytes(b"rankwatch")
        _end_attempt(system, ("fails-once",), FAILS)
        for number in range(ATTEMPTS):
            _end_attempt(system, ("loops",), FAILS, number=number)
        _end_attempt(system, RECLAIMED, IS_PREEMPTED, run_class="spot")
        yield system


def _end_attempt(
    system: MonitoredSystem, runs: Sequence[str], code: str, *, number: int = 0, run_class: str = "production"
) -> None:
    """Let an attempt of each run be seen while it goes on, and when it has ended."""
    boxes = system.directory / NODE / "blackboxes"
    before = time.time() - 0.5  # start times of processes are rounded to ticks
    restarted = RESTARTED.format(run_class=run_class, restarts=number)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(rank_processes.rank(boxes, code, run=each, before=restarted)) for each in runs
        ]
        for moment in ("start", "end"):
            for run in runs:
                series = f'rankwatch_run_attempt_{moment}_timestamp_seconds{{run="{run}"}} >= {before}'
                what = f"{moment} of attempt {number} of {run}"
                poll(lambda asked=series: _holds(system, asked), 60.0, what)
            if moment == "start":
                for process in processes:
                    rank_processes.go_on(process)


def _holds(system: MonitoredSystem, expression: str) -> bool:
    return bool(query(system.prometheus_url, expression))


@pytest.mark.parametrize(
    ("run", "name", "labels"),
    EXPECTED,
    ids=["-".join((name, labels.get("severity", ""))) for _, name, labels in EXPECTED],
)
def test_alert(run: str, name: Alert, labels: dict[str, str], system: MonitoredSystem) -> None:
    """Alertmanager delivers the alert with run, rank and node, and with complete annotations."""
    alert = system.alert(run, name, **labels)
    assert complete(alert, CONFIG), alert
    assert run in alert.annotations["description"]


def test_message_of_the_failure(system: MonitoredSystem) -> None:
    """The text says what the trainer said last."""
    alert = system.alert("fails-once", Alert.RUN_FAILED)
    assert "(IndexError): shard 7 holds 0 sequences" in alert.annotations["description"]


def test_no_other_alert(system: MonitoredSystem) -> None:
    """A run that only starts also stands still, and the first failures of a loop are not yet known as one."""
    for run, name, labels in EXPECTED:
        system.alert(run, name, **labels)
    delivered = {(each.labels.get("run", ""), each.name) for each in system.delivered()}
    also = {("slow-start", str(Alert.RUN_STALLED)), ("loops", str(Alert.RUN_FAILED))}
    assert delivered <= {(run, str(name)) for run, name, _ in EXPECTED} | also
