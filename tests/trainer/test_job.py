"""Jobs of several ranks: their end, preemption and hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.jobs.trainer import DEADLINE_SECONDS, EMULATED, end_record, plain_store, started_ranks
from support.servers.prometheus import poll

pytestmark = pytest.mark.process


def test_end(tmp_path: Path) -> None:
    """The job prints one end record, each rank writes a black box, and Python emits no warning."""
    environment = {"RANKWATCH_DISABLE": "0", "RANKWATCH_DIR": str(tmp_path), "RANKWATCH_RUN": "job"}
    with started_ranks(tmp_path, (*EMULATED, "--steps", "5"), environment) as ranks:
        assert [each.wait() for each in ranks] == [0, 0], ranks[0].printed
    assert end_record("".join(each.printed for each in ranks))["steps"] == 5
    assert sorted(path.name for path in tmp_path.rglob("*.blackbox")) == ["0.blackbox", "1.blackbox"]


def test_preemption(tmp_path: Path) -> None:
    """After SIGTERM on one rank all ranks stop after the same step, save it and exit with status 0."""
    checkpoints = tmp_path / "checkpoints"
    flags = (*EMULATED, "--steps", "100000", "--log-every", "5", "--checkpoint-dir", str(checkpoints))
    flags = (*flags, "--checkpoint-every", "100000", "--preempt-on-sigterm")
    with started_ranks(tmp_path, flags) as ranks:
        poll(lambda: "step 5/" in ranks[0].printed, DEADLINE_SECONDS, "step of the trainer")
        os.kill(ranks[1].pid, signal.SIGTERM)
        assert [each.wait() for each in ranks] == [0, 0], ranks[0].printed
    record = end_record(ranks[0].printed)
    assert record["outcome"] == "preempted"
    assert plain_store(checkpoints).newest_good() == record["last_step"]


@pytest.mark.parametrize(
    ("fault", "last_step"),
    [("skip-collective", 3), ("mismatched-collective", 2), ("stuck-data", 2)],
)
def test_hang(fault: str, last_step: int, tmp_path: Path) -> None:
    """It lasts until collectives time out, after a skipped collective at the next checkpoint."""
    checkpoints = str(tmp_path / "checkpoints")
    flags = (*EMULATED, "--steps", "100", "--checkpoint-dir", checkpoints, "--checkpoint-every", "4")
    hang = ("--fault", f"{fault}:rank=1,from=3", "--collective-timeout-seconds", "5")
    with started_ranks(tmp_path, (*flags, *hang)) as ranks:
        ending = ranks[:1] if fault == "stuck-data" else ranks  # a rank that waits for its data never ends
        statuses = [each.wait() for each in ending]
    printed = [each.printed for each in ending]
    assert statuses == [1] * len(ending), printed
    # The first wait that times out closes its connections, which ends the other waits, also on the same rank.
    timed_out = ("Timed out waiting 5000ms", "Application timeout caused pair closure")
    assert any(each in output for output in printed for each in timed_out), printed
    record = end_record(printed[0])
    assert (record["outcome"], record["last_step"]) == ("failed", last_step)
