"""Real SLURM with `rankwatch run`: srun, torchrun in a batch job, a job that is requeued and cancelled."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch_diagnosis.run.engine import diagnose_run
from support.jobs.launching import LOOP, RUN, STEPS, Rank, free_port, ranks
from support.servers.prometheus import poll
from support.servers.slurm import Slurm, cluster

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PYTHON = sys.executable
LIMIT_SECONDS = 180.0


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def test_srun(slurm: Slurm, tmp_path: Path) -> None:
    """Each task is a rank of a run that has the name of the job and its step; one card is printed."""
    ended = slurm.run(*RUN, "srun", "-n", "2", PYTHON, str(LOOP), directory=tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = ranks(tmp_path)
    run = found[0].run
    assert run.startswith("slurm-") and run.endswith(".0")
    assert found == [Rank(run, 0, 2, 0, STEPS), Rank(run, 1, 2, 1, STEPS)]
    assert ended.stderr.count(f"rankwatch: run {run} finished, {STEPS} steps") == 1


def test_nothing_exported(slurm: Slurm, tmp_path: Path) -> None:
    """Below `srun --export=NONE` nothing is recorded, and one line says so before the training."""
    show = "import os; print(os.environ.get('PYTHONPATH'))"
    ended = slurm.run(*RUN, "srun", "--export=NONE", PYTHON, "-c", show, directory=tmp_path)
    assert ended.stdout == "None\n"
    assert ended.stderr.startswith("rankwatch run: nothing will be recorded: srun with --export=NONE")
    assert ranks(tmp_path) == []


def test_torchrun_on_each_node(slurm: Slurm, tmp_path: Path) -> None:
    """The common form: one task a node, each a torchrun. The ranks are torchrun's, the name is the job's."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *rendezvous]
    job = slurm.submit(
        shlex.join([*RUN, "srun", *torchrun, str(LOOP)]), "--wait", "--job-name", "llama", directory=tmp_path
    )
    said = (tmp_path / "out").read_text()
    assert ranks(tmp_path) == [Rank(f"slurm-{job}.0", rank, 2, 0, STEPS) for rank in (0, 1)], said
    assert said.count(f"rankwatch: run slurm-{job}.0 finished") == 1


def test_requeued_and_cancelled(slurm: Slurm, tmp_path: Path) -> None:
    """A job that starts again goes on as the next attempt of the same run. `scancel` terminates its ranks."""

    def is_training(attempt: int) -> bool:
        return [each.attempt for each in ranks(tmp_path) if each.steps] == [attempt, attempt]

    script = shlex.join(["srun", *RUN, PYTHON, str(LOOP)])
    job = slurm.submit(script, "--requeue", directory=tmp_path, STEPS="10000", PAUSE_SECONDS="0.2")
    poll(lambda: is_training(0), LIMIT_SECONDS, "training of both ranks")
    assert slurm.run("scontrol", "requeue", job, directory=tmp_path).returncode == 0
    poll(lambda: slurm.state(job, tmp_path) == "PENDING", LIMIT_SECONDS, "requeued job")
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now", directory=tmp_path)
    poll(lambda: is_training(1), LIMIT_SECONDS, "second attempt")
    slurm.run("scancel", job, directory=tmp_path)
    poll(lambda: slurm.state(job, tmp_path) == "CANCELLED", LIMIT_SECONDS, "cancelled job")
    (run,) = (tmp_path / "boxes").iterdir()
    assert run.name == f"slurm-{job}.0"
    poll(lambda: diagnose_run(run).state == "terminated", LIMIT_SECONDS, "end of the ranks")
    assert {each["state"] for each in diagnose_run(run).ranks_seen} == {"terminated"}
