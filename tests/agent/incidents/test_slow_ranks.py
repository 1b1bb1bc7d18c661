"""Ranks that are slow beside the others of their node are asked for traces, without an incident."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankwatch import profiling
from rankwatch.conventions.states import RankState
from rankwatch_agent.incidents.collector import PAUSE_SECONDS, WINDOW_SECONDS, IncidentsCollector, SlowRanks
from rankwatch_agent.incidents.episodes import IncidentRegistry
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.conditions import RunConditions
from support.agent.process import until
from support.incidents.incidents import condition, run_of
from support.jobs.forked_ranks import shared_ranks
from support.servers.prometheus import reserved_port


class Node:
    """The ranks of a run `job`, whose steps a test counts on."""

    def __init__(self, folder: Path, ranks: int = 4) -> None:
        self.boxes = folder / "boxes"
        (self.boxes / "job").mkdir(parents=True)
        self.moment = 0.0
        self.slow_ranks = SlowRanks()
        self._ranks = [
            condition(rank, path=self.boxes / "job" / f"{rank}.blackbox", started=1.0)
            for rank in range(ranks)
        ]
        self._observe()

    def windows(self, count: int, slow: Mapping[int, float], *, steps: int = 100) -> None:
        """Let windows pass, in which ranks take so much of a second for a step; by default 0.1."""
        for _ in range(count):
            self.moment += WINDOW_SECONDS
            self._ranks = [
                each._replace(
                    steps=each.steps + steps,
                    local_seconds=each.local_seconds + steps * slow.get(each.rank, 0.1),
                )
                for each in self._ranks
            ]
            self._observe()

    def change(self, rank: int, **how: object) -> None:
        self._ranks[rank] = self._ranks[rank]._replace(**how)  # type: ignore[arg-type]

    def asked(self) -> list[int]:
        """The ranks for which there are requests; these are removed."""
        found = sorted(self.boxes.glob(".*"))
        for each in found:
            each.unlink()
        return [int(each.name.split(".")[2]) for each in found]

    def _observe(self) -> None:
        self.slow_ranks.observe({"job": run_of(self._ranks, moment=self.moment)}, self.moment)


def test_slow_rank_is_asked(tmp_path: Path) -> None:
    """Once it is the slow one in two windows in a row, and not before."""
    node = Node(tmp_path)
    node.windows(1, {2: 0.2})
    assert node.asked() == []
    node.windows(1, {2: 0.2})
    assert node.asked() == [2]


def test_nobody_is_slow(tmp_path: Path) -> None:
    """Small differences, another slow one in each window, and few steps name nobody."""
    node = Node(tmp_path)
    node.windows(4, {1: 0.11})
    for rank in (0, 1, 2, 3):
        node.windows(1, {rank: 0.3})
    node.windows(4, {1: 0.3}, steps=5)
    assert node.asked() == []


def test_roles(tmp_path: Path) -> None:
    """A pipeline stage that does more is not slow, and neither is a rank that has ended or begun anew."""
    node = Node(tmp_path)
    for rank in (2, 3):
        node.change(rank, role="(1, 2)")
    node.windows(3, {2: 0.3, 3: 0.3})
    assert node.asked() == []
    node.change(0, state=RankState.LOST)
    node.windows(3, {0: 0.9})
    for start in range(3):
        node.change(1, started=100.0 + start)
        node.windows(1, {1: 0.9})
    assert node.asked() == []


def test_bounded(tmp_path: Path) -> None:
    """A rank is asked every half an hour, and of a run no more than a rank serves."""
    node = Node(tmp_path)
    windows = int(PAUSE_SECONDS / WINDOW_SECONDS)
    node.windows(windows, {2: 0.2})
    assert node.asked() == [2]
    times = 0
    for _ in range(10):
        node.windows(windows, {2: 0.2})
        times += len(node.asked())
    assert times == profiling.MOST_REQUESTS - 1


def test_directory_that_takes_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounted read-only, say: nothing happens."""

    def refused(*_: object) -> Path:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(profiling, "request", refused)
    Node(tmp_path).windows(3, {2: 0.2})


_TRAINER = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while not os.path.exists(os.environ["STOP"]):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).sum()
    time.sleep(0.06 if dist.get_rank() == 1 else 0.01)
    loss.backward()
    optimizer.step()
    going_on = torch.tensor(float(os.path.exists(os.environ["STOP"])))
    dist.all_reduce(going_on)
    if going_on:
        break
"""


@pytest.mark.process
def test_real_run(tmp_path: Path) -> None:
    """The slow of two ranks records its three slowest steps, the other none, with `--profile-on-slow 3`."""
    boxes, stop = tmp_path / "boxes", tmp_path / "stop"
    env = {**os.environ, "RANKWATCH_DIR": str(boxes), "STOP": str(stop), "OMP_NUM_THREADS": "1"}
    env |= {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "RANKWATCH_RUN": "job"}
    command = [sys.executable, "-m", "rankwatch_cli", "run", "--profile-on-slow", "3", "--"]
    command += [sys.executable, "-c", _TRAINER]
    conditions = RunConditions()
    ranks = RanksCollector(directory=boxes, conditions=conditions)
    incidents = IncidentsCollector(
        conditions=conditions,
        registry=IncidentRegistry(),
        stall_seconds=1000.0,
        schedule=Schedule(1.0, 10.0),
        slow_ranks=SlowRanks(window_seconds=2.0),
    )

    def recorded() -> list[str]:
        ranks.collect()
        incidents.collect()
        return sorted(each.parent.name for each in boxes.glob("*/*.profile/rank*"))

    log = tmp_path / "log"
    with reserved_port() as port, log.open("ab") as output:
        env["MASTER_PORT"] = str(port)
        fast, kept = shared_ranks(recorded=True), {"RANKWATCH_PROFILE_ON_SLOW": "3"}
        (peer,) = fast.start_some(["-c", _TRAINER], env | kept, ranks=range(1), log=log)
        placed = env | {"RANK": "1", "LOCAL_RANK": "1"}
        slow = subprocess.Popen(command, env=placed, stdout=output, stderr=output)
        try:
            until(lambda: len(recorded()) >= 3 or slow.poll() is not None, "traces of the slow rank")
        finally:
            stop.touch()
            slow.wait(timeout=60)
    until(lambda: fast.status(peer) is not None, "the fast rank has ended")
    assert recorded() == ["1.profile"] * 3, log.read_text()[-3000:]
    assert (fast.status(peer), slow.returncode) == (0, 0)
