"""Which files are a run's, and what becomes of those that are broken."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.simulation.black_boxes import BEGAN_MONOTONIC
from bench.simulation.hang import HangFault, HangKind
from bench.simulation.hang_job import HangJob, SimulatedHang, simulate_hang, write_hang_boxes, write_snapshots
from bench.simulation.program import JobShape
from rankwatch.blackbox.layout import Now
from rankwatch.processes import python
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.main import main
from rankwatch_diagnosis.run.boxes import read_boxes
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.waiting import ask_living
from support.diagnosis.run_boxes import RankBox
from support.processes.users import ALICE, BOB, as_user, node_directory

__all__ = ["node_directory"]


def hung(directory: Path, kind: HangKind = HangKind.SLEEP) -> SimulatedHang:
    """Four ranks of run `job`, of which rank 2 is to blame."""
    job = HangJob(shape=JobShape(data_parallel=4), fault=HangFault(kind=kind, ranks=(2,)))
    hang = simulate_hang(job)
    write_hang_boxes(hang, job, directory, run="job")
    return hang


def test_run_and_parent(tmp_path: Path) -> None:
    """A run's directory and the one above it are the same run. As long as there is one run in it."""
    hung(tmp_path)
    assert find_run(tmp_path) == find_run(tmp_path / "job")
    shutil.copytree(tmp_path / "job", tmp_path / "other")
    with pytest.raises(UserError, match=r"holds 2 runs \(job, other\): give the directory of one"):
        find_run(tmp_path)


def owned(folder: Path, user: int) -> None:
    """Gives a folder and what is in it to a user."""
    for each in (folder, *folder.iterdir()):
        os.chown(each, user, user)


@pytest.mark.process
def test_dumps_of_another_user(node_directory: Path) -> None:
    """What somebody else puts into a folder for dumps beside a run blames nobody and hides nothing."""
    hung(node_directory)
    owned(node_directory / "job", ALICE)
    recorders = node_directory / "flight_recorder"
    forged = HangJob(shape=JobShape(data_parallel=4), fault=HangFault(kind=HangKind.OTHER_SIZE, ranks=(1,)))
    write_snapshots(simulate_hang(forged).snapshots, recorders, "json")
    owned(recorders, ALICE)
    assert diagnose_run(node_directory / "job").ranks == (1,)
    owned(recorders, BOB)
    assert diagnose_run(node_directory / "job").ranks == (2,)
    os.chown(recorders, ALICE, ALICE)
    assert find_run(node_directory / "job").dumps == {}
    os.chown(recorders, BOB, BOB)
    recorders.chmod(0o700)
    command = [*as_user(ALICE), *python("-m", "rankwatch_diagnosis.run", str(node_directory / "job"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["ranks"] == [2], done.stderr


def test_linked_bundle(tmp_path: Path) -> None:
    """A link in a run's folder does not make it a bundle of the boxes, stacks or dumps of somebody else."""
    hung(tmp_path / "mine")
    hung(tmp_path / "other")
    run = tmp_path / "mine" / "job"
    (run / "blackboxes").symlink_to(tmp_path / "other" / "job")
    write_snapshots(hung(tmp_path / "third").snapshots, tmp_path / "dumps", "json")
    (run / "flight_recorder").symlink_to(tmp_path / "dumps")
    found = find_run(run)
    assert (found.bundle, found.dumps, len(found.boxes)) == (None, {}, 4)


@pytest.mark.process
def test_bundle_with_recorders(tmp_path: Path) -> None:
    """It is read with replies of all or one recorder, which know of sizes what boxes do not."""
    hang = hung(tmp_path / "blackboxes", HangKind.OTHER_SIZE)
    assert diagnose_run(tmp_path).ranks == ()
    recorders = tmp_path / "flight_recorder"
    write_snapshots(hang.snapshots, recorders, "json")
    for rank in range(4):
        reply = json.loads((recorders / f"_dump_{rank}.json").read_text())
        wrapped = {"dump_nccl_trace_json": reply, "fr_trace_json": {"entries": []}} if rank % 2 else reply
        (recorders / f"{rank}.json").write_text(json.dumps(wrapped))
        (recorders / f"_dump_{rank}.json").unlink()
    verdict = diagnose_run(tmp_path)
    assert (verdict.state.value, verdict.hang.state.value, verdict.ranks) == ("stalled", "desync", (2,))
    assert verdict.hang.evidence["source"] == "flight recorders"
    assert verdict.sources["copies"] is True


def tell_ranks(directory: Path, *states: str) -> None:
    """What a bundle says of the ranks, a minute after the run began."""
    ranks = [{"rank": rank, "state": state} for rank, state in enumerate(states)]
    told = {"moment_monotonic_seconds": BEGAN_MONOTONIC + 60.0, "ranks": ranks}
    (directory / "ranks.json").write_text(json.dumps(told))


def test_bundle_ranks(tmp_path: Path) -> None:
    """It shows which ranks lived when they were copied, and when that was: a copy alone knows neither."""
    hung(tmp_path / "blackboxes", HangKind.STUCK_DATA)
    tell_ranks(tmp_path, *["running"] * 4)
    verdict = diagnose_run(tmp_path)
    assert verdict.ranks == (2,)
    assert "it is in data_wait, step 3, for 5" in verdict.why
    tell_ranks(tmp_path, "running", "running", "lost", "running")
    verdict = diagnose_run(tmp_path)
    assert (verdict.state.value, verdict.ranks) == ("lost", (2,))
    for broken in (b'{"moment_monotonic_seconds": "now", "ranks": [1, {"rank": 1}]}', b'{"ranks": ["\xff"]}'):
        (tmp_path / "ranks.json").write_bytes(broken)
        verdict = diagnose_run(tmp_path)
        assert (verdict.state.value, verdict.ranks) == ("stalled", (2,))


def test_crash_in_a_bundle(tmp_path: Path) -> None:
    """The signal that ended a rank is in the stacks that the bundle keeps of it."""
    hung(tmp_path / "blackboxes", HangKind.STUCK_DATA)
    tell_ranks(tmp_path, "running", "running", "lost", "running")
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "2.crashed.txt").write_text("Fatal Python error: Aborted\n\nThread 0x01:\n")
    (tmp_path / "stacks" / "1.crashed.txt").write_bytes(b"\xff")
    verdict = diagnose_run(tmp_path)
    assert verdict.why.startswith("rank 2: it crashed by SIGABRT: Aborted")


@pytest.mark.process
def test_broken_boxes_and_dumps(tmp_path: Path) -> None:
    """They are skipped and counted, and the broken rank is missing on a node that is seen."""
    hung(tmp_path)
    run = tmp_path / "job"
    (run / "0.blackbox").unlink()
    (run / "0.blackbox").write_bytes(b"no black box")
    (run / "7.blackbox").symlink_to(run / "1.blackbox")
    (run / "_dump_1").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    (run / "3.json").write_text("{")
    verdict = diagnose_run(run)
    assert (verdict.state.value, verdict.ranks) == ("stalled", (2,))
    assert verdict.sources["boxes_skipped"] == {"truncated": 1, "symlink": 1}
    assert (verdict.hang.missing_ranks, verdict.sources["boxes_missing_on_seen_hosts"]) == ((0,), [0])
    silent: Any = verdict.hang.evidence["flight_recorders_silent"]
    assert set(silent) == {"1", "3"}


@pytest.mark.parametrize("byte", [b"\xff", b"\x7f", b"\x01"])
def test_torn_box(byte: bytes, tmp_path: Path) -> None:
    """A torn box costs only itself. Whatever its bytes are: every page of it is overwritten in turn."""
    hung(tmp_path)
    path = tmp_path / "job" / "1.blackbox"
    whole = path.read_bytes()
    path.chmod(0o644)
    for start in range(0, len(whole), 4096):
        path.write_bytes(whole[:start] + byte * min(4096, len(whole) - start) + whole[start + 4096 :])
        verdict = diagnose_run(tmp_path)
        assert set(verdict.ranks) <= {1, 2}


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (None, "is no directory"),
        ("", "holds no black box (RANK.blackbox), and neither does a folder in it"),
        ("0.blackbox", "none of the 1 black boxes can be used"),
    ],
)
def test_unusable_directory(
    made: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory without a usable box is one sentence. Exit status 2."""
    run = tmp_path / "run"
    if made is not None:
        run.mkdir()
        (run / (made or "readme")).write_text("x")
    assert main(["diagnose", "run", str(run)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_silent_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder that never answers is given up. Its rank is told as silent, with the reason."""
    monkeypatch.setattr("rankwatch_diagnosis.run.waiting.ANSWER_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "3.sock"))
        server.listen()
        (tmp_path / "3.blackbox").touch()
        found = ask_living({3: tmp_path / "3.blackbox", 4: tmp_path / "4.blackbox"})
    assert (found.snapshots, list(found.broken)) == ([], [3])
    assert "timed out" in found.broken[3]


def test_two_boxes_of_a_rank(tmp_path: Path) -> None:
    """Two boxes of one rank and boxes of another run are counted. One of them counts."""
    hung(tmp_path)
    run = tmp_path / "job"
    shutil.copy(run / "1.blackbox", run / "9.blackbox")
    boxes = read_boxes(find_run(run).boxes, copied=None)
    assert (list(boxes.by_rank), boxes.skipped) == ([0, 1, 2, 3], {"second of a rank": 1})


def test_output_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line has state, rank, group and phase, no colour where no terminal is; JSON says the same."""
    hung(tmp_path, HangKind.STUCK_DATA)
    assert main(["diagnose", "run", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    first = (
        "STALLED: rank 2 is waited for in all_reduce of DATA_PARALLEL_GROUP (0-3); it is in data_wait, step 3"
    )
    assert text.splitlines()[0] == first
    assert "\x1b" not in text
    assert main(["diagnose", "run", str(tmp_path), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["state"], verdict["ranks"], verdict["hang"]["ranks"]) == ("stalled", [2], [2])
    assert (verdict["straggler"]["cause"], verdict["loss"]["anomalies"]) == ("none", [])
    assert verdict["ranks_seen"][2]["phase"] == "data_wait"


def lying(directory: Path, *, size: int, enqueued: int, oldest: float, members: str, world: int = 4) -> None:
    """Rank 0 of a run, with one group of these words."""
    box = RankBox(directory, 0, world=world, members=members)
    integers, floats = box.writer.integers, box.writer.floats
    box.enqueues(0)
    integers[Now.GROUP_SIZE], integers[Now.GROUP_ENQUEUED] = size, enqueued
    floats[Now.GROUP_OLDEST] = oldest
    integers[Now.STEP], integers[Now.CHECKPOINT_STEP] = -(2**62), 2**62
    floats[Now.CHECKPOINT_ENDED] = 5.0
    box.writer.unlock()


@pytest.mark.parametrize("enqueued", [0, 2**40, 2**63 - 1, -5])
@pytest.mark.parametrize("oldest", [0.0, 7.0, float("nan"), 1e300])
@pytest.mark.parametrize("members", ["0-3", "0-9999999", "5-7", "", "1-9999999/9999999"])
def test_hostile_numbers(enqueued: int, oldest: float, members: str, tmp_path: Path) -> None:
    """Any numbers give a verdict, which names at most ranks of the box's own group."""
    lying(tmp_path, size=4, enqueued=enqueued, oldest=oldest, members=members)
    assert set(diagnose_run(tmp_path, complete=True).ranks) <= {0, 1, 2, 3}


def test_hostile_world_size(tmp_path: Path) -> None:
    """A world of billions is refused. Each of its ranks would be listed as missing."""
    lying(tmp_path, size=2**31 - 1, enqueued=3, oldest=7.0, members="", world=2**31 - 1)
    with pytest.raises(UserError, match="claims more than 131072 ranks"):
        diagnose_run(tmp_path)
