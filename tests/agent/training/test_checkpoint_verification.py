"""Each saved checkpoint is read again once, on the node of rank 0, and what was found survives the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.checkpoint_files import ManifestWriter, merge
from rankwatch.conventions import RankState
from rankwatch.untrusted.children import Limits, Owner, confined
from rankwatch_agent.runtime.collector import Collection, Schedule
from rankwatch_agent.training.checkpoint_verification.collector import (
    MOST_AT_ONCE,
    CheckpointsCollector,
    VerificationSettings,
    saves_beside,
)
from rankwatch_agent.training.checkpoint_verification.process import LONGEST_SECONDS, VerifyingProcess
from rankwatch_agent.training.conditions import RankCondition, RunConditions
from support.processes.users import ALICE, BOB, CAROL, node_directory, run_as

__all__ = ["node_directory"]

pytestmark = pytest.mark.process

NOW = 1_800_000_000.0
RATE = 1e9
LIMITS = Limits(seconds=60.0, cpu_seconds=60, memory_bytes=1 << 30, output_bytes=1 << 20)
US = Owner(os.getuid(), os.getgid())


def checkpoint(folder: Path, step: int) -> Path:
    """A folder of one file with a manifest."""
    path = folder / f"step-{step}"
    path.mkdir(parents=True)
    with ManifestWriter(path, step=step) as manifest, manifest.open("model.bin") as file:
        file.write(b"weights" * 1000)
    merge(path, 1)
    return path


def note(box: Path, *saves: tuple[Path | str, int, float], **others: Any) -> None:
    """The note beside a box, the newest save first."""
    entries = [
        {"operation": "save", "step": step, "path": str(path), "ended": ended, "failed": False, **others}
        for path, step, ended in saves
    ]
    box.with_suffix(".checkpoints").write_text(json.dumps({"checkpoints": entries}))


class Agent:
    """The collector with a clock of its own, and processes that run to their end at once."""

    def __init__(self, directory: Path, *, ranks: tuple[int, ...] = (0,), **settings: Any) -> None:
        self.directory = directory
        self.now = NOW
        self.box = directory / "r" / "0.blackbox"
        self.box.parent.mkdir(exist_ok=True)
        for rank in ranks:
            self.box.with_stem(str(rank)).touch()
        self.started: list[Path] = []
        conditions = RunConditions()
        owner = os.getuid()
        found = [
            RankCondition(
                rank, directory / "r" / f"{rank}.blackbox", RankState.RUNNING, 0.0, None, None, 1, owner=owner
            )
            for rank in ranks
        ]
        conditions.update({"r": found}, 0.0)
        given = {
            "bytes_per_second": RATE,
            "path_map": (),
            "rootfs": Path("/"),
            "directory": directory / "state",
        }
        self.collector = CheckpointsCollector(
            conditions=conditions,
            settings=VerificationSettings(**{**given, **settings}),
            schedule=Schedule(5.0, 10.0),
            start=self._start,
            wall=lambda: self.now,
        )
        _agents.append(self)

    def _start(self, path: Path, **arguments: Any) -> VerifyingProcess:
        self.started.append(path)
        process = VerifyingProcess(path, **arguments)
        process.set_rate(RATE)
        process._process.wait(60)
        return process

    def turns(self, count: int = 2) -> dict[tuple[str, ...], float]:
        """Collect so often. Returns the series of the last by name and labels."""
        collection = Collection()
        for _ in range(count):
            collection = self.collector.collect()
        return {(each.metric.name, *each.labels): each.value for each in collection.series}


_agents: list[Agent] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """No process outlives its test."""
    yield
    while _agents:
        _agents.pop().collector.close()


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


VERIFIED, DAMAGED = "rankwatch_checkpoint_verified_step", "rankwatch_checkpoint_damaged_step"
OUTCOMES = "rankwatch_checkpoint_verifications_total"


def test_good(agent: Agent) -> None:
    """Counters are born at 0; a save that has just ended waits until other ranks have written."""
    path = checkpoint(agent.directory, 7)
    note(agent.box, (path, 7, NOW - 5))
    series = agent.turns()
    assert (series[OUTCOMES, "good"], series[OUTCOMES, "damaged"]) == (0, 0)
    assert agent.started == []
    agent.now += 10
    series = agent.turns()
    assert series[VERIFIED, "r"] == 7
    assert series["rankwatch_checkpoint_verified_timestamp_seconds", "r"] == NOW - 5
    assert series["rankwatch_checkpoint_verification_timestamp_seconds", "r"] == NOW + 10
    assert series[OUTCOMES, "good"] == 1
    assert series["rankwatch_checkpoint_verification_bytes_total",] > 7000
    assert series["rankwatch_checkpoint_verifications_pending",] == 0


def test_once_for_each_checkpoint(agent: Agent) -> None:
    """Also after a restart of the agent; a save into the same place is another checkpoint."""
    path = checkpoint(agent.directory, 7)
    note(agent.box, (path, 7, NOW - 50))
    agent.turns(6)
    assert len(agent.started) == 1
    later = Agent(agent.directory)
    assert later.turns(4)[VERIFIED, "r"] == 7
    assert later.started == []
    note(agent.box, (path, 8, NOW - 20), (path, 7, NOW - 50))
    assert later.turns(4)[VERIFIED, "r"] == 8
    assert len(later.started) == 1


def test_newest_first_and_none_older_than_a_good_one(agent: Agent) -> None:
    paths = [checkpoint(agent.directory, step) for step in (1, 2, 3)]
    (paths[2] / "model.bin").write_bytes(b"other")
    note(agent.box, *((paths[step - 1], step, NOW - 100 + step) for step in (3, 2, 1)))
    series = agent.turns(10)
    assert agent.started == [paths[2], paths[1]]
    assert series[VERIFIED, "r"] == 2
    assert series[OUTCOMES, "damaged"] == 1


def test_damage_is_named_until_it_is_deleted(agent: Agent) -> None:
    path = checkpoint(agent.directory, 7)
    content = bytearray((path / "model.bin").read_bytes())
    content[100] ^= 4
    (path / "model.bin").write_bytes(content)
    note(agent.box, (path, 7, NOW - 50))
    key = (DAMAGED, "r", str(path), "model.bin", "", "flipped")
    assert agent.turns()[key] == 7
    assert Agent(agent.directory).turns()[key] == 7
    for each in path.iterdir():
        each.unlink()
    path.rmdir()
    agent.now += 61
    poll(lambda: key not in agent.turns())


def test_incomplete_is_looked_at_again(agent: Agent) -> None:
    """Other ranks may still write. Minutes later it is what it is."""
    path = agent.directory / "step-7"
    path.mkdir()
    with ManifestWriter(path, step=7) as manifest, manifest.open("model.bin") as file:
        file.write(b"x")
    note(agent.box, (path, 7, NOW - 50))
    series = agent.turns(4)
    assert len(agent.started) == 1
    assert series[OUTCOMES, "incomplete"] == 0
    for _ in range(5):
        agent.now += 61
        series = agent.turns(4)
    assert len(agent.started) == 4
    assert series[OUTCOMES, "incomplete"] == 1
    assert series[DAMAGED, "r", str(path), "rankwatch-manifest.json", "", "unfinished"] == 7


def test_hidden_note(agent: Agent) -> None:
    """A checkpoint that a hidden note names is verified, and its damage counts; its path and the names in it
    are for nobody else, also after a restart of the agent."""
    path = checkpoint(agent.directory, 7)
    (path / "model.bin").write_bytes(b"weighty" * 1000)
    note(agent.box, (path, 7, NOW - 50))
    agent.box.with_suffix(".checkpoints").chmod(0o600)
    for each in (agent, Agent(agent.directory)):
        series = each.turns()
        assert [labels for labels in series if labels[0] == DAMAGED] == [
            (DAMAGED, "r", "", "", "", "flipped")
        ]
    assert not any(str(path) in label for labels in series for label in labels)


def test_deleted_is_no_failure(agent: Agent) -> None:
    note(agent.box, (agent.directory / "step-7", 7, NOW - 50))
    series = agent.turns()
    assert (series[OUTCOMES, "gone"], series[OUTCOMES, "failed"]) == (1, 0)
    assert not any(name[0] == DAMAGED for name in series)


def test_only_on_the_node_of_rank_0(tmp_path: Path) -> None:
    """Of the nodes that share a file system one reads."""
    agent = Agent(tmp_path, ranks=(1, 2))
    path = checkpoint(tmp_path, 7)
    for rank in range(3):
        note(tmp_path / "r" / f"{rank}.blackbox", (path, 7, NOW - 50))
    agent.turns(4)
    assert agent.started == []


def test_paths_of_the_host(tmp_path: Path) -> None:
    """The process sees /data, the host has it below /mnt, the agent sees the host below rootfs."""
    agent = Agent(tmp_path, rootfs=tmp_path / "root", path_map=(("/other", "/x"), ("/data", "/mnt/pv-1")))
    checkpoint(tmp_path / "root/mnt/pv-1/run", 7)
    note(agent.box, ("/data/run/step-7", 7, NOW - 50), ("/database/step-6", 6, NOW - 60))
    assert agent.turns()[VERIFIED, "r"] == 7
    assert agent.started == [tmp_path / "root/mnt/pv-1/run/step-7"]


def test_urls_loads_and_failed_saves_are_left_alone(agent: Agent) -> None:
    note(agent.box, ("s3://bucket/step-7", 7, NOW - 50))
    assert saves_beside(agent.box, os.getuid()) == []
    note(agent.box, ("/data/step-7", 7, NOW - 50), failed=True)
    assert saves_beside(agent.box, os.getuid()) == []
    note(agent.box, ("/data/step-7", 7, NOW - 50), operation="load")
    assert saves_beside(agent.box, os.getuid()) == []


def test_note_of_another_user(agent: Agent) -> None:
    note(agent.box, ("/data/step-7", 7, NOW - 50))
    assert saves_beside(agent.box, os.getuid() + 1) == []


def test_broken_state_file(tmp_path: Path) -> None:
    for text in ("", "[]", '{"r": [{}]}', '{"r": [{"path": 1}]}', "\0", '{"r": 7}'):
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state" / "verifications.json").write_text(text)
        agent = Agent(tmp_path)
        assert agent.turns()[OUTCOMES, "good"] == 0


def verified(path: Path, owner: Owner) -> dict[str, Any]:
    """What a process finds."""
    process = VerifyingProcess(path, owner=owner)
    process.set_rate(RATE)
    process._process.wait(60)
    found = process.result()
    assert found is not None
    return found


def test_no_checkpoint() -> None:
    assert verified(Path("/nowhere/step-7"), US)["gone"].endswith("it is not there")


def test_checkpoints_of_others_are_not_read(node_directory: Path) -> None:
    """Whoever writes a note can name any path, and learns nothing of what is there, by no link either."""
    private = node_directory / "private"
    path = checkpoint(private, 7)
    for each in (private, path, *path.iterdir()):
        os.chown(each, BOB, BOB)
    private.chmod(0o700)
    run_as(
        ALICE,
        node_directory,
        f"(directory / 'run').mkdir(); (directory / 'run/iter_0000007').symlink_to('{path}')\n"
        "(directory / 'run/latest_checkpointed_iteration.txt').write_text('7')\n",
    )
    run = node_directory / "run"
    found = verified(path, Owner(BOB, BOB))
    assert found.get("result", found)["outcome"] == "good"
    for place in (path, run, run / "iter_0000007"):
        found = verified(place, Owner(ALICE, ALICE))
        assert list(found) == ["error"]
        assert "ermission denied" in found["error"]


def test_owner_without_their_rights(node_directory: Path) -> None:
    """An agent that cannot take the rights of users reads what everybody may read, if it is the user's."""
    path = checkpoint(node_directory, 7)
    for each in (path, *path.iterdir()):
        os.chown(each, BOB, BOB)
    node_directory.chmod(0o755)
    command = confined("rankwatch.checkpoint_files.__main__", "{}", str(path), limits=LIMITS)
    outcomes = {}
    for owner in (ALICE, BOB):
        done = subprocess.run(
            [
                *("setpriv", f"--reuid={CAROL}", f"--regid={CAROL}", "--clear-groups"),
                *(each.format(owner) if each == "{}" else each for each in command),
            ],
            input="1e9\n",
            capture_output=True,
            text=True,
            check=True,
        )
        outcomes[owner] = json.loads(done.stdout)
    assert outcomes[BOB]["result"]["outcome"] == "good"
    assert f"it belongs to user {BOB}" in outcomes[ALICE]["error"]


def test_users_do_not_wait_for_each_other(node_directory: Path) -> None:
    """A checkpoint that takes hours holds up its own user only; together they read no faster than one may."""
    rates: dict[Path, float] = {}

    class Standing(VerifyingProcess):
        def __init__(self, path: Path, *, owner: Owner) -> None:
            super().__init__(path, owner=owner, command=(sys.executable, "-c", "input(), input(), input()"))
            self.path = path

        def set_rate(self, bytes_per_second: float) -> None:
            rates[self.path] = bytes_per_second

    users = [ALICE, BOB, CAROL, CAROL + 1, CAROL + 2]
    found = {}
    for user in users:
        code = "[box(f'{uid}-{n}', 0, capacity=256) for n in range(2)]"
        run_as(user, node_directory, code)
        for number in range(2):
            run = f"{user}-{number}"
            path = node_directory / run / "0.blackbox"
            note(path, (f"/data/{run}", 7, NOW - 50))
            os.chown(path.with_suffix(".checkpoints"), user, user)
            found[run] = [RankCondition(0, path, RankState.RUNNING, 0.0, None, None, 1, owner=user)]
    conditions = RunConditions()
    conditions.update(found, 0.0)
    collector = CheckpointsCollector(
        conditions=conditions,
        settings=VerificationSettings(RATE, (), Path("/"), None),
        schedule=Schedule(5.0, 10.0),
        start=Standing,
        wall=lambda: NOW,
    )
    for _ in range(3):
        collector.collect()
    assert set(rates) == {Path(f"/data/{user}-0") for user in users[:MOST_AT_ONCE]}
    assert sum(rates.values()) == RATE
    collector.close()


def poll(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_process_steps_back(tmp_path: Path) -> None:
    """It has the lowest priority, reads slowly, and ends when it is killed."""
    path = checkpoint(tmp_path, 7)
    process = VerifyingProcess(path, owner=US)
    process.set_rate(1.0)
    pid = process._process.pid
    poll(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
    assert process.result() is None
    process.kill()
    process._process.wait(60)


def test_process_that_never_ends(tmp_path: Path) -> None:
    now = [0.0]
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    process = VerifyingProcess(tmp_path, owner=US, command=command, monotonic=lambda: now[0])
    assert process.result() is None
    now[0] = LONGEST_SECONDS + 1
    found = process.result()
    assert found is not None
    assert "did not end" in found["error"]
    process._process.wait(60)


@pytest.mark.parametrize("code", ["", "print('no json')", "raise SystemExit(3)", "print('[]')"])
def test_process_that_fails(tmp_path: Path, code: str) -> None:
    process = VerifyingProcess(tmp_path, owner=US, command=(sys.executable, "-c", code))
    process._process.wait(60)
    found = process.result()
    assert found is not None
    assert list(found) == ["error"]
