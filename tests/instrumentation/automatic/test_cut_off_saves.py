"""Saves that a rank does not live to finish, in jobs that know nothing of rankwatch."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rankwatch.checkpoint_paths import SUFFIX, read_checkpoints
from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from support.automatic.programs import errors, run_program
from support.training.ranks import values

pytest.importorskip("torch.distributed.checkpoint")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

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
