"""The traces of a real job on GPUs under PyTorch's profiler, with NCCL. The ranks may share one GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_profiler_traces.reading import read_traces
from support.jobs.sharing_gpus import ranks_sharing_gpus, require_nccl
from support.paths import SUPPORT

JOB = SUPPORT / "jobs" / "profiled_nccl.py"
RANKS, SLOW_RANK = 4, 1
LAYERS, WIDTH = 6, 1024
SECONDS_TO_END = 120.0


@pytest.mark.process
@pytest.mark.gpu
def test_slow_rank(tmp_path: Path) -> None:
    """Kernels show the rank, and collectives have their groups and sizes."""
    require_nccl()
    arguments = (str(JOB), str(tmp_path / "traces"), str(SLOW_RANK), str(LAYERS), str(WIDTH))
    with ranks_sharing_gpus(arguments, tmp_path, ranks=RANKS) as processes:
        assert [each.wait(SECONDS_TO_END) for each in processes] == [0] * RANKS
    traces = read_traces(tmp_path / "traces")
    if traces.facts["of"] != "GPU kernels":
        pytest.skip("PyTorch's profiler recorded no kernel: CUPTI is not allowed to, or not there")
    found = diagnose(traces.table)
    assert (found.cause, found.phase, found.ranks) == (Cause.SLOW_RANK, SlowPhase.COMPUTE, (SLOW_RANK,))
    assert not [each for each in traces.notes if "annotated" in each or "sizes" in each]
    reduced = traces.collectives[0]
    assert reduced["operation"] == "all_reduce"
    assert reduced["bytes_per_step"] == LAYERS * 4 * (WIDTH * WIDTH + WIDTH)
    assert str(reduced["group"]).startswith("0")
