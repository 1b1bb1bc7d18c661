"""Real SLURM with `rankwatch run`: srun, torchrun in a batch job, a job that is requeued and cancelled."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch_diagnosis.run.engine import diagnose_run
from support.jobs.launching import LOOP, RUN, STEPS, Rank, environment, free_port, ranks
from support.servers.prometheus import poll

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


PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
_SYSTEM = "/usr/sbin:/sbin"
_SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The running cluster."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, *command: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command such as srun in the environment of a job."""
        env = environment(directory, SLURM_CONF=str(self._folder / "slurm.conf"), **variables)
        return subprocess.run(
            command, env=env, cwd=directory, capture_output=True, text=True, timeout=240, check=False
        )

    def submit(self, script: str, *options: str, directory: Path, **variables: str) -> str:
        """Submit a batch script of two tasks that writes into `directory`/out; returns the id of its job."""
        path = directory / "job.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        given = ["--parsable", "-n", "2", "--output", str(directory / "out"), "--open-mode=append", *options]
        ended = self.run("sbatch", *given, str(path), directory=directory, **variables)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def state(self, job: str, directory: Path) -> str:
        """State of a job, such as RUNNING."""
        shown = self.run("scontrol", "-o", "show", "job", job, directory=directory).stdout
        return next((each[9:] for each in shown.split() if each.startswith("JobState=")), "")


@contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Start the daemons, and end them. Skips the test where they are not installed or cannot run."""
    path = f"{os.environ['PATH']}:{_SYSTEM}"
    missing = [each for each in PROGRAMS if shutil.which(each, path=path) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and SLURM (Debian: slurm-wlm); missing: {', '.join(missing) or 'root'}")
    host = socket.gethostname().partition(".")[0]
    settings = _SETTINGS.format(host=host, folder=folder, controller=free_port(), node=free_port())
    (folder / "slurm.conf").write_text(settings)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    munge = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in _MUNGE_FILES]
    env = {**os.environ, "PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "daemons.log").open("wb") as log:
            daemons.append(_daemon(["munged", "--foreground", "--force", *munge], env, log.fileno()))
            _await(lambda: (folder / "munge.socket").exists(), "socket of munged", daemons)
            daemons.append(_daemon(["slurmctld", "-D"], env, log.fileno()))
            daemons.append(_daemon(["slurmd", "-D", "-N", host], env, log.fileno()))
        slurm = Slurm(folder)
        _await(lambda: "idle" in slurm.run("sinfo", "-ho%t", directory=folder).stdout, "idle node", daemons)
        yield slurm
    finally:
        for each in reversed(daemons):
            each.terminate()
            each.wait(60)


_MUNGE_FILES = ("key-file", "socket", "pid-file", "log-file", "seed-file")


def _daemon(command: list[str], env: dict[str, str], log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def _await(question: Callable[[], bool], what: str, daemons: list[subprocess.Popen[bytes]]) -> None:
    def answer() -> bool:
        for each in daemons:
            if each.poll() is not None:
                pytest.skip(f"a daemon of SLURM does not run here: {each.args}, status {each.returncode}")
        return question()

    poll(answer, 120.0, what)
