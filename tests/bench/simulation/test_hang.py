"""Simulated hangs: which ranks stop, which wait, and what their recorders show.

The dumps have the form of real ones: torch writes the same keys, and its own tool reads them.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.simulation.hang import DESYNC, HangFault, HangKind, Plane
from bench.simulation.hang_job import HangJob, SimulatedHang, simulate_hang, write_snapshots
from bench.simulation.program import JobShape

SHAPE = JobShape(data_parallel=4, pipeline_parallel=2, tensor_parallel=2)
FAULTY = 5


def faults() -> Iterator[HangFault]:
    for kind in HangKind:
        for plane in Plane:
            if kind is not HangKind.NONE and not (plane is Plane.PIPELINE and kind in DESYNC):
                yield HangFault(kind=kind, ranks=(FAULTY,), plane=plane)


def hang(fault: HangFault) -> SimulatedHang:
    return simulate_hang(HangJob(shape=SHAPE, fault=fault))


def pending(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """What has not completed; of a batch its message, whose state the entry after it holds."""
    entries = snapshot["entries"]
    messages = [None, *(entry if entry["is_p2p"] else None for entry in entries)]
    return [
        message or entry
        for message, entry in zip(messages, entries, strict=False)
        if entry["state"] != "completed" and not entry["is_p2p"]
    ]


@pytest.mark.parametrize("fault", tuple(faults()), ids=lambda fault: f"{fault.kind}-{fault.plane}")
def test_one_rank_stops_the_job(fault: HangFault) -> None:
    """Every other rank waits for ever. A stopped rank has nothing pending; a desynchronised one waits."""
    done = hang(fault)
    desync = fault.kind in DESYNC
    assert done.truth.state == ("desync" if desync else "hang")
    assert done.truth.ranks == (FAULTY,)
    assert done.truth.blocked_ranks == (16 if desync else 15)
    missing = (FAULTY,) if fault.kind is HangKind.KILLED else ()
    assert done.truth.missing_ranks == missing
    assert set(done.snapshots) == set(range(16)) - set(missing)
    for rank, snapshot in done.snapshots.items():
        receives_or_reduces = [each for each in pending(snapshot) if "send" not in each["profiling_name"]]
        assert bool(receives_or_reduces) == (rank != FAULTY or desync)


def test_healthy_job() -> None:
    """No entry is pending, and enqueued equals completed in every group."""
    done = hang(HangFault(kind=HangKind.NONE, ranks=()))
    assert (done.truth.state, done.truth.ranks, done.truth.blocked_ranks) == ("ok", (), 0)
    for snapshot in done.snapshots.values():
        assert not pending(snapshot)
        for status in snapshot["pg_status"].values():
            assert status["last_enqueued_collective"] == status["last_completed_collective"]


def test_peers_of_a_sleeper() -> None:
    """They wait in its group, one sequence number further than it got."""
    done = hang(HangFault(ranks=(FAULTY,), plane=Plane.DATA))
    group = done.truth.group
    peers = [rank for rank in (1, 3, 7) if rank != FAULTY]
    (last,) = {
        max(entry["collective_seq_id"] for entry in done.snapshots[rank]["entries"] if of(entry, group))
        for rank in peers
    }
    own = [entry for entry in done.snapshots[FAULTY]["entries"] if of(entry, group)]
    assert max(entry["collective_seq_id"] for entry in own) == last - 1
    for rank in peers:
        (waiting,) = pending(done.snapshots[rank])
        assert (waiting["collective_seq_id"], waiting["profiling_name"]) == (last, "nccl:all_reduce")


def of(entry: dict[str, Any], group: str | None) -> bool:
    """True if an entry belongs to the group."""
    return bool(entry["process_group"][0] == group)


@pytest.mark.parametrize(
    ("kind", "field"), [(HangKind.OTHER_SIZE, "input_sizes"), (HangKind.OTHER_OPERATION, "profiling_name")]
)
@pytest.mark.parametrize("plane", [Plane.DATA, Plane.TENSOR, Plane.WORLD])
def test_desync(kind: HangKind, field: str, plane: Plane) -> None:
    """The rank differs from its peers at the sequence number at which the group stands."""
    done = hang(HangFault(kind=kind, ranks=(FAULTY,), plane=plane))
    number = {
        entry["collective_seq_id"] for entry in pending(done.snapshots[FAULTY]) if of(entry, done.truth.group)
    }
    calls = {
        rank: str(entry[field])
        for rank, snapshot in done.snapshots.items()
        for entry in snapshot["entries"]
        if of(entry, done.truth.group) and {entry["collective_seq_id"]} == number
    }
    own = calls.pop(FAULTY)
    assert calls
    assert own not in calls.values()


def test_skipped_bucket() -> None:
    """The rank calls the second bucket where its peers call the first."""
    done = hang(HangFault(kind=HangKind.SKIP, ranks=(FAULTY,), plane=Plane.DATA))
    sizes = {rank: pending(done.snapshots[rank])[0]["input_sizes"] for rank in (1, 3, 5, 7)}
    assert sizes.pop(5) == [[5_242_880]]
    assert set(map(str, sizes.values())) == {"[[6553600]]"}


def test_skipped_last_collective() -> None:
    """The rank has finished with nothing pending, so it looks like one that stopped."""
    fault = HangFault(kind=HangKind.SKIP, ranks=(FAULTY,), plane=Plane.WORLD, step=5)
    done = hang(fault)
    assert (done.truth.state, done.truth.ranks, done.truth.blocked_ranks) == ("hang", (FAULTY,), 15)
    assert not pending(done.snapshots[FAULTY])


def test_several_faulty_ranks() -> None:
    """Two ranks of different pipelines stop."""
    done = hang(HangFault(kind=HangKind.STUCK_DATA, ranks=(2, 13)))
    assert done.truth.ranks == (2, 13)
    assert done.truth.blocked_ranks == 14
    assert not pending(done.snapshots[2])


def test_messages() -> None:
    """A message is a part without a state and the entry that closes it, with its numbers and no tensors.
    ProcessGroupNCCL.cpp, `pointToPoint` and `endCoalescing`."""
    entries = hang(HangFault(ranks=(FAULTY,))).snapshots[0]["entries"]
    parts = [index for index, entry in enumerate(entries) if entry["is_p2p"]]
    assert parts
    for index in parts:
        part, end = entries[index : index + 2]
        assert (part["state"], part["retired"], end["profiling_name"]) == (
            "scheduled",
            False,
            "nccl:coalesced",
        )
        for name in ("collective_seq_id", "p2p_seq_id", "op_id", "process_group"):
            assert part[name] == end[name]
        assert end["input_sizes"] == end["output_sizes"] == []
    assert [entry["record_id"] for entry in entries] == list(range(len(entries)))


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
