"""The SLURM job of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch_agent.sources.attribution.slurm import (
    MAX_ENVIRONMENT_BYTES,
    job_of_process,
    parse_environment,
)


def test_a_process_of_a_job_is_told_by_its_environment() -> None:
    """Of a real process, by the real /proc."""
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "4711"}
    command = [sys.executable, "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert job_of_process(Path("/proc"), process.pid) == "4711"
        process.kill()
        process.wait()
        assert job_of_process(Path("/proc"), process.pid) is None


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (b"", None),
        (b"PATH=/bin\0SLURM_JOB_ID=7\0", "7"),
        (b"SLURM_JOB_ID=7_2\0SLURM_JOB_ID=8", "7_2"),
        (b"MY_SLURM_JOB_ID=7\0SLURM_JOB_ID_OLD=7\0", None),
        (b"SLURM_JOB_ID=\0", None),
        (b"SLURM_JOB_ID=\xff\xfe\0", None),
        (b"SLURM_JOB_ID=two words\0", None),
        (b"SLURM_JOB_ID=" + b"7" * 65, None),
    ],
)
def test_only_the_id_of_a_job_is_taken_for_one(environment: bytes, job: str | None) -> None:
    """Anybody may set the variable."""
    assert parse_environment(environment) == job


def test_no_more_of_an_environment_is_read_than_a_job_needs(tmp_path: Path) -> None:
    """A process decides how long its own is."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "environ").write_bytes(b"A" * MAX_ENVIRONMENT_BYTES + b"\0SLURM_JOB_ID=7\0")
    assert job_of_process(tmp_path, 1) is None
