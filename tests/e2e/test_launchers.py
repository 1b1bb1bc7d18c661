"""`rankwatch run` with real launchers: each rank is recorded once, in one run, with its place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.frameworks.jobs import SCRIPTS
from support.jobs.launching import LOOP, RUN, STEPS, Rank, environment, free_port, launch, ranks, require

pytest.importorskip("torch")
pytestmark = pytest.mark.process

PYTHON = sys.executable
LOOP_OF_ACCELERATE = SCRIPTS / "accelerate_loop.py"
TORCHRUN = [PYTHON, "-m", "torch.distributed.run"]


def assert_recorded(ended: subprocess.CompletedProcess[str], directory: Path, attempt: int = 0) -> str:
    """Both ranks of a node have trained to the end in one run, and one card was printed. Returns the run."""
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = ranks(directory)
    (run,) = {each.run for each in found}
    assert found == [Rank(run, 0, 2, 0, STEPS, attempt), Rank(run, 1, 2, 1, STEPS, attempt)]
    assert ended.stderr.count(f"rankwatch: run {run} finished, {STEPS} steps") == 1, ended.stderr
    assert ended.stderr.count("1 x save") == 1
    return run


@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
def test_open_mpi(inside: bool, tmp_path: Path) -> None:
    """`rankwatch run -- mpirun ...` and `mpirun ... rankwatch run --`; the run is named after the MPI job."""
    mpirun = [require("mpirun.openmpi", "openmpi-bin"), "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    ended = launch([*mpirun, *(RUN if inside else ()), PYTHON, str(LOOP)], tmp_path, inside=inside)
    assert assert_recorded(ended, tmp_path).startswith("mpi-")


def test_mpich(tmp_path: Path) -> None:
    """Hydra names no job, so the ranks agree on a name. torch does not know the local rank, Hydra does."""
    ended = launch([require("mpiexec.hydra", "mpich"), "-n", "2", PYTHON, str(LOOP)], tmp_path)
    assert assert_recorded(ended, tmp_path).startswith("any_launcher-")


def test_two_agents(tmp_path: Path) -> None:
    """Two torchruns that meet by c10d run a module; the ranks agree on a name through the store."""
    (tmp_path / "loop.py").symlink_to(LOOP)
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    command = [*RUN, *TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", *rendezvous, "-m", "loop"]
    nodes = [
        subprocess.Popen(command, env=environment(tmp_path), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = "".join(each.communicate(timeout=240)[1] for each in nodes)
    assert [each.returncode for each in nodes] == [0, 0], said
    found = ranks(tmp_path)
    run = found[0].run
    assert re.fullmatch(r"loop-.+-\d+-\d{8}T\d{6}", run)
    assert found == [Rank(run, 0, 2, 0, STEPS), Rank(run, 1, 2, 0, STEPS)]
    assert said.count(f"rankwatch: run {run} finished, {STEPS} steps") == 1


def test_shells_that_start_again(tmp_path: Path) -> None:
    """By its old name torchrun starts shells and tees files; the boxes are those of the second attempt."""
    launcher = [PYTHON, "-W", "ignore", "-m", "torch.distributed.launch", "--use-env", "--standalone"]
    logs = ["--log-dir", str(tmp_path / "logs"), "--redirects", "3", "--tee", "3"]
    shell = ["--no-python", "bash", "-c", f"{PYTHON} {LOOP}"]
    ended = launch(
        [*launcher, "--nproc-per-node", "2", "--max-restarts", "1", *logs, *shell],
        tmp_path,
        FAIL="1:0",
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",  # torch 2.13: gloo would look for the addresses of before
    )
    run = assert_recorded(ended, tmp_path, attempt=1)
    (written,) = (tmp_path / "logs").rglob("attempt_1/0/stderr.log")
    assert f"rankwatch: run {run} finished" in written.read_text()


@pytest.mark.frameworks
def test_accelerate_config(tmp_path: Path) -> None:
    """`accelerate launch` with a config file and a module starts two processes."""
    pytest.importorskip("accelerate")
    (tmp_path / "loop.py").symlink_to(LOOP)
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",  # Accelerate starts several processes on CPUs with mpirun only
        "num_machines": 1,
        "num_processes": 2,
        "machine_rank": 0,
        "gpu_ids": "all",
        "main_process_port": free_port(),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    accelerate = [PYTHON, "-m", "accelerate.commands.launch", "--config_file", "config.json"]
    assert_recorded(launch([*accelerate, "--module", "loop"], tmp_path), tmp_path)


@pytest.mark.frameworks
def test_accelerate_with_mpi(tmp_path: Path) -> None:
    """`accelerate launch --cpu --mpirun_hostfile`: Accelerate finds the ranks, and the run has MPI's name."""
    pytest.importorskip("accelerate")
    require("mpirun.openmpi", "openmpi-bin")
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    accelerate = ["accelerate", "launch", "--cpu", "--num_processes", "2", "--mpirun_hostfile", "hosts"]
    ended = launch(
        [*accelerate, str(LOOP_OF_ACCELERATE), str(tmp_path), "plain"],
        tmp_path,
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_rmaps_base_oversubscribe="1",
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = ranks(tmp_path)
    assert [each[1:5] for each in found] == [(0, 2, 0, 4), (1, 2, 1, 4)]
    assert found[0].run == found[1].run and found[0].run.startswith("mpi-")


@pytest.mark.frameworks
def test_deepspeed(tmp_path: Path) -> None:
    """DeepSpeed's launcher, which gives its ranks an argument of its own."""
    pytest.importorskip("deepspeed")
    command = ["deepspeed", "--num_accelerators", "2", "--master_port", str(free_port()), str(LOOP)]
    assert_recorded(launch(command, tmp_path, DS_ACCELERATOR="cpu"), tmp_path)
