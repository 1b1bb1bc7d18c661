"""Users share the places of verification: nobody holds one for ever, whatever their files lie on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.conventions.states import RankState
from rankwatch.untrusted.children import Owner
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.training.conditions import RankCondition, RunConditions
from rankwatch_checkpoints.collector import (
    CheckpointsCollector,
    VerificationSettings,
)
from rankwatch_checkpoints.verifying import MOST_AT_ONCE, VerifyingProcess
from support.processes.users import ALICE, BOB, CAROL, node_directory, run_as
from support.training.checkpoint import note

__all__ = ["node_directory"]

pytestmark = pytest.mark.process

NOW = 1_800_000_000.0
RATE = 1e9
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
        code = "[box(f'{uid}-{n}', 0, capacity=256) for n in range(2)]"
        run_as(user, directory, code)
        for number in range(2):
            run = f"{user}-{number}"
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
    held[1].hours = 1.5
    held[2].hours = 1.25
    held[3].hours = 0.75
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
