"""The process that reads one checkpoint: what it may do, and how users share the places for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.conventions.states import RankState
from rankwatch.untrusted.children import Limits, Owner, confined
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.training.conditions import RankCondition, RunConditions
from rankwatch_checkpoints.child import LONGEST_SECONDS, MOST_AT_ONCE, VerifyingProcess, memory_bytes
from rankwatch_checkpoints.collector import (
    CheckpointsCollector,
    VerificationSettings,
)
from support.agent.process import until
from support.processes.mounts import run_beside_dead_server, run_with_read_only_root
from support.processes.users import ALICE, BOB, CAROL, node_directory, run_as
from support.training.checkpoint import checkpoint, note

__all__ = ["node_directory"]

pytestmark = pytest.mark.process

RATE = 1e9
LIMITS = Limits(seconds=60.0, cpu_seconds=60, memory_bytes=1 << 30, output_bytes=1 << 20)
US = Owner(os.getuid(), os.getgid())


def verified(path: Path, owner: Owner, **how: Any) -> dict[str, Any]:
    """What a process finds."""
    process = VerifyingProcess(path, owner=owner, **how)
    process.set_rate(RATE)
    process._process.wait(60)
    return result(process)


def result(process: VerifyingProcess) -> dict[str, Any]:
    found = process.result()
    assert found is not None
    return found


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[VerifyingProcess]:
    """One that reads a byte a second at the lowest priority; killed at the end."""
    process = VerifyingProcess(checkpoint(tmp_path, 7), owner=US)
    process.set_rate(1.0)
    pid = process._process.pid
    until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19, "it steps back")
    yield process
    process.kill()
    process._process.wait(60)


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
    command = confined("rankwatch_checkpoints.__main__", "{}", limits=LIMITS)
    outcomes = {}
    for owner in (ALICE, BOB):
        done = subprocess.run(
            [
                *("setpriv", f"--reuid={CAROL}", f"--regid={CAROL}", "--clear-groups"),
                *(each.format(owner) if each == "{}" else each for each in command),
            ],
            input=f"{path}\0001e9\n",
            capture_output=True,
            text=True,
            check=True,
        )
        outcomes[owner] = json.loads(done.stdout)
    assert outcomes[BOB]["result"]["outcome"] == "good"
    assert f"it belongs to user {BOB}" in outcomes[ALICE]["error"]


def test_process_steps_back(slow: VerifyingProcess) -> None:
    """It has the lowest priority, and every user of the node can see the arguments of every process."""
    assert slow.result() is None
    arguments = Path(f"/proc/{slow._process.pid}/cmdline").read_bytes()
    assert b"rankwatch_checkpoints" in arguments
    assert b"step-7" not in arguments


WITHOUT_TEMPORARY_FILES = """
import os, pathlib, sys, tempfile
from rankwatch.untrusted.children import Owner
from rankwatch_checkpoints.child import VerifyingProcess
try:
    tempfile.gettempdir()
    raise SystemExit("there is a place for temporary files")
except FileNotFoundError:
    pass
process = VerifyingProcess(pathlib.Path(sys.argv[1]), owner=Owner(os.getuid(), os.getgid()))
process.set_rate(1e9)
process._process.wait(60)
print(process.result()["result"]["outcome"])
"""


def test_root_that_is_read_only(tmp_path: Path) -> None:
    """As in the chart: it takes no directory for temporary files."""
    done = run_with_read_only_root(WITHOUT_TEMPORARY_FILES, str(checkpoint(tmp_path, 7)))
    assert done.stdout == "good\n", done.stderr


def test_path_with_any_bytes(tmp_path: Path) -> None:
    """A line break or what is no UTF-8 is part of a name like any other."""
    path = checkpoint(tmp_path, 7).rename(tmp_path / os.fsdecode(b"step\n7 \xff"))
    assert verified(path, US)["result"]["outcome"] == "good"


STOPPED = """
import json, os, signal, sys
os.kill(os.getpid(), signal.SIGSTOP)
print(json.dumps({"result": sys.stdin.buffer.read().partition(bytes(1))[2].split()[-1].decode()}))
"""


@pytest.fixture
def stopped(tmp_path: Path) -> VerifyingProcess:
    process = VerifyingProcess(tmp_path, owner=US, command=(sys.executable, "-c", STOPPED))
    os.waitid(os.P_PID, process._process.pid, os.WSTOPPED | os.WNOWAIT)
    return process


def test_process_that_is_stopped(stopped: VerifyingProcess) -> None:
    """Nobody waits for a process that its user has stopped; it gets the newest rate once it goes on."""
    os.waitid(os.P_PID, stopped._process.pid, os.WSTOPPED)
    rates = [1e6 + number for number in range(20_000)]
    for rate in rates:
        stopped.set_rate(rate)
    assert stopped._rate < rates[-1]
    os.kill(stopped._process.pid, signal.SIGCONT)

    def is_set() -> bool:
        stopped.set_rate(rates[-1])
        return stopped._rate == rates[-1]

    until(is_set, "there is room for it")
    stopped._input.close()
    stopped._process.wait(60)
    assert stopped.result() == {"result": repr(rates[-1])}


def test_process_that_stays_stopped(stopped: VerifyingProcess) -> None:
    """It would hold its place for hours: it is given up."""
    assert "its user has stopped it" in result(stopped)["error"]
    stopped._process.wait(60)


def test_process_that_never_ends(tmp_path: Path) -> None:
    now = [0.0]
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    process = VerifyingProcess(tmp_path, owner=US, command=command, monotonic=lambda: now[0])
    assert process.result() is None
    now[0] = LONGEST_SECONDS + 1
    assert "did not end" in result(process)["error"]
    process._process.wait(60)


SERVED_BY_ITS_USER = """
import struct, threading
from rankwatch.untrusted.children import Owner
from rankwatch_checkpoints.child import VerifyingProcess
asked = threading.Event()

def serve():
    first, = struct.unpack_from("<Q", os.read(server, 1 << 17), 8)  # FUSE_INIT, the only one with an answer
    os.write(server, struct.pack("<IiQ2I56x", 80, 0, first, 7, 31))
    while True:
        os.read(server, 1 << 17)
        asked.set()

threading.Thread(target=serve, daemon=True).start()
process = VerifyingProcess(dead / "step-7", owner=Owner(os.getuid(), os.getgid()))
process.set_rate(1e9)
asked.wait()
process.kill()
print(process.has_ended)
"""


def test_process_that_cannot_be_killed(tmp_path: Path) -> None:
    """One that a file server holds in the kernel: nobody waits, and it does not count as ended."""
    assert run_beside_dead_server(tmp_path, SERVED_BY_ITS_USER) == "False\n"


@pytest.mark.parametrize("code", ["", "print('no json')", "raise SystemExit(3)", "print('[]')"])
def test_process_that_fails(tmp_path: Path, code: str) -> None:
    assert list(verified(tmp_path, US, command=(sys.executable, "-c", code))) == ["error"]


def test_memory_of_the_cgroup(tmp_path: Path) -> None:
    """All processes together take at most half of what the agent and they may take."""
    own, cgroup = tmp_path / "proc" / str(os.getpid()), tmp_path / "sys" / "system.slice" / "agent.service"
    for each in (own, cgroup):
        each.mkdir(parents=True)
    (own / "cgroup").write_text("0::/system.slice/agent.service\n")
    unlimited = memory_bytes(tmp_path / "proc", tmp_path / "sys")
    found = []
    for most in ("max", "536870912", "68719476736"):
        (cgroup / "memory.max").write_text(f"{most}\n")
        found.append(memory_bytes(tmp_path / "proc", tmp_path / "sys"))
    assert found == [unlimited, 64 << 20, unlimited]
    assert MOST_AT_ONCE * found[1] <= 512 << 19


NOW = 1_800_000_000.0
USERS = [ALICE, BOB, *range(CAROL, CAROL + 10)]


class Standing(VerifyingProcess):
    """It never gets anywhere, and cannot be killed, like one that waits for a file server."""

    all: list[Standing]
    hours = 0.0

    def __init__(self, path: Path, *, owner: Owner) -> None:
        super().__init__(path, owner=owner, command=(sys.executable, "-c", "while True: input()"))
        self.path, self.owner, self.killed, self.rate = path, owner.uid, False, 0.0
        self.all.append(self)

    @property
    def seconds(self) -> float:
        return self.hours * 3600

    def set_rate(self, bytes_per_second: float) -> None:
        self.rate = bytes_per_second

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def standing() -> Iterator[type[Standing]]:
    Standing.all = []
    yield Standing
    for each in Standing.all:
        VerifyingProcess.kill(each)


def collector_of_users(directory: Path, users: list[int], start: type[Standing]) -> CheckpointsCollector:
    """Each of these users has two runs, with a save each."""
    found = {}
    for user in users:
        run_as(user, directory, "[box(f'{uid}-{n}', 0, capacity=256) for n in range(2)]")
        for run in (f"{user}-0", f"{user}-1"):
            path = directory / run / "0.blackbox"
            note(path, (f"/data/{run}", 7, NOW - 50))
            os.chown(path.with_suffix(".checkpoints"), user, user)
            found[run] = [RankCondition(0, path, RankState.RUNNING, 0.0, None, None, 1, owner=user)]
    conditions = RunConditions()
    conditions.update(found, 0.0)
    return CheckpointsCollector(
        conditions=conditions,
        settings=VerificationSettings(RATE, (), Path("/"), None),
        schedule=Schedule(5.0, 10.0),
        start=start,
        wall=lambda: NOW,
    )


def test_users_do_not_wait_for_each_other(node_directory: Path, standing: type[Standing]) -> None:
    """A checkpoint that takes hours holds up its own user only; together they read no faster than one may."""
    users = USERS[: MOST_AT_ONCE + 1]
    collector = collector_of_users(node_directory, users, standing)
    for _ in range(3):
        collector.collect()
    assert [each.path for each in standing.all] == [Path(f"/data/{user}-0") for user in users[:MOST_AT_ONCE]]
    assert sum(each.rate for each in standing.all) == RATE
    collector.close()


def test_places_that_are_held(node_directory: Path, standing: type[Standing]) -> None:
    """After an hour the longest gives way to who waits. Its user gets no other while it has not ended; nor
    do others, once two have not."""
    users = USERS[: MOST_AT_ONCE + 3]
    collector = collector_of_users(node_directory, users, standing)
    for _ in range(3):
        collector.collect()
    held = list(standing.all)
    held[1].hours, held[2].hours, held[3].hours = 1.5, 1.25, 0.75
    for _ in range(3):
        collector.collect()
    assert [each.owner for each in standing.all if each.killed] == [users[1], users[2]]
    assert [each.owner for each in standing.all] == users[: MOST_AT_ONCE + 2]
    held[3].hours = 1.0
    collector.collect()
    assert [each.owner for each in standing.all] == users[: MOST_AT_ONCE + 2]
    VerifyingProcess.kill(held[1])
    held[1]._process.wait(60)
    collector.collect()
    assert [each.owner for each in standing.all] == users
    collector.close()
