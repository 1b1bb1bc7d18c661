"""torch.distributed.checkpoint in a job of two gloo ranks that knows nothing of rankwatch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankwatch.checkpoint_paths import SUFFIX, read_checkpoints
from support.automatic.programs import Saved, errors, operations, run_program, saved

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SYNC, ASYNC, PROCESS, FAILURE, WRITER = 10, 20, 30, 40, 50
"""Steps after which the program does what is named."""
PROGRAM = f"""
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

class Refusing(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        raise OSError(28, "No space left on device")

def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.arange(4096.0).reshape(64, 64), mesh, [Shard(0)])
    state = {{"model": {{"weight": weight}}, "step": 3}}
    step({SYNC})
    dcp.save(state, checkpoint_id=HERE + "/sync")
    torch.save({{"torch": torch.get_rng_state()}}, HERE + f"/random_{{RANK}}.pt")
    step({ASYNC})
    upload = dcp.async_save(state, checkpoint_id=HERE + "/async")
    step({ASYNC} + 1)
    upload.result()
    step({PROCESS})
    upload = dcp.async_save(
        state, checkpoint_id=HERE + "/process", async_checkpointer_type=AsyncCheckpointerType.PROCESS
    )
    step({PROCESS} + 1)
    upload.result()
    step({FAILURE})
    upload = dcp.async_save(state, storage_writer=Refusing(HERE + "/failure"))
    step({FAILURE} + 1)
    try:
        upload.result()
    except BaseException as error:  # torch raises one that is no Exception
        assert "No space left" in str(error), error
    else:
        raise AssertionError("no exception")
    step({WRITER})
    dcp.save(state, storage_writer=dcp.FileSystemWriter(HERE + "/writer", thread_count=2))
    dcp.load(state, checkpoint_id=HERE + "/sync")
    step()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the job has run."""
    path = tmp_path_factory.mktemp("distributed")
    boxes = run_program(PROGRAM, path, ranks=2)
    assert len(boxes) == 2
    assert [errors(each) for each in boxes] == [0, 0]
    return path


def _boxes(folder: Path) -> list[Path]:
    return [folder / "boxes" / "program" / f"{rank}.blackbox" for rank in range(2)]


def _of(box: Path, step: int) -> list[Saved]:
    return [each for each in saved(box) if each.step == step]


def _written(folder: Path, rank: int) -> int:
    return sum(each.stat().st_size for each in folder.glob(f"__{rank}_*"))


def test_operations(folder: Path) -> None:
    """Each call is one operation on each rank, also where files of torch.save belong to it."""
    for box in _boxes(folder):
        assert [(each.operation, each.step, each.failed) for each in operations(box)] == [
            ("save", SYNC, False),
            ("save", ASYNC, False),
            ("save", PROCESS, False),
            ("save", FAILURE, True),
            ("save", WRITER, False),
            ("load", WRITER, False),
        ]


def test_synchronous_save(folder: Path) -> None:
    """All stages are recorded, and the bytes of this rank's shards. Only the coordinator joins plans."""
    for rank, box in enumerate(_boxes(folder)):
        *stages, operation = _of(box, SYNC)
        expected = {"state_dict", "local_plan", "write"} | ({"global_plan", "commit"} if rank == 0 else set())
        assert {each.stage for each in stages} == expected
        assert all(operation.start <= each.start <= each.end <= operation.end for each in stages)
        random = (folder / f"random_{rank}.pt").stat().st_size
        assert operation.bytes == _written(folder / "sync", rank) + random


@pytest.mark.parametrize(
    ("step", "name", "expected"),
    [
        (ASYNC, "async", {"stage", "synchronize_staging", "local_plan", "write"}),
        (PROCESS, "process", {"stage", "start_process"}),
    ],
    ids=["thread", "process"],
)
def test_asynchronous_save(folder: Path, step: int, name: str, expected: set[str]) -> None:
    """It is one operation, until its upload is done or the process that writes, which is no rank, has
    answered. It blocks only while it is called."""
    for rank, box in enumerate(_boxes(folder)):
        *stages, operation = _of(box, step)
        ends = {each.stage: each.end for each in stages}
        assert expected <= ends.keys()
        assert operation.bytes == _written(folder / name, rank) > 0
        assert 0.0 < operation.blocked_seconds < operation.end - operation.start
        assert ends["stage"] <= operation.start + operation.blocked_seconds
        assert max(ends[each] for each in expected) <= operation.end


def test_failure_in_the_background(folder: Path) -> None:
    """A failed upload is recorded when it fails, with the stage that failed."""
    for box in _boxes(folder):
        *stages, operation = _of(box, FAILURE)
        assert operation.failed
        assert [each.stage for each in stages if each.failed] == ["write"]


def test_writer_of_its_own(folder: Path) -> None:
    """A save with two threads and a load are told apart."""
    for rank, box in enumerate(_boxes(folder)):
        save, load = (each for each in _of(box, WRITER) if not each.stage)
        assert save.bytes == _written(folder / "writer", rank)
        assert {each.stage for each in _of(box, WRITER) if each.operation == "load"} >= {"read", "local_plan"}
        assert load.blocked_seconds > 0.0


def test_paths(folder: Path) -> None:
    """The folder of each operation is noted, whether it was given by name or by a writer."""
    for box in _boxes(folder):
        noted = read_checkpoints(box.with_suffix(SUFFIX))
        assert [(each.operation, each.step, Path(each.path).name, each.failed) for each in noted] == [
            ("load", WRITER, "sync", False),
            ("save", WRITER, "writer", False),
            ("save", FAILURE, "failure", True),
            ("save", PROCESS, "process", False),
            ("save", ASYNC, "async", False),
            ("save", SYNC, "sync", False),
        ]
        assert {Path(each.path).parent for each in noted} == {folder}
        (error,) = (each.error for each in noted if each.error)
        assert error == "OSError: [Errno 28] No space left on device"


def test_same_bytes(folder: Path, tmp_path: Path) -> None:
    """Every shard has the same bytes with and without recording."""
    run_program(PROGRAM, tmp_path, recorded=False, ranks=2)
    shards = [each.relative_to(folder) for each in folder.glob("*/*.distcp")]
    assert sum(bool(re.match(r"(sync|async|process|writer)/__[01]_", str(each))) for each in shards) >= 8
    for shard in shards:
        assert (tmp_path / shard).read_bytes() == (folder / shard).read_bytes()
