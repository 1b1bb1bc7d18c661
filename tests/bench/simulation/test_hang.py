"""Simulated hangs: which ranks stop, which wait, and what their recorders show.

The dumps have the form of real ones: torch writes the same keys, and its own tool reads them.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.simulation.hang import DESYNC, HangFault, HangKind, Plane
from bench.simulation.hang_job import HangJob, simulate_hang, write_snapshots
from bench.simulation.program import JobShape

SHAPE = JobShape(data_parallel=4, pipeline_parallel=2, tensor_parallel=2)
FAULTY = 5


def pending(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """What has not completed; of a batch its message, whose state the entry after it holds."""
    entries = snapshot["entries"]
    messages = [None, *(entry if entry["is_p2p"] else None for entry in entries)]
    return [
        message or entry
        for message, entry in zip(messages, entries, strict=False)
        if entry["state"] != "completed" and not entry["is_p2p"]
    ]


@pytest.mark.parametrize("plane", Plane)
@pytest.mark.parametrize("kind", HangKind)
def test_one_rank_stops_the_job(kind: HangKind, plane: Plane) -> None:
    """Every other rank waits for ever. A stopped rank has nothing pending; a desynchronised one waits."""
    desync, healthy = kind in DESYNC, kind is HangKind.NONE
    if desync and plane is Plane.PIPELINE:
        plane = Plane.DATA
    done = simulate_hang(HangJob(shape=SHAPE, fault=HangFault(kind=kind, ranks=(FAULTY,), plane=plane)))
    assert sum(each.blocked for each in done.tracks) == (0 if healthy else 16 if desync else 15)
    assert set(done.snapshots) == set(range(16)) - ({FAULTY} if kind is HangKind.KILLED else set())
    for rank, snapshot in done.snapshots.items():
        receives_or_reduces = [each for each in pending(snapshot) if "send" not in each["profiling_name"]]
        assert bool(receives_or_reduces) == (not healthy and (rank != FAULTY or desync)), rank


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
