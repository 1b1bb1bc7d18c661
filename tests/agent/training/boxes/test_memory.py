"""Memory of ranks: resident memory by the kernel, allocator memory by the rank."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import rankwatch
from rankwatch.blackbox.layout import Now
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.series.ranks import resident_bytes
from support.training.ranks import kill, rank, values

RESIDENT = "rankwatch_rank_resident_memory_bytes"
GPU = [
    f"rankwatch_rank_gpu_memory_{name}"
    for name in ("allocated_bytes", "reserved_bytes", "peak_bytes", "retries_total", "failures_total")
]


@pytest.mark.process
def test_resident_memory(tmp_path: Path) -> None:
    """It is that of the process that writes the box, and goes with it."""
    with rank(tmp_path, "held = bytearray(64 << 20)\nready()") as process:
        collector = RanksCollector(directory=tmp_path)
        found = values(collector.collect(), RESIDENT)
        assert list(found) == [("job", "0")]
        expected = resident_bytes(Path("/proc"), process.pid)
        assert expected is not None
        assert found["job", "0"] >= 64 << 20
        assert found["job", "0"] == pytest.approx(expected, rel=0.2)
        kill(process)
        assert values(collector.collect(), RESIDENT) == {}


@pytest.mark.process
def test_hidden_process(tmp_path: Path) -> None:
    """A process that the agent cannot see has no figure, not a wrong one: its own number may be another's."""
    with rank(tmp_path, "ready()"):
        collector = RanksCollector(directory=tmp_path, procfs=tmp_path / "proc")
        assert values(collector.collect(), RESIDENT) == {}


@pytest.mark.parametrize("statm", ["", "1", "1 x 3", "-"])
def test_broken_kernel_file(tmp_path: Path, statm: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "statm").write_text(statm)
    assert resident_bytes(tmp_path, 7) is None


def test_allocator_memory(tmp_path: Path, collector: RanksCollector) -> None:
    """It is exported once the rank has sampled it; a rank on CPUs has none, nor a box of an odd moment."""
    run = rankwatch.start(run="job", rank=0, directory=tmp_path, flight_recorder=False)
    assert isinstance(run, rankwatch.Run)
    sampled = b"".join(each.to_bytes(8, "little", signed=True) for each in (5, 8, 7, 3, -1))
    for moment, shown in ((0.0, []), (math.nan, []), (1.0, [5, 8, 7, 3, 0])):
        run._writer.floats[Now.ALLOCATOR_SAMPLED] = moment
        found = collector.collect()
        assert [value for name in GPU for value in values(found, name).values()] == shown, moment
        words = run._writer.integers
        words[Now.ALLOCATOR_ALLOCATED : Now.ALLOCATOR_OUT_OF_MEMORY + 1] = memoryview(sampled).cast("q")
    run.finish()
