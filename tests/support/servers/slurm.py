"""A SLURM cluster of one node on loopback: real munged, slurmctld and slurmd, without cgroups."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.jobs.launching import environment, free_port
from support.servers.prometheus import poll

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
