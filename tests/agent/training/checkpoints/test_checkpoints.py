"""Checkpoints of ranks: what is under way, cut off, complete, and lost at a resume."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

import rankwatch
from rankwatch.checkpoint_paths import read_checkpoints
from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.checkpoints.operations import RankCheckpoints
from rankwatch_agent.training.collector import RanksCollector
from support.training.ranks import go_on, kill, rank, state, values

KEY = ("job", "0")
SAVE = (*KEY, "save")


def _collected(directory: Path) -> Collection:
    return RanksCollector(directory=directory).collect()


def _one(collection: Collection, name: str) -> float:
    return values(collection, name)[KEY]


def _outcomes(collection: Collection, operation: str = "save") -> dict[str, float]:
    found = values(collection, "rankwatch_checkpoint_operations_total")
    return {labels[3]: value for labels, value in found.items() if labels[:3] == (*KEY, operation)}


def _start(directory: Path) -> rankwatch.Run:
    run = rankwatch.start(run="job", rank=0, world_size=1, directory=directory)
    assert isinstance(run, rankwatch.Run)
    return run


def test_bytes_by_stage(tmp_path: Path) -> None:
    """A stage has the bytes by which the checkpoint grew in it; an operation has them all."""
    run = _start(tmp_path)
    for _ in range(2):
        with run.checkpoint("save", step=3) as save:
            with save.stage("serialize"):
                pass
            for size in (10, 30):
                with save.stage("write"):
                    save.bytes = size
            with save.stage("fsync"):
                pass
    run.finish()
    found = _collected(tmp_path)
    assert values(found, "rankwatch_checkpoint_stage_bytes_total") == {(*SAVE, "write"): 60.0}
    assert values(found, "rankwatch_checkpoint_operation_bytes_total") == {SAVE: 60.0}
    written = values(found, "rankwatch_checkpoint_stage_seconds_total")[*SAVE, "write"]
    assert 0.0 < _one(found, "rankwatch_checkpoint_last_write_seconds") < written


_UPLOADS = """
with run.checkpoint("save", step=3, path=f"{directory}/a"):
    pass
ready()
upload = run.checkpoint("upload", step=3, path="s3://bucket/a").begin()
ready()
with upload.stage("read"):
    upload.bytes = 70
upload.end()
with run.checkpoint("save", step=6, path=f"{directory}/b"):
    pass
run.checkpoint("upload", step=6, path="s3://bucket/b").begin().end(failed=True)
ready()
run.checkpoint("upload", step=6, path="s3://bucket/b").begin()
ready()
"""


@pytest.mark.process
def test_uploads(tmp_path: Path, collector: RanksCollector) -> None:
    """An upload apart from the save is no save: what is newest on the disk stays what it was."""
    with rank(tmp_path, _UPLOADS) as process:
        assert not _outcomes(collector.collect(), "upload")
        go_on(process)
        assert set(_outcomes(collector.collect(), "upload").values()) == {0.0}  # an increase is seen
        go_on(process)
        found = collector.collect()
        go_on(process)
    assert _one(found, "rankwatch_checkpoint_last_saved_step") == 6.0
    assert _one(found, "rankwatch_checkpoint_last_good_step") == 6.0
    assert _one(found, "rankwatch_checkpoint_last_uploaded_step") == 3.0
    assert values(found, "rankwatch_checkpoint_operation_bytes_total")[*KEY, "upload"] == 70.0
    noted = read_checkpoints(tmp_path / "job" / "0.checkpoints")
    assert [(each.operation, each.path, each.failed) for each in noted] == [
        ("upload", "s3://bucket/b", True),
        ("save", str(tmp_path / "b"), False),
        ("upload", "s3://bucket/a", False),
        ("save", str(tmp_path / "a"), False),
    ]
    process.wait()
    after = _outcomes(collector.collect(), "upload")
    assert after == {"success": 1.0, "failure": 1.0, "unfinished": 1.0}


_FAILS = """
for step, path in ((3, f"{directory}/a"), (6, None)):
    try:
        with run.checkpoint("save", step=step, path=path):
            raise OSError(28, "No space left on device" if path else "Input/output error")
    except OSError:
        ready()
with run.checkpoint("verify", step=3) as verify:
    verify.failed("3 tensors differ: w, b, c")
ready()
"""


@pytest.mark.process
def test_error_of_a_failure(tmp_path: Path, collector: RanksCollector) -> None:
    """The newest failure of each operation says why and at which path, also to an agent that starts later."""
    name, error = "rankwatch_checkpoint_last_failure_info", ("OSError", "[Errno 28] No space left on device")
    with rank(tmp_path, _FAILS) as process:
        assert set(values(collector.collect(), name)) == {(*SAVE, *error, f"{tmp_path}/a"[:160])}
        go_on(process)
        newest = (*SAVE, "OSError", "[Errno 28] Input/output error", "")
        assert set(values(collector.collect(), name)) == {newest}
        go_on(process)
        verified = (*KEY, "verify", "", "3 tensors differ: w, b, c", "")
        for each in (collector, RanksCollector(directory=tmp_path)):
            assert set(values(each.collect(), name)) == {newest, verified}


def test_error_that_is_not_noted(tmp_path: Path, collector: RanksCollector) -> None:
    """Of a note that is missing, or somebody else's, nothing is exported, and the failure counts."""
    run = _start(tmp_path)
    note = tmp_path / "job" / "0.checkpoints"
    with run.checkpoint("save", step=3) as save:
        save.failed("no space")
    note.unlink()
    for _ in range(12):
        found = collector.collect()
    assert not values(found, "rankwatch_checkpoint_last_failure_info")
    assert _outcomes(found)["failure"] == 1.0
    run.finish()


def test_failures_by_stage(tmp_path: Path) -> None:
    """A failure belongs to the stage that failed, or to none; verify and upload may be stages of a save."""
    run = _start(tmp_path)
    for stage in ("write", "fsync", ""):
        with suppress(OSError, ValueError), run.checkpoint("save", step=3) as save:
            if stage:
                with save.stage(stage):
                    raise OSError(28, "No space left on device")
            raise ValueError("no stage")
    with run.checkpoint("save", step=6) as save:
        for stage in ("verify", "upload"):
            with save.stage(stage):
                pass
    run.finish()
    failures = values(_collected(tmp_path), "rankwatch_checkpoint_stage_failures_total")
    born = dict.fromkeys(("verify", "upload"), 0.0)  # so that an increase is seen
    assert failures == {
        (*SAVE, at): n for at, n in {"write": 1.0, "fsync": 1.0, "other": 1.0, **born}.items()
    }


def test_overlap(tmp_path: Path) -> None:
    """A save that begins while another one is under way is counted; one after it is not."""
    run = _start(tmp_path)
    first = run.checkpoint("save", step=3).begin()
    second = run.checkpoint("save", step=6).begin()
    load = run.checkpoint("load", step=6).begin()
    for each in (load, first, second):
        each.end()
    with run.checkpoint("save", step=9):
        pass
    run.finish()
    overlapped = values(_collected(tmp_path), "rankwatch_checkpoint_saves_overlapped_total")
    assert overlapped == {("job",): 1.0}


@pytest.mark.process
def test_end_in_the_middle(tmp_path: Path, collector: RanksCollector) -> None:
    """A rank that is killed in the middle of a save leaves one unfinished, and the one before is the last."""
    code = """
with run.checkpoint("save", step=3): pass
steps(4)
save = run.checkpoint("save", step=7).begin()
save.stage("write").begin()
ready()
"""
    with rank(tmp_path, code) as process:
        assert _outcomes(collector.collect()) == {"success": 1, "failure": 0, "unfinished": 0}
        kill(process)
    for _ in range(2):
        found = collector.collect()
    assert state(found) == {"0": "lost"}
    assert _outcomes(found) == {"success": 1, "failure": 0, "unfinished": 1}
    assert _one(found, "rankwatch_checkpoint_saves_pending") == 0.0
    assert _one(found, "rankwatch_checkpoint_last_saved_step") == 3.0


@pytest.mark.process
def test_save_beside_training(tmp_path: Path, collector: RanksCollector) -> None:
    """A save that goes on beside training is pending until it ends. If it fails then, that is said."""
    name = "rankwatch_checkpoint_save"
    pending, since = f"{name}s_pending", f"{name}_pending_since_timestamp_seconds"
    begins = 'save = run.checkpoint("save", step=3).begin()\nsave.unblock()\nready()\n'
    with rank(tmp_path, f"{begins}save.end(failed=True)\nready()") as process:
        found = collector.collect()
        assert _one(found, pending) == 1.0
        began = _one(found, since)
        go_on(process)
        found = collector.collect()
        assert (_one(found, pending), values(found, since)) == (0.0, {})
        assert _one(found, "rankwatch_checkpoint_background_failures_total") == 1.0
        assert began <= _one(found, "rankwatch_rank_heartbeat_timestamp_seconds")


def test_resumes(tmp_path: Path, collector: RanksCollector) -> None:
    """Each resume loses the steps after its checkpoint that this life of the run had done."""
    lost = []
    for resumed, steps in ((None, 5), (2, 4), (2, 1)):
        run = _start(tmp_path)
        if resumed is not None:
            run.resumed(resumed)
        for _ in range(steps):
            with run.step():
                pass
        run.finish()
        found = collector.collect()
        lost.append(_one(found, "rankwatch_rank_steps_lost_total"))
        restored = values(found, "rankwatch_rank_restored_step")
        assert restored == ({} if resumed is None else {KEY: 2.0})
    assert lost == [0.0, 2.0, 6.0]  # steps 0 to 4, then 3 to 6, then 3


def test_no_checkpoints(tmp_path: Path) -> None:
    """A run without checkpoints has no step and no moment of one."""
    run = _start(tmp_path)
    with run.step():
        pass
    run.finish()
    found = _collected(tmp_path)
    names = {each.metric.name for each in found.series}
    assert not {each for each in names if each.startswith("rankwatch_checkpoint_last")}
    assert _outcomes(found) == {"success": 0, "failure": 0, "unfinished": 0}


def test_lost_ends() -> None:
    """An end that the ring has lost leaves no save under way for ever."""
    checkpoints = RankCheckpoints()
    alone = bytes(12)
    for began in (1.0, 2.0, 3.0):
        checkpoints.begins("save", began, alone, 0)
    assert checkpoints.saves_under_way() == [3.0]
    for number in range(1000):
        checkpoints.begins("save", 4.0 + number, bytes(8) + b"\1\0\0\0", 0)
        checkpoints.stage_ended("save", "write", 1.0, 1, number, failed=False)
    assert len(checkpoints.saves_under_way()) <= 64
    assert RankTotals(print, 1).checkpoints.saves_under_way() == []
