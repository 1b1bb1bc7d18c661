"""Each saved checkpoint is read again once, on the node of rank 0, and what was found survives the agent."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from rankwatch.conventions.states import RankState
from rankwatch.untrusted.children import Limits, confined
from rankwatch.untrusted.text import is_hidden
from rankwatch_agent.runtime.collector import Collection, Schedule
from rankwatch_agent.training.checkpoints.verifications import VerificationRecord, VerificationRecords
from rankwatch_agent.training.conditions import RankCondition, RunCondition, RunConditions
from rankwatch_checkpoints import ManifestWriter
from rankwatch_checkpoints.child import VerifyingProcess
from rankwatch_checkpoints.collector import (
    CheckpointsCollector,
    VerificationSettings,
    saves_beside,
)
from support.agent.process import until
from support.processes.users import ALICE, BOB
from support.training.checkpoint import checkpoint, note

pytestmark = pytest.mark.process

NOW = 1_800_000_000.0
RATE = 1e9


class Agent:
    """The collector with a clock of its own, and processes that run to their end at once, if it `waits`."""

    def __init__(self, directory: Path, *, ranks: tuple[int, ...] = (0,), **settings: Any) -> None:
        self.directory = directory
        self.now = NOW
        self.box = directory / "r" / "0.blackbox"
        self.started: list[Path] = []
        self.command: list[str] | None = None
        self.waits = True
        self.box.parent.mkdir(exist_ok=True)
        found = []
        for rank in ranks:
            box = self.box.with_stem(str(rank))
            box.touch()
            found.append(RankCondition(rank, box, RankState.RUNNING, 0.0, None, None, 1, owner=os.getuid()))
        self.conditions = RunConditions()
        self.conditions.update({"r": found}, 0.0)
        given = {"path_map": (), "rootfs": Path("/"), "directory": directory / "state", **settings}
        self.collector = CheckpointsCollector(
            conditions=self.conditions,
            settings=VerificationSettings(bytes_per_second=RATE, **given),
            schedule=Schedule(5.0, 10.0),
            start=self._start,
            wall=lambda: self.now,
        )
        _agents.append(self)

    def _start(self, path: Path, **arguments: Any) -> VerifyingProcess:
        self.started.append(path)
        process = VerifyingProcess(path, command=self.command, **arguments)
        process.set_rate(RATE)
        if self.waits:
            process._process.wait(60)
        return process

    def saved(self, ended: float = NOW - 50) -> Path:
        """A checkpoint of step 7, and a note that names it."""
        path = checkpoint(self.directory, 7)
        note(self.box, (path, 7, ended))
        return path

    def damaged(self, mode: int = 0o644) -> Path:
        """One with other content than was saved, and a note of this mode."""
        path = self.saved()
        (path / "model.bin").write_bytes(b"weighty" * 1000)
        self.box.with_suffix(".checkpoints").chmod(mode)
        return path

    def turns(self, count: int = 2) -> dict[tuple[str, ...], float]:
        """Collect so often. Returns the series of the last by name and labels."""
        collection = Collection()
        for _ in range(count):
            collection = self.collector.collect()
        return {(each.metric.name, *each.labels): each.value for each in collection.series}

    def damages(self, count: int = 2) -> list[tuple[str, ...]]:
        """Labels of the checkpoints that are damaged, after so many turns."""
        return [labels for name, *labels in self.turns(count) if name == DAMAGED]  # type: ignore[misc]


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
OUTCOMES, PENDING = "rankwatch_checkpoint_verifications_total", "rankwatch_checkpoint_verifications_pending"


def test_good(agent: Agent) -> None:
    """Counters are born at 0; a save that has just ended waits until other ranks have written."""
    agent.saved(NOW - 5)
    series = agent.turns()
    assert (series[OUTCOMES, "good"], series[OUTCOMES, "damaged"]) == (0, 0)
    assert agent.started == []
    agent.now += 10
    series = agent.turns()
    assert (series[VERIFIED, "r"], series[OUTCOMES, "good"]) == (7, 1)
    assert series["rankwatch_checkpoint_verified_timestamp_seconds", "r"] == NOW - 5
    assert series[PENDING,] == 0


def test_once_for_each_checkpoint(agent: Agent) -> None:
    """Also after a restart of the agent; a save into the same place is another checkpoint."""
    path = agent.saved()
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
    path = agent.damaged()
    named = ["r", str(path), "model.bin", "", "flipped"]
    assert agent.damages() == [named]
    assert Agent(agent.directory).damages() == [named]
    shutil.rmtree(path)
    agent.now += 61
    until(lambda: agent.damages() == [], "it is seen that it is gone")


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
    """What it names is verified and counts; path and names are for nobody else, also after a restart."""
    path = agent.damaged(mode=0o600)
    for starts in (1, 0):
        assert agent.damages() == [["r", "", "", "", "flipped"]]
        assert not any(str(path) in label for labels in agent.turns(1) for label in labels)
        assert len(agent.started) == starts
        agent = Agent(agent.directory)


def test_hidden_note_that_is_gone_at_the_end(agent: Agent) -> None:
    """A user who removes the run while its checkpoint is read does not make the path public."""
    agent.damaged(mode=0o600)
    agent.turns(1)
    note_of_box = agent.box.with_suffix(".checkpoints")
    note_of_box.unlink()
    assert agent.damages(1) == [["r", "", "", "", "flipped"]]
    assert (is_hidden(note_of_box), is_hidden(note_of_box, if_gone=True)) == (False, True)


def test_records_of_an_agent_that_knew_no_privacy(agent: Agent) -> None:
    """Nobody knows whether their paths may be shown, so they are not."""
    old = {"path": "/data/7", "step": 7, "ended": 1.0, "outcome": "damaged", "finished": 2.0, "seconds": 1.0}
    (agent.directory / "state").mkdir()
    (agent.directory / "state" / "verifications.json").write_text(json.dumps({"r": [old]}))
    assert Agent(agent.directory).damages(1) == [["r", "", "", "", ""]]


def test_run_that_ends_meanwhile(agent: Agent) -> None:
    """Another thread forgets a run while damage is looked for: the series are those of one moment."""

    class Ending:
        """Run conditions that a first look finds, and a second does not."""

        def __init__(self, left: list[Mapping[str, RunCondition]]) -> None:
            self._left = left

        @property
        def runs(self) -> Mapping[str, RunCondition]:
            return self._left.pop() if self._left else {}

    path = agent.damaged()
    agent.turns()
    agent.collector._conditions = cast(RunConditions, Ending([agent.conditions.runs]))
    agent.now += 61
    assert agent.damages(1) == [["r", str(path), "model.bin", "", "flipped"]]
    assert agent.damages(1) == []


def test_agent_that_ends_meanwhile(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """The next one begins anew, once: a checkpoint may take the memory for which the kernel ended both."""
    agent.saved()
    found = []
    for _ in range(4):
        agent.waits, agent.command = False, [sys.executable, "-c", "import sys; sys.stdin.read()"]
        series = agent.turns()
        assert len(agent.started) == (("rankwatch_checkpoint_verification_seconds", "r") not in series)
        found.append((len(agent.started), series[OUTCOMES, "failed"]))
        agent = Agent(agent.directory)
    assert found == [(1, 0), (1, 0), (0, 1), (0, 0)]
    assert caplog.text.count("the agent ended twice while it read a checkpoint of run r") == 1


def test_cannot_be_started(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again, since it may be the node; in the end it counts, and the log says so."""
    name = "/" + "/".join(["d" * 200] * 25)
    note(agent.box, (name[:1024], 7, NOW - 50))
    agent.collector._settings = agent.collector._settings._replace(rootfs=Path(name))
    for _ in range(3):
        assert agent.turns()[OUTCOMES, "failed"] == 0
        agent.now += 61.0
    assert agent.turns()[OUTCOMES, "failed"] == 1
    assert "could not start a verification for run r: File name too long" in caplog.text


def test_deleted_is_no_failure(agent: Agent) -> None:
    note(agent.box, (agent.directory / "step-7", 7, NOW - 50))
    series = agent.turns()
    assert (series[OUTCOMES, "gone"], series[OUTCOMES, "failed"]) == (1, 0)
    assert agent.damages(1) == []


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


@pytest.mark.parametrize(
    ("path", "others", "owner"),
    [
        ("s3://bucket/step-7", {}, 0),
        ("/data/step-7", {"failed": True}, 0),
        ("/data/step-7", {"operation": "load"}, 0),
        ("/data/step-7", {}, 1),
    ],
    ids=["a URL", "a failed save", "a load", "a note of another user"],
)
def test_notes_that_are_left_alone(agent: Agent, path: str, others: dict[str, Any], owner: int) -> None:
    note(agent.box, (path, 7, NOW - 50), **others)
    assert saves_beside(agent.box, os.getuid() + owner) == []


@pytest.mark.parametrize("text", ["", "[]", '{"r": [{}]}', '{"r": [{"path": 1}]}', "\0", '{"r": 7}'])
def test_broken_state_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "verifications.json").write_text(text)
    assert Agent(tmp_path).turns()[OUTCOMES, "good"] == 0


def test_too_little_memory(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint that takes more than a process may have is a failure, and is not read again and again."""
    name, limits = "rankwatch_checkpoints.__main__", Limits(60.0, 60, 8 << 20, 1 << 20)
    agent.command = confined(name, str(os.getuid()), limits=limits)
    agent.saved()
    series = agent.turns(4)
    assert (series[OUTCOMES, "failed"], series[PENDING,]) == (1, 0)
    assert len(agent.started) == 1
    assert "it takes more than 8 MiB of memory to verify /" in caplog.text
    later = Agent(agent.directory)
    later.turns(4)
    assert later.started == []


def record(owner: int, *, path: str = "/data/7", step: int = 7) -> VerificationRecord:
    return VerificationRecord(path, step, 1.0, "good", 2.0, 1.0, owner=owner)


def test_users_share_the_records(tmp_path: Path) -> None:
    """A user with many short runs loses their own oldest ones, and nobody's else."""
    records = VerificationRecords(tmp_path)
    for run, owner in (("of bob", BOB), *((f"{number}", ALICE) for number in range(600))):
        records.add(run, record(owner))
    for kept in (records, VerificationRecords(tmp_path)):
        assert [bool(kept.of_run(run)) for run in ("of bob", "0", "599")] == [True, False, True]


def test_users_share_the_file(tmp_path: Path) -> None:
    """Nor does one with paths that are made to be long, which would be too much to read again."""
    records, path = VerificationRecords(tmp_path), "/" + 1023 * "\u2603"
    records.add("of bob", record(BOB))
    for number in range(60):
        records._runs[f"{number}"] = [record(ALICE, path=path, step=step) for step in range(31)]
        records.add(f"{number}", record(ALICE, path=path, step=31))
    assert (tmp_path / "verifications.json").stat().st_size < 10 << 20
    kept = VerificationRecords(tmp_path)
    assert [bool(kept.of_run(run)) for run in ("of bob", "0", "59")] == [True, False, True]
