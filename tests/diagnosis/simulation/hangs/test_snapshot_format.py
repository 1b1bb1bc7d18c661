"""The simulated dumps have the form of real ones: torch writes the same keys, and its own tool reads them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwatch_diagnosis.simulation.hangs.fault import HangFault, Plane
from rankwatch_diagnosis.simulation.hangs.job import HangJob, simulate_hang
from rankwatch_diagnosis.simulation.hangs.snapshots import Recorder, write_snapshots
from rankwatch_diagnosis.simulation.shape import JobShape

_REAL = """
import json, os, pickle, sys
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch
from torch._C._distributed_c10d import _dump_fr_trace
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
torch.distributed.all_reduce(torch.ones(4))
dump = pickle.loads(_dump_fr_trace(True, False, False))
torch.distributed.destroy_process_group()
print(json.dumps(dump))
"""

_TORCHFRTRACE = "import sys; from torch.distributed.flight_recorder.fr_trace import main; main(sys.argv[1:])"


def snapshots(stages: int = 2) -> dict[int, dict[str, Any]]:
    shape = JobShape(data_parallel=4, pipeline_parallel=stages, tensor_parallel=2)
    job = HangJob(shape=shape, fault=HangFault(ranks=(5,), plane=Plane.DATA), steps=4)
    return dict(simulate_hang(job).snapshots)


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.process
def test_keys_of_torch(tmp_path: Path) -> None:
    """A real dump of a gloo group, of the torch that is installed, has the same keys."""
    real = json.loads(run(_REAL, str(tmp_path / "store")))
    simulated = json.loads(json.dumps(snapshots()[0]))
    assert real.keys() == simulated.keys()
    assert real["version"] == simulated["version"]
    assert real["entries"][0].keys() == simulated["entries"][0].keys()
    assert real["pg_status"]["0"].keys() == simulated["pg_status"]["0"].keys()
    for name, value in real["entries"][0].items():
        other = simulated["entries"][0][name]
        assert isinstance(other, type(value)) or value is None or other is None, name


@pytest.mark.process
def test_torchfrtrace_reads_the_pickles(tmp_path: Path) -> None:
    """It finds the missing rank. It cannot handle messages of a pipeline in both directions."""
    write_snapshots(snapshots(stages=1), tmp_path, "pickle")
    output = run(_TORCHFRTRACE, str(tmp_path), "--prefix", "_dump_")
    assert "missing ranks: {5}" in output


def test_json_equals_pickle(tmp_path: Path) -> None:
    """Except for unknown times: None in a pickle, 0 in JSON, as torch writes them."""
    simulated = snapshots()
    write_snapshots(simulated, tmp_path / "json", "json")
    write_snapshots(simulated, tmp_path / "pickle", "pickle")
    assert len(list((tmp_path / "json").iterdir())) == len(list((tmp_path / "pickle").iterdir())) == 16
    for rank in simulated:
        text = json.loads((tmp_path / "json" / f"_dump_{rank}.json").read_text())
        binary = pickle.loads((tmp_path / "pickle" / f"_dump_{rank}").read_bytes())
        for entry in text["entries"]:
            entry["time_discovered_started_ns"] = entry["time_discovered_started_ns"] or None
            entry["time_discovered_completed_ns"] = entry["time_discovered_completed_ns"] or None
        assert text == json.loads(json.dumps(binary))


def test_older_format() -> None:
    """2.9 has nccl_version where 2.10 has comm_lib_version."""
    job = HangJob(fault=HangFault(ranks=(1,)), recorder=Recorder(version="2.9"))
    dump = simulate_hang(job).snapshots[0]
    assert dump["version"] == "2.9"
    assert "nccl_version" in dump
    assert "comm_lib_version" not in dump
