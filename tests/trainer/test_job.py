"""The trainer as jobs run it: under torchrun, watched, preempted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs.trainer import DEADLINE_SECONDS, EMULATED, end_record, plain_store, started_ranks

pytestmark = pytest.mark.e2e


def test_torchrun_starts_a_job_whose_ranks_leave_their_black_boxes(tmp_path: Path) -> None:
    """One end record for the job, one black box per rank, and no warning of Python's."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*launch, "-m", "rankwatch_trainer", *EMULATED, "--steps", "5"],
        env={
            **os.environ,
            "RANKWATCH_DIR": str(tmp_path),
            "RANKWATCH_RUN": "job",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "error",
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert end_record(done.stdout)["steps"] == 5
    assert sorted(path.name for path in tmp_path.rglob("*.blackbox")) == ["0.blackbox", "1.blackbox"]


def test_a_preempted_job_saves_its_last_step_and_ends_well(tmp_path: Path) -> None:
    """SIGTERM on one rank is enough for all to leave after the same step."""
    flags = (*EMULATED, "--steps", "100000", "--log-every", "5", "--checkpoint-dir", str(tmp_path))
    with started_ranks(2, (*flags, "--checkpoint-every", "100000", "--preempt-on-sigterm")) as ranks:
        assert ranks[0].stderr is not None
        assert any("step 5/" in line for line in ranks[0].stderr)
        ranks[1].send_signal(signal.SIGTERM)
        output, errors = ranks[0].communicate(timeout=DEADLINE_SECONDS)
        ranks[1].wait(timeout=DEADLINE_SECONDS)
    assert [process.returncode for process in ranks] == [0, 0], errors
    record = end_record(output)
    assert record["outcome"] == "preempted"
    assert plain_store(tmp_path).newest_good() == record["last_step"]


@pytest.mark.parametrize(
    ("fault", "last_step"),
    [("skip-collective", 3), ("mismatched-collective", 2), ("stuck-data", 2)],
)
def test_a_rank_out_of_line_hangs_the_job_until_the_timeout_of_collectives(
    fault: str, last_step: int, tmp_path: Path
) -> None:
    """In the struck step; a skipped collective only at the checkpoint, of which rank 0 is a step short."""
    flags = (*EMULATED, "--steps", "100", "--checkpoint-dir", str(tmp_path), "--checkpoint-every", "4")
    hang = ("--fault", f"{fault}:rank=1,from=3", "--collective-timeout-seconds", "3")
    with started_ranks(2, (*flags, *hang)) as ranks:
        ending = ranks[:1] if fault == "stuck-data" else ranks  # who is stuck in its data never ends
        said = [process.communicate(timeout=DEADLINE_SECONDS) for process in ending]
    assert [process.returncode for process in ending] == [1] * len(ending)
    # Who waits out the time first closes its connections, and that ends the other's wait.
    assert any("Timed out waiting 3000ms" in errors for _, errors in said), said
    record = end_record(said[0][0])
    assert (record["outcome"], record["last_step"]) == ("failed", last_step)
