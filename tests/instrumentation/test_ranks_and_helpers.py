"""Which processes are ranks, and of which run: real launchers, and real helpers of multiprocessing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.records import Header
from rankwatch.lifecycle import ERROR_FILE_SUFFIX
from support.paths import ROOT
from support.servers.prometheus import reserved_port
from support.training.blackbox import box, of_kind

JOBS = ROOT / "tests" / "support" / "jobs"
LAUNCHED, HELPERS = str(JOBS / "launched.py"), str(JOBS / "helpers.py")


def environment(directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        "RANKWATCH_DIR": str(directory),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def python(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment(directory), capture_output=True, text=True, timeout=600, check=False
    )


def headers(directory: Path) -> list[Header]:
    """The headers of all boxes, by rank. Beside them only torchrun's error files are left noted."""
    found = []
    for path in directory.rglob("*"):
        if path.is_file() and path.suffix != ERROR_FILE_SUFFIX:
            reader = Reader(path)
            assert reader.now().steps_completed == 3
            found.append(reader.header)
            reader.close()
    return sorted(found, key=lambda each: each.identity.rank)


def assert_two_ranks_of_one_run(found: list[Header]) -> None:
    assert [each.identity.rank for each in found] == [0, 1]
    assert [each.identity.world_size for each in found] == [2, 2]
    assert len({each.identity.run for each in found}) == 1


@pytest.mark.process
@pytest.mark.parametrize("way", ["spawn", "lightning"])
def test_ranks_without_variables(tmp_path: Path, way: str) -> None:
    """Only torch.distributed tells them apart, before or after `start`, and its store names the run."""
    pytest.importorskip("torch")
    boxes = tmp_path / "boxes"
    done = python(boxes, LAUNCHED, way, str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    assert "records nothing" not in done.stderr
    found = headers(boxes)
    assert_two_ranks_of_one_run(found)
    assert found[0].identity.run.startswith("launched-")
    assert [each.identity.local_rank for each in found] == [0, 1]


@pytest.mark.process
def test_torchrun_on_two_nodes(tmp_path: Path) -> None:
    """Without an id, the ranks of both nodes agree through torchrun's store on a name with the start time."""
    pytest.importorskip("torch")
    with reserved_port() as port:
        nodes = [torchrun_on_a_node(port, tmp_path) for _ in range(2)]
        for node in nodes:
            _, stderr = node.communicate(timeout=600)
            assert node.returncode == 0, stderr
    found = headers(tmp_path)
    assert_two_ranks_of_one_run(found)
    assert re.fullmatch(r"launched-.+-\d+-\d{8}T\d{6}", found[0].identity.run)


def torchrun_on_a_node(port: int, directory: Path) -> subprocess.Popen[str]:
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d", "--nproc-per-node=1"]
    return subprocess.Popen(
        [sys.executable, *torchrun, f"--rdzv-endpoint=127.0.0.1:{port}", LAUNCHED, "torchrun"],
        env=environment(directory),
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_only_the_trainer(done: subprocess.CompletedProcess[str], directory: Path) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    path = box(directory)
    assert [each.name for each in path.parent.iterdir()] == ["0.blackbox"]
    assert [each.name for each in of_kind(path, RecordKind.LIFECYCLE)] == ["started", "finished"]
    assert [each.payload[0] for each in of_kind(path, RecordKind.STEP)] == list(range(6))


@pytest.mark.process
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_helpers(tmp_path: Path, method: str) -> None:
    """Children that import the script again record nothing. The box of the trainer stays as it is."""
    assert_only_the_trainer(python(tmp_path, HELPERS, method), tmp_path)


@pytest.mark.process
def test_data_loader(tmp_path: Path) -> None:
    """The same with the workers of a real data loader."""
    pytest.importorskip("torch")
    assert_only_the_trainer(python(tmp_path, HELPERS, "torch"), tmp_path)
