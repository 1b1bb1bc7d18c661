"""Each injected fault raises its alert on a real system, and no other alert: a cluster of the game day.

Each job has its own run id. Stragglers need larger jobs: see the demo and `test_slowdowns`.
"""

from __future__ import annotations

import signal

import pytest

from rankwatch_alerts import Alert
from support.e2e.game_day import CONFIG, GameDay
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem, complete, told
from support.servers.prometheus import poll, query

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

NODE, LOST_NODE, IDLE_NODE, FULL_NODE, SPARE_NODE = (f"node-{letter}" for letter in "abcde")
"""Two of them vanish: were it not for the spare one, that would be most of the cluster, and its telemetry."""
OF_RANK_0 = {"rank": "0", "node": NODE}
FAULTS: dict[str, tuple[str, ...]] = {
    "killed-rank": ("kill:rank=1,from=25",),
    "stalled-rank": ("stall:from=25",),
    "nan-loss": ("loss-nan:from=25",),
    "blown-up-loss": ("loss-blowup:factor=3000,from=40,until=45",),
    "exploding-norm": ("gradient-explosion:from=60,until=75",),
    "foreign-data": ("foreign-data:rank=1",),
    "bad-disk": ("checkpoint-write-failure:from=35,until=45", "checkpoint-corruption:from=55,until=65"),
    "healthy": (),
}
"""Faults by run; steps 20, 40, 60, ... save a checkpoint. The blow-up is short but large: the tiny
model recovers at once from a smaller one, and is NaN under a longer one."""
_STEPS_FOREVER = 'print("ready", flush=True)\nsteps(10**6, forward=0.2)\n'
PLAIN = {"frozen": (NODE, 30), "never-saves": (NODE, 15), "lost-node": (LOST_NODE, 30)}
"""Node of each run without a trainer, and the seconds between the saves that it declares and never makes."""
_OVERLAPPING_SAVES = """
print("ready", flush=True)
while True:
    saves = [run.checkpoint("save").begin(), run.checkpoint("save").begin()]
    for save in saves: save.unblock()
    steps(5, forward=0.2)
    for save in saves: save.end()
"""
_WRITES = """
print("ready", flush=True)
while True:
    with run.checkpoint("save") as save:
        save.bytes = 1000
        with save.stage("write"): time.sleep({seconds})
    steps(10, forward={forward})
"""
_TWO_SAVES = """
steps(21)
for step in (10, 20):
    with run.checkpoint("save", step=step): pass
run.finish()
ready()
"""
_RESUMES = """
run.resumed(10)
print("ready", flush=True)
while True:
    steps(150, forward=0.2)
    with run.checkpoint("save"): pass
"""
"""Saves after half a minute: in time to keep the checkpoint from being stale, and after the alert."""
_CANNOT_LOAD = """
print("ready", flush=True)
steps(20, forward=0.2)
try:
    with run.checkpoint("load"): raise OSError("shard 3 is missing")
except OSError: pass
steps(10**6, forward=0.2)
"""
"""After some seconds the cost of the run is known."""
_SAVES_MUCH = """
print("ready", flush=True)
while True:
    with run.checkpoint("save") as save: save.bytes = 10**17
    steps(20, forward=0.2)
"""
"""More bytes than any disk on which this test runs has."""
_SCALE_COLLAPSES = """
print("ready", flush=True)
scale = 65536.0
while True:
    with run.step():
        time.sleep(0.2)
        run.scalar("loss", 2.0)
        run.scalar("loss_scale", scale)
    scale /= 2
"""
"""As a gradient scaler whose gradients are infinite at every scale."""
_MUST_SAVE = "os.environ['RANKWATCH_CHECKPOINT_INTERVAL_SECONDS'] = '{seconds}'"
EXPECTED: tuple[tuple[str, Alert, dict[str, str]], ...] = (
    ("killed-rank", Alert.RUN_FAILED, {"reason": "ranks_lost"}),
    ("stalled-rank", Alert.RUN_STALLED, {"reason": "rank_unknown"}),
    ("nan-loss", Alert.LOSS_DIVERGING, {"reason": "non_finite"}),
    ("blown-up-loss", Alert.LOSS_DIVERGING, {"reason": "trend"}),
    ("exploding-norm", Alert.LOSS_DIVERGING, {"reason": "norm"}),
    ("foreign-data", Alert.LOSS_DIVERGING, {"reason": "data_skew", "rank": "1", "node": NODE}),
    ("bad-disk", Alert.CHECKPOINT_AT_RISK, {"reason": "failed", "operation": "save", **OF_RANK_0}),
    ("bad-disk", Alert.CHECKPOINT_AT_RISK, {"reason": "failed", "operation": "verify", **OF_RANK_0}),
    ("frozen", Alert.RUN_STALLED, {"reason": "rank_unknown"}),
    ("never-saves", Alert.CHECKPOINT_AT_RISK, {"reason": "stale"}),
    ("lost-node", Alert.NODE_LOST, {"reason": "node", "node": LOST_NODE}),
    ("overlapping-saves", Alert.CHECKPOINT_SLOW, {"reason": "overlap"}),
    ("blocking-saves", Alert.CHECKPOINT_SLOW, {"reason": "blocking"}),
    ("slow-writer", Alert.CHECKPOINT_SLOW, {"reason": "one_writer", "rank": "2", "node": NODE}),
    ("old-resume", Alert.CHECKPOINT_AT_RISK, {"reason": "resumed_from_older"}),
    ("cannot-load", Alert.CHECKPOINT_AT_RISK, {"reason": "resume_failed"}),
    ("collapsed-scale", Alert.LOSS_DIVERGING, {"reason": "loss_scale"}),
    ("large-saves", Alert.CHECKPOINT_AT_RISK, {"reason": "disk_full", "severity": "critical"}),
)
"""Run, the alert it must raise, and labels this must have beside `run`."""
OF_NO_RUN: tuple[tuple[str, Alert, dict[str, str]], ...] = (
    ("", Alert.TELEMETRY_ABSENT, {"reason": "agent_down", "node": IDLE_NODE}),
    ("", Alert.CHECKPOINT_AT_RISK, {"reason": "disk_filling", "severity": "warning"}),
)


def play(day: GameDay) -> MonitoredSystem:
    """All jobs run at once. Faults that the trainer cannot inject are made from outside."""
    disk = ("--rootfs", "/", "--checkpoint-paths", str(day.directory))
    nodes = (NODE, LOST_NODE, IDLE_NODE, FULL_NODE, SPARE_NODE)
    system = day.cluster("faults", nodes, disk)
    system.rank(NODE, _WRITES.format(seconds=6.0, forward=0.05), run="blocking-saves")
    system.stack.enter_context(day.room_for(sum(map(_ranks, FAULTS))))
    for run, faults in FAULTS.items():
        system.train(run, faults, node=NODE, ranks=_ranks(run))
    plain = {
        run: system.rank(node, _STEPS_FOREVER, run=run, before=_MUST_SAVE.format(seconds=seconds))
        for run, (node, seconds) in PLAIN.items()
    }
    _save_in_bad_ways(system)
    for run in plain:
        poll(lambda run=run: system.steps(run) >= 10, SECONDS_TO_ALERT, f"steps of {run}")
        if run == "frozen":  # before it must have saved
            plain[run].send_signal(signal.SIGSTOP)
    poll(lambda: _recorded_as_running(system, "lost-node"), SECONDS_TO_ALERT, "recorded state of lost-node")
    for node in (LOST_NODE, IDLE_NODE):
        system.agents[node].process.kill()
    plain["lost-node"].kill()
    system.end_when_seen((*EXPECTED, *OF_NO_RUN), healthy="healthy")
    return system


def _ranks(run: str) -> int:
    return {"killed-rank": 2, "foreign-data": 3}.get(run, 1)


def _save_in_bad_ways(system: MonitoredSystem) -> None:
    system.rank(NODE, _OVERLAPPING_SAVES, run="overlapping-saves")
    for number, seconds in enumerate((0.1, 0.1, 2.0)):
        code = _WRITES.format(seconds=seconds, forward=0.2)
        system.rank(NODE, code, run="slow-writer", number=number, world=3)
    system.rank(NODE, _CANNOT_LOAD, run="cannot-load")
    system.rank(NODE, _SCALE_COLLAPSES, run="collapsed-scale")
    system.rank(FULL_NODE, _SAVES_MUCH, run="large-saves")  # space is judged for the newest run of a node
    first = system.rank(NODE, _TWO_SAVES, run="old-resume")
    poll(lambda: system.steps("old-resume") >= 21, SECONDS_TO_ALERT, "steps of old-resume")
    first.kill()
    system.rank(NODE, _RESUMES, run="old-resume")


def _recorded_as_running(system: MonitoredSystem, run: str) -> bool:
    return bool(query(system.prometheus_url, f'run:rankwatch_ranks_running:sum{{run="{run}"}} > 0'))


@pytest.mark.parametrize(
    ("run", "name", "labels"), EXPECTED, ids=["-".join((run, *more.values())) for run, _, more in EXPECTED]
)
def test_alert(run: str, name: Alert, labels: dict[str, str], shown: MonitoredSystem) -> None:
    """Alertmanager delivers the alert with run, rank and node, and with complete annotations."""
    alert = shown.alert(run, name, **labels)
    assert complete(alert, CONFIG), str(alert)
    assert run in alert.annotations["description"]
    assert f"var-run={run}" in alert.annotations["dashboard_url"]
    for label in ("rank", "node"):
        assert label not in labels or labels[label] in alert.annotations["description"]


def test_agent_down(shown: MonitoredSystem) -> None:
    """An agent that cannot be scraped raises an alert of its own; that of a lost node is held back."""
    alert = shown.alert("", Alert.TELEMETRY_ABSENT, reason="agent_down", node=IDLE_NODE)
    assert complete(alert, CONFIG), str(alert)
    assert shown.agents[IDLE_NODE].address in alert.annotations["description"]
    assert not [
        each
        for each in shown.delivered()
        if each.labels.get("node") == LOST_NODE and "run" not in each.labels
    ]


def test_disk(shown: MonitoredSystem) -> None:
    """One ticket for all nodes with the path of checkpoints, full for all that it takes."""
    alert = shown.alert("", Alert.CHECKPOINT_AT_RISK, reason="disk_filling", severity="warning")
    assert complete(alert, CONFIG), str(alert)
    assert f"Path {alert.labels['path']} on " in alert.annotations["description"]


def test_no_other_alert(shown: MonitoredSystem) -> None:
    """The healthy run raises none, and no fault raises a second one."""
    expected = {(run, str(name), more["reason"]) for run, name, more in (*EXPECTED, *OF_NO_RUN)}
    delivered = {told(each) for each in shown.delivered()}
    also = {("blown-up-loss", str(Alert.LOSS_DIVERGING), "norm")}
    assert delivered - also == expected, "its norm explodes, too"
    (lost,) = {
        each.annotations["description"]
        for each in shown.delivered()
        if told(each) == ("killed-rank", Alert.RUN_FAILED, "ranks_lost")
    }
    assert f"Rank 1 (node {NODE})." in lost, "the other rank ended by an error; it is not lost"
