"""Loops that wait for an asynchronous save before the next one, and saves that a rank does not finish."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import FAILED_BESIDE, RecordKind
from rankwatch.checkpoint_paths import SUFFIX, read_checkpoints
from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from support.automatic.programs import errors, run_program, saved
from support.training.blackbox import of_kind
from support.training.ranks import values

pytest.importorskip("torch.distributed.checkpoint")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

WAITED, IMPATIENT, DONE, FAILED, STAGED = 10, 20, 30, 40, 50
PROGRAM = f"""
import threading
from concurrent.futures import TimeoutError
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

given_up = threading.Event()

def until_main_waits(times=1):
    main = threading.main_thread().ident
    while times:
        frame, names = sys._current_frames()[main], set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        if names & {{"result", "exception"}}:
            times -= 1
        time.sleep(0.005)

class Slow(dcp.FileSystemWriter):
    # Writes once the training thread waits for it.
    def write_data(self, plan, planner):
        until_main_waits(4)
        return super().write_data(plan, planner)

class Late(Slow):
    # Writes once the training thread has lost its patience and waits again.
    def write_data(self, plan, planner):
        given_up.wait()
        return super().write_data(plan, planner)

class Failing(Slow):
    def write_data(self, plan, planner):
        until_main_waits()
        raise OSError(28, "No space left on device")

def main():
    dist.init_process_group("gloo")
    state = {{"model": {{"weight": torch.arange(4096.0)}}}}
    step({WAITED})
    upload = dcp.async_save(state, storage_writer=Slow(HERE + "/waited"))
    step({WAITED} + 1)
    assert upload.result() is not None
    assert upload.result() is not None
    dcp.async_save(state, checkpoint_id=HERE + "/next").result()
    step({IMPATIENT})
    upload = dcp.async_save(state, storage_writer=Late(HERE + "/impatient"))
    try:
        upload.result(timeout=0.001)
    except TimeoutError:
        given_up.set()
    upload.exception()
    step({DONE})
    upload = dcp.async_save(state, checkpoint_id=HERE + "/done")
    while not upload.done():
        time.sleep(0.001)
    upload.result()
    step({FAILED})
    upload = dcp.async_save(state, storage_writer=Failing(HERE + "/failed"))
    try:
        upload.result()
    except BaseException as error:  # torch raises one that is no Exception
        assert "No space left" in str(error), error
    step({STAGED})
    try:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    except ImportError:
        return
    class SlowStager(DefaultStager):
        def _stage(self, *args, **kwargs):
            until_main_waits()
            return super()._stage(*args, **kwargs)
    stager = SlowStager(StagingOptions(False, False, True, False))
    reply = dcp.async_save(state, checkpoint_id=HERE + "/staged", async_stager=stager)
    reply.staging_completion.result()
    step({STAGED} + 1)
    reply.upload_completion.result()
    stager.close()

if __name__ == "__main__":
    main()
    step()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (found,) = run_program(PROGRAM, tmp_path_factory.mktemp("waits"))
    assert errors(found) == 0
    return found


def waits(box: Path, step: int) -> list[tuple[float, float]]:
    """Beginning and end of the waits for the save of a step, which all count as blocking."""
    *stages, operation = (each for each in saved(box) if each.step == step)
    assert operation.operation == "save" and not operation.stage
    found = [(each.start, each.end) for each in stages if each.stage == "wait_previous"]
    assert all(operation.start < start <= end <= operation.end for start, end in found)
    assert operation.blocked_seconds > sum(end - start for start, end in found)
    assert operation.blocked_seconds <= operation.end - operation.start
    return found


def test_wait(box: Path) -> None:
    """The wait for the save before is a stage of that save, and phase `checkpoint` of the loop."""
    ((start, end),) = waits(box, WAITED)
    phases = [each for each in of_kind(box, RecordKind.PHASE) if each.name == "checkpoint"]
    assert any(each.start <= start and end <= each.end + 0.1 for each in phases)


def test_wait_with_a_timeout(box: Path) -> None:
    """Each wait counts, also one that gives up."""
    assert len(waits(box, IMPATIENT)) == 2


def test_no_wait(box: Path) -> None:
    """Nothing is waited for where the save has ended."""
    assert waits(box, DONE) == []


def test_failed_save(box: Path) -> None:
    """An exception of the save reaches the loop that waits for it, and the wait counts."""
    assert len(waits(box, FAILED)) == 1


def test_wait_for_staging(box: Path) -> None:
    """A loop that waits for the copy before it changes the weights is blocked by that, too."""
    found = [each for each in saved(box) if each.step == STAGED]
    if not found:
        pytest.skip("this torch has no stager that copies in the background")
    assert [each.stage for each in found].count("synchronize_staging") == 1
    waits(box, STAGED)


def test_overlaps(box: Path) -> None:
    """A save overlaps if training has waited for the one before, which began before the last step. One whose
    end is waited for at once makes the next one late, but overlaps with none."""
    began = of_kind(box, RecordKind.CHECKPOINT_BEGAN)
    overlaps = [int(step) for step, overlaps in (each.payload for each in began) if overlaps]
    assert overlaps == [WAITED + 1]
    ended = {each.start for each in of_kind(box, RecordKind.CHECKPOINT) if not each.payload[2]}
    assert {each.start for each in began} == ended


def test_late_failure(box: Path) -> None:
    """A save whose failure comes up after its call is told apart from one whose call fails."""
    outcomes = {int(each.payload[1]): each.payload[3] for each in of_kind(box, RecordKind.CHECKPOINT)}
    assert outcomes[FAILED] == FAILED_BESIDE


pytest.importorskip("torch.distributed.checkpoint")

GOOD, CUT_OFF = 10, 20
SHARDED = f"""
import signal
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

class Killed(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write_data(plan, planner)

def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    state = {{"weight": distribute_tensor(torch.arange(64.0), mesh, [Shard(0)])}}
    step({GOOD})
    dcp.save(state, checkpoint_id=HERE + "/good")
    step({CUT_OFF})
    CALL(state, storage_writer=Killed(HERE + "/cut_off"))WAIT
    step()

main()
"""
WHOLE = f"""
import signal
class Deadly:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)
state = {{"model": torch.nn.Linear(8, 8).state_dict()}}
step({GOOD})
torch.save(state, HERE + "/good.partial")
os.replace(HERE + "/good.partial", HERE + "/good.pt")
step({CUT_OFF})
torch.save(state | {{"deadly": Deadly()}}, HERE + "/cut_off.pt")
"""


def _outcomes(found: Collection, rank: int) -> dict[str, float]:
    operations = values(found, "rankwatch_checkpoint_operations_total")
    return {
        outcome: count
        for (_, number, operation, outcome), count in operations.items()
        if (number, operation) == (str(rank), "save") and count
    }


@pytest.mark.parametrize("call", ["save", "async_save"])
def test_sharded_save(call: str, tmp_path: Path) -> None:
    """One of two ranks is killed while it writes: its save is unfinished, that of the other one fails, and
    the checkpoint before stays the newest that is complete."""
    wait = ".result()" if call == "async_save" else ""
    program = SHARDED.replace("CALL", f"dcp.{call}").replace("WAIT", wait)
    boxes = run_program(program, tmp_path, ranks=2, status=(1, -signal.SIGKILL))
    found = RanksCollector(directory=tmp_path / "boxes").collect()
    assert _outcomes(found, 0) == {"success": 1, "failure": 1}
    assert _outcomes(found, 1) == {"success": 1, "unfinished": 1}
    saved = values(found, "rankwatch_checkpoint_last_saved_step")
    assert saved == {("program", "0"): GOOD, ("program", "1"): GOOD}
    background = values(found, "rankwatch_checkpoint_background_failures_total")
    assert background["program", "0"] == (call == "async_save")
    assert [errors(each) for each in boxes] == [0, 0]


def test_whole_save(tmp_path: Path) -> None:
    """Only rank 0 saves, and is killed in torch.save: the note has the last file that is complete."""
    (box,) = run_program(WHOLE, tmp_path, status=(-signal.SIGKILL,))
    found = RanksCollector(directory=tmp_path / "boxes").collect()
    assert _outcomes(found, 0) == {"success": 1, "unfinished": 1}
    assert values(found, "rankwatch_checkpoint_last_saved_step") == {("program", "0"): GOOD}
    (noted,) = read_checkpoints(box.with_suffix(SUFFIX))
    assert (noted.step, noted.path) == (GOOD, str(tmp_path / "good.pt"))
