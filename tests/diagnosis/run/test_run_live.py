"""Real runs over gloo that go wrong, diagnosed while their processes live."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankwatch.conventions.states import Cause
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.commands.diagnose import hang, run
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.verdict import RunState, RunVerdict
from support.gpu.nvml import FakeDriver, nvml_library
from support.gpu.nvml_node import hopper_node, running, split_into_instances
from support.jobs.forked_ranks import shared_ranks

__all__ = ["nvml_library"]
pytestmark = pytest.mark.process

DEADLINE_SECONDS = 120.0
GPUS = [each["uuid"] for each in hopper_node(3)["gpus"]]
_RANK = """
import json, os, signal, sys, threading, time
import torch
import torch.distributed as dist
import rankwatch
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
wrong, at, steps = json.loads(sys.argv[1]).get(str(rank), "well"), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
gpu = os.environ.get(f"GPU_OF_{rank}")
run = rankwatch.start(target_steps=steps, coordinates={"dp": (rank, world)}, gpu=gpu)
dist.init_process_group("gloo")
values = torch.ones(1000)
for step in range(steps):
    with run.step():
        with run.phase("data_wait"):
            time.sleep(0.001)
            if step == at and wrong == "asleep":
                time.sleep(1000)
            if step == at and wrong == "late":
                time.sleep(2.0)
        if step == at and wrong == "stopped":  # while it waits in the collective for the one that is late
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        with run.phase("forward"):
            time.sleep(0.04 if wrong == "slow" else 0.01)
            if step == at and wrong == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if step == at and wrong == "raises":
                raise ZeroDivisionError
        with run.phase("backward"):
            time.sleep(0.08 if wrong == "slow" else 0.02)
        if step == at and wrong == "gathers":
            dist.all_gather_into_tensor(torch.empty(1000 * world), values)
        else:
            dist.all_reduce(values)
        if step == 2 and rank == 0:
            with run.checkpoint("save"):
                pass
        run.scalar("loss", 3.0 - 0.01 * step)
        run.work(tokens=64)
if steps > at:
    time.sleep(1000)  # one that others do not hold up
run.finish()
"""


@contextlib.contextmanager
def gloo_run(
    directory: Path, wrong: Mapping[int, str], *, at: int = 6, steps: int = 12, gpus: Sequence[str] = ()
) -> Iterator[None]:
    """Start three ranks; `wrong` says what a rank does at step `at`. All are killed at the end."""
    environ = {**os.environ, "RANKWATCH_DIR": str(directory), "RANKWATCH_RUN": "job"}
    environ |= {f"GPU_OF_{rank}": gpu for rank, gpu in enumerate(gpus)}
    job = ["-c", _RANK, json.dumps(wrong), str(at), str(steps)]
    ranks = shared_ranks().start(job, environ, ranks=3, log=directory / "log")
    try:
        yield
    finally:
        shared_ranks().kill(ranks)


def verdict_when(
    directory: Path, told: Callable[[RunVerdict], bool], *, stall: float | None = 1.0
) -> RunVerdict:
    """The first verdict of which this is true."""
    end = time.monotonic() + DEADLINE_SECONDS
    verdict = None
    while time.monotonic() < end:
        try:
            verdict = diagnose_run(directory, stall=stall)
        except UserError:
            time.sleep(0.2)  # nothing to read yet
            continue
        if told(verdict):
            return verdict
    raise AssertionError(f"no such verdict came; the last one: {verdict}")


@pytest.mark.parametrize(("wrong", "state"), [("asleep", "hang"), ("gathers", "desync")])
def test_live_stall(wrong: str, state: str, tmp_path: Path) -> None:
    """The rank is named with its phase; the flight recorders of all ranks answer meanwhile."""
    with gloo_run(tmp_path, {1: wrong}):
        verdict = verdict_when(
            tmp_path,
            lambda each: (
                each.state is RunState.STALLED
                and bool(each.ranks)
                and each.sources["flight_recorders_live"] == 3
            ),
        )
    assert (verdict.ranks, verdict.hang.state.value) == ((1,), state)
    assert ("data_wait" in verdict.why) is (wrong == "asleep")
    good: Any = verdict.checkpoints["last_good"]
    assert good["step"] == 2


@pytest.mark.parametrize(("wrong", "state"), [("killed", RunState.LOST), ("raises", RunState.FAILED)])
def test_live_death(wrong: str, state: RunState, tmp_path: Path) -> None:
    """The rank is named, not those that gloo lets fail as soon as its connection is gone."""
    with gloo_run(tmp_path, {2: wrong}):
        verdict = verdict_when(tmp_path, lambda each: each.state is state)
    assert verdict.ranks == (2,)
    assert set(verdict.hang.ranks) <= {2}
    reasons: Any = verdict.hang.evidence.get("reasons", {})
    assert set(reasons) <= {"2"}
    assert wrong != "killed" or reasons.get("2", "is gone") == "is gone"


def test_live_slow_rank(tmp_path: Path) -> None:
    """A living run with a slow rank is running and names it. Boxes are read while they are written."""
    with gloo_run(tmp_path, {2: "slow"}, at=10_000, steps=10_000):
        verdict = verdict_when(tmp_path, lambda each: each.state is RunState.RUNNING and bool(each.ranks))
    assert verdict.ranks == (2,)
    assert verdict.straggler is not None
    assert verdict.straggler.cause is Cause.SLOW_RANK
    assert verdict.straggler.slowdown > 1.5


def test_rank_stopped_inside_a_collective(tmp_path: Path) -> None:
    """No count of collectives names it: the kernel does, and its flight recorder alone is silent."""
    with gloo_run(tmp_path, {0: "late", 1: "stopped"}):
        verdict = verdict_when(tmp_path, lambda each: each.ranks == (1,))
    assert (verdict.state, verdict.hang.operation) == (RunState.STALLED, "all_reduce")
    assert verdict.why.endswith("; its process does not run")
    reasons: Any = verdict.hang.evidence["reasons"]
    assert set(reasons) == {"1"}
    assert "state T" in reasons["1"]
    states = [each["process"]["state"] for each in verdict.ranks_seen]  # type: ignore[index]
    assert [state == "T" for state in states] == [False, True, False]


def printed(command: Callable[[list[str]], int], *arguments: object) -> str:
    """What the command prints; it must answer whatever the driver does."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert command([str(each) for each in arguments]) == 0
    return out.getvalue()


def set_gpu(
    gpu: dict[str, Any], *, busy: int, sm: float, watts: int, clock: int = 1755, held: int = 0
) -> None:
    """Utilisation and SM activity in percent, power, clock in MHz, and the bits of what holds it down."""
    gpu["utilization"]["gpu"] = busy
    gpu["gpm"]["metrics"]["2"] = sm
    gpu["power"]["energy_mj"] = {"value": 5_000_000_000, "rate": 1000 * watts}
    gpu["clocks"]["sm"] = clock
    gpu["clocks_event_reasons"]["current"] = held


@pytest.fixture(scope="module")
def slow_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Rank 2 is slow, until the end of the module's tests."""
    directory = tmp_path_factory.mktemp("slow")
    with gloo_run(directory, {2: "slow"}, at=100_000, steps=100_000, gpus=GPUS):
        verdict_when(directory, lambda each: each.state is RunState.RUNNING and each.ranks == (2,))
        yield directory / "job"


@pytest.fixture(scope="module")
def standing_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All ranks stand at the same place, so that nothing but their GPUs tells them apart."""
    directory = tmp_path_factory.mktemp("standing")
    with gloo_run(directory, dict.fromkeys(range(3), "asleep"), at=60, steps=100, gpus=GPUS):
        verdict_when(directory, lambda each: each.state is RunState.STALLED, stall=None)
        yield directory / "job"


@pytest.fixture
def driver(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Found by every process that this one starts; all GPUs spin."""
    driver = FakeDriver(tmp_path, nvml_library, running(hopper_node(3)))
    for each in driver.node["gpus"]:
        set_gpu(each, busy=100, sm=12.0, watts=150)
    driver.update(lambda node: None)
    for name, value in driver.environ.items():
        monkeypatch.setenv(name, value)
    return driver


Change = Callable[[FakeDriver], object]
WORKS = {"busy": 100, "sm": 92.0, "watts": 620}
ALONE = {"pid": 7, "memory": 1 << 30}
DRIVER_HANGS = "the GPU driver gives no answer: a driver call does not return"
_THERMAL, _POWER_CAP = 0x40, 0x4
"""nvmlClocksEventReasonHwThermalSlowdown and SwPowerCap."""


def with_gpu(rank: int, **figures: Any) -> Change:
    """The GPU of this rank, other than the rest."""
    return lambda driver: driver.update(lambda node: set_gpu(node["gpus"][rank], **figures))


def without_activity(driver: FakeDriver) -> None:
    """As before Hopper, while the GPU of rank 2 works."""
    for each in driver.node["gpus"]:
        each["gpm"]["supported"] = 0
    with_gpu(2, **WORKS)(driver)


SLOW_CASES: dict[str, tuple[Change, str]] = {
    "works most": (
        with_gpu(2, **WORKS),
        "the GPUs agree: the GPU of rank 2 works most (SM activity 92% against 12%), while the others wait",
    ),
    "works most, without SM activity": (
        without_activity,
        "the GPUs agree: the GPU of rank 2 works most (power 6",
    ),
    "idle": (
        with_gpu(2, busy=20, sm=2.0, watts=90),
        "the GPUs agree: the GPU of rank 2 works least (SM activity 2% against 12%): look at host and loader",
    ),
    "throttled": (
        with_gpu(2, **WORKS, clock=1110, held=_THERMAL),
        "; hw_thermal_slowdown holds down the clock of the GPU of rank 2: 1,110 MHz against 1,755 MHz",
    ),
    "at its limit of power": (with_gpu(2, **WORKS, clock=1400, held=_POWER_CAP), "the GPUs agree"),
    "another works most": (
        with_gpu(1, **WORKS),
        "inconclusive: by the GPUs, that of rank 1 works most (SM activity 92% against 12%), and the GPU "
        "of rank 2 like the others",
    ),
    "all alike": (lambda driver: None, ""),
    "MIG": (lambda driver: driver.update(lambda node: split_into_instances(node["gpus"][2])), ""),
    "a process beside the rank": (
        lambda driver: (
            with_gpu(2, **WORKS)(driver),
            driver.set(2, "processes.compute", [ALONE, {**ALONE, "pid": 8}]),
        ),
        "",
    ),
    "too few peers": (lambda driver: driver.update(lambda node: node["gpus"].pop(0)), ""),
    "no driver": (FakeDriver.unload, ""),
    "driver hangs": (lambda driver: driver.hang("nvmlDeviceGetPowerUsage", 1), DRIVER_HANGS),
}


@pytest.mark.parametrize("case", SLOW_CASES)
def test_slow_rank(case: str, slow_ranks: Path, driver: FakeDriver) -> None:
    """The GPUs confirm the slow rank and say why it is slow, or put it in doubt only where they are clear."""
    change, text = SLOW_CASES[case]
    change(driver)
    out = printed(run.main, slow_ranks)
    head, *_ = out.splitlines()
    assert text in out
    assert ("GPUs" in out) is (text not in ("", DRIVER_HANGS))
    assert ("slow_rank (compute), rank 2" in head) is (case != "another works most")
    assert ("holds down the clock" in head) is (case == "throttled")


HANG_CASES: dict[str, tuple[Change, bool, str]] = {
    "all spin": (lambda driver: None, False, "spins in a kernel"),
    "one runs nothing": (with_gpu(1, busy=0, sm=0.0, watts=90), True, "rank 1 its GPU runs no kernel (0%"),
    "one is lost": (lambda driver: driver.lose(1), True, "rank 1 its GPU does not answer"),
    "one is not visible": (lambda driver: driver.update(lambda node: node["gpus"].pop(1)), False, ""),
    "container": (
        lambda driver: [
            with_gpu(1, busy=0, sm=0.0, watts=90)(driver),
            *(driver.set(each, "processes.compute", []) for each in range(3)),
        ],
        True,
        "rank 1 its GPU runs no kernel",
    ),
    "driver hangs": (lambda driver: driver.hang("nvmlInit"), False, DRIVER_HANGS),
}


@pytest.mark.parametrize("command", [run.main, hang.main], ids=["run", "hang"])
@pytest.mark.parametrize("case", HANG_CASES)
def test_gpus_of_a_standing_run(
    case: str, command: Callable[[list[str]], int], standing_ranks: Path, driver: FakeDriver
) -> None:
    """Both commands join waits and GPUs; a hidden GPU is not lost, and a container names no process."""
    change, named, text = HANG_CASES[case]
    change(driver)
    out = printed(command, standing_ranks)
    assert text in out
    assert ("rank 1 is" in out.splitlines()[0]) is named
