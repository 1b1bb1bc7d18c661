"""Jobs of several ranks: rendezvous, end, preemption, hangs, what is resumed, and what is recorded of it."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rankwatch.checkpoint_paths import SUFFIX, read_checkpoints
from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_trainer.world import rendezvous
from support.jobs.trainer import (
    DEADLINE_SECONDS,
    EMULATED,
    TINY,
    end_record,
    flip_a_byte,
    plain_store,
    read_history,
    started_ranks,
)
from support.servers.prometheus import poll, reserved_port
from support.training.ranks import values

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
    ("fault", "last_step"), [("skip-collective", 3), ("mismatched-collective", 2), ("stuck-data", 2)]
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


def test_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank opens the store and waits until the last one connects. Then all share the store."""
    with reserved_port() as port, ThreadPoolExecutor() as ranks:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        first = ranks.submit(rendezvous, 0, 2)
        poll(lambda: _answers(port), DEADLINE_SECONDS, "store of the first rank")
        assert not first.done()
        other = ranks.submit(rendezvous, 1, 2).result()
        first.result().set("word", "heard")
        assert other.get("word") == b"heard"


def _answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def assert_equal(one: object, other: object) -> None:
    """Nested containers of tensors and plain values are exactly equal."""
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor) and torch.equal(one, other)
    elif isinstance(one, dict):
        assert isinstance(other, dict) and one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert isinstance(other, list | tuple) and len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


def run_to_the_end(directory: Path, *arguments: str) -> None:
    """Run two ranks, both of which must exit with status 0."""
    with started_ranks(directory, arguments) as ranks:
        for each in ranks:
            assert each.wait() == 0, each.printed


def test_resume_after_kill(tmp_path: Path) -> None:
    """Losses and all saved state of both ranks are the same as those of a run that was not interrupted."""
    common = (*TINY, "--steps", "20", "--accumulation", "2", "--checkpoint-every", "10")
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    histories = {name: tmp_path / f"{name}.json" for name in ("straight", "resumed")}
    history = str(histories["straight"])
    run_to_the_end(tmp_path, *common, "--checkpoint-dir", str(straight), "--history", history)

    flags = (*common, "--checkpoint-dir", str(broken))
    with started_ranks(tmp_path, (*flags, "--fault", "kill:rank=1,from=11")) as ranks:
        assert [each.wait() for each in ranks] == [1, -9]
    record = end_record(ranks[0].printed)
    assert (record["outcome"], record["last_step"], record["exception"]) == ("failed", 10, "RuntimeError")
    assert plain_store(broken).steps() == [10]

    run_to_the_end(tmp_path, *flags, "--resume", "auto", "--history", str(histories["resumed"]))
    whole, resumed = map(read_history, histories.values())
    assert resumed["step"] == list(range(11, 21))
    assert whole["loss"][10:] == resumed["loss"]
    assert_equal(plain_store(straight).load(20), plain_store(broken).load(20))


EACH_RANK = (("job", "0"), ("job", "1"))
RANK_0 = ("job", "0")


def test_crash_and_resume(tmp_path: Path) -> None:
    """Step 10 is damaged, so the next attempt resumes from step 5, and both ranks lose seven steps."""
    collector = RanksCollector(directory=tmp_path / "boxes")
    _run(tmp_path, "--fault", "kill:rank=1,from=13")
    found = collector.collect()
    assert values(found, "rankwatch_checkpoint_last_verified_step") == {RANK_0: 10.0}
    assert _outcomes(found, "save") == {"success": 2}

    flip_a_byte(tmp_path / "checkpoints" / "step-00000010" / "state.pt")
    _run(tmp_path, "--resume", "auto")
    found = collector.collect()
    assert values(found, "rankwatch_rank_restored_step") == dict.fromkeys(EACH_RANK, 5.0)
    assert values(found, "rankwatch_rank_steps_lost_total") == dict.fromkeys(EACH_RANK, 7.0)
    assert values(found, "rankwatch_checkpoint_last_saved_step") == {RANK_0: 15.0}
    assert _outcomes(found, "save") == {"success": 4}
    assert _outcomes(found, "verify") == {"success": 5, "failure": 1}
    stages = values(found, "rankwatch_checkpoint_stage_seconds_total")
    saved = {stage for _, _, operation, stage in stages if operation == "save"}
    assert saved == {"serialize", "write", "fsync", "publish"}

    noted = read_checkpoints(tmp_path / "boxes" / "job" / f"0{SUFFIX}")
    assert [(each.operation, each.step) for each in noted if each.operation != "verify"] == [
        *(("save", 15), ("save", 10), ("load", 5), ("save", 10), ("save", 5))
    ]
    assert {Path(each.path).parent for each in noted} == {tmp_path / "checkpoints"}


def _run(folder: Path, *arguments: str) -> None:
    flags = ("--steps", "15", "--checkpoint-every", "5", "--checkpoint-dir", str(folder / "checkpoints"))
    recorded = {"RANKWATCH_DISABLE": "", "RANKWATCH_DIR": str(folder / "boxes"), "RANKWATCH_RUN": "job"}
    with started_ranks(folder, (*EMULATED, *flags, *arguments), recorded) as ranks:
        for each in ranks:
            each.wait()


def _outcomes(found: Collection, operation: str) -> dict[str, float]:
    operations = values(found, "rankwatch_checkpoint_operations_total")
    return {labels[3]: count for labels, count in operations.items() if labels[2] == operation and count}
