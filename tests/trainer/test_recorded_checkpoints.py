"""What rankwatch records of the trainer's checkpoints, through a crash and a resume from an older one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.checkpoint_paths import SUFFIX, read_checkpoints
from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from support.jobs.trainer import EMULATED, flip_a_byte, started_ranks
from support.training.ranks import values

pytestmark = pytest.mark.process

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
