"""What traces do not show is said in a sentence, and half of a job still gives a verdict."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch.conventions.states import Cause
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_profiler_traces.notes import collectives_of
from rankwatch_profiler_traces.reading import read_trace, read_traces
from rankwatch_profiler_traces.recording import Described
from rankwatch_profiler_traces.timeline import Meeting, StepLine
from support.diagnosis.kineto import GpuJob, TraceForm, write_traces
from support.fuzzing import BUSY_MACHINE, NESTED

JOB = GpuJob(slow={2: 1.3})


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Load a trace, change it, and write it in another formatting."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def notes_of(directory: Path) -> str:
    found = read_traces(directory)
    assert diagnose(found.table).cause in (Cause.SLOW_RANK, Cause.INCONCLUSIVE)
    return "\n".join(found.notes)


def test_nothing_missing(tmp_path: Path) -> None:
    """Whole traces need no sentence."""
    write_traces(tmp_path, JOB)
    found = read_traces(tmp_path)
    assert found.notes == ()
    assert (found.facts["ranks"], found.facts["steps"], found.facts["of"]) == (
        "0 to 3",
        "10 to 15",
        "GPU kernels",
    )


def test_trace_cut_off(tmp_path: Path) -> None:
    """A half-written trace gives the steps that it holds whole."""
    path = write_traces(tmp_path, JOB)[3]
    text = path.read_bytes()
    path.write_bytes(text[: int(len(text) * 0.9)])
    found = read_traces(tmp_path)
    assert "the trace of rank 3 is cut off: the last step of each is left out" in found.notes
    assert diagnose(found.table).ranks == (2,)


def test_trace_cut_off_before_its_kernels(tmp_path: Path) -> None:
    """Kineto writes the host first: what is cut off there shows nothing of the GPU, and the others count."""
    path = write_traces(tmp_path, JOB)[3]
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 3])
    found = read_traces(tmp_path)
    assert any("holds no kernels, while other traces do" in each for each in found.notes)
    assert any("3 of 4 ranks are there; missing: 3" in each for each in found.notes)
    assert diagnose(found.table).ranks == (2,)


def test_damaged_events(tmp_path: Path) -> None:
    path = write_traces(tmp_path, JOB)[1]
    path.write_bytes(path.read_bytes().replace(b'"dur": ', b'"dur": -', 3))
    assert "3 events of 1 traces are damaged" in notes_of(tmp_path)


def test_rank_by_name(tmp_path: Path) -> None:
    """Without distributedInfo the name of the file gives the rank, as rank3_trace.json does."""
    for rank, path in enumerate(write_traces(tmp_path, JOB, TraceForm(distributed_info=False))):
        path.rename(tmp_path / f"rank{rank}_trace.json")
    assert diagnose(read_traces(tmp_path).table).ranks == (2,)


def test_rank_unknown(tmp_path: Path) -> None:
    write_traces(tmp_path, JOB, TraceForm(distributed_info=False))
    with pytest.raises(UserError, match="names its rank neither in distributedInfo nor in its file name"):
        read_traces(tmp_path)


def test_rank_written_behind_the_events(tmp_path: Path) -> None:
    """Traces on demand hold distributedInfo behind their events."""

    def move(document: dict[str, Any]) -> None:
        document["distributedInfo"] = document.pop("distributedInfo")

    for path in write_traces(tmp_path, JOB):
        rewrite(path, move)
    assert diagnose(read_traces(tmp_path).table).ranks == (2,)


def test_two_runs_in_one_directory(tmp_path: Path) -> None:
    """Two traces of one rank and step are of two runs: both are named."""
    path = write_traces(tmp_path, JOB)[1]
    shutil.copy(path, tmp_path / "another.pt.trace.json")
    with pytest.raises(UserError, match=r"another.*both hold step 10 of rank 1: leave the traces of one run"):
        read_traces(tmp_path)


def test_different_steps(tmp_path: Path) -> None:
    """Only what all ranks traced is compared."""
    write_traces(tmp_path / "all", JOB)
    late = write_traces(tmp_path / "late", GpuJob(slow={2: 1.3}, first_step=12))[3]
    (old,) = (tmp_path / "all").glob(f"*{late.name.split('_')[1]}")
    shutil.copy(late, old)
    found = read_traces(tmp_path / "all")
    assert sorted(set(found.table.step.tolist())) == [12, 13, 14, 15]
    assert "steps 10 to 11, 16 to 17 are not in the traces of all ranks" in "".join(found.notes)


def test_no_step_in_common(tmp_path: Path) -> None:
    write_traces(tmp_path / "all", GpuJob(ranks=2))
    late = write_traces(tmp_path / "late", GpuJob(ranks=2, first_step=50))[1]
    shutil.copy(late, tmp_path / "all" / late.name)
    with pytest.raises(UserError, match="traced in different steps: rank 0 from 10 to 15, rank 1 from 50"):
        read_traces(tmp_path / "all")


def test_no_steps(tmp_path: Path) -> None:
    """Too little to tell a step from the next: a sentence with the way out."""
    write_traces(tmp_path, GpuJob(steps=1), TraceForm(annotate_steps=False))
    with pytest.raises(UserError, match=r"call profiler\.step\(\)"):
        read_traces(tmp_path)


def test_no_collectives(tmp_path: Path) -> None:
    """Without NCCL kernels a slow rank still shows, and what is missing is said."""
    for path in write_traces(tmp_path, JOB):
        path.write_text(path.read_text().replace("ncclDevKernel_AllReduce", "my_kernel"))
    assert "no NCCL kernel is recorded: nothing shows who waited for whom" in notes_of(tmp_path)


def test_unlike_collectives(tmp_path: Path) -> None:
    """A rank that lacks a collective of the others is counted."""

    def drop(document: dict[str, Any]) -> None:
        kernels = [each for each in document["traceEvents"] if each["name"].startswith("ncclDev")]
        document["traceEvents"].remove(kernels[4])

    rewrite(write_traces(tmp_path, JOB)[0], drop)
    assert re.search(r"of 18 collectives do not match", notes_of(tmp_path))


def test_old_categories(tmp_path: Path) -> None:
    """Traces of PyTorch 1.8 to 1.12 name their categories Kernel, Operator and Runtime."""
    for path in write_traces(tmp_path, JOB, TraceForm(describe=False)):
        text = path.read_text()
        for new, old in (("kernel", "Kernel"), ("cpu_op", "Operator"), ("cuda_runtime", "Runtime")):
            text = text.replace(f'"cat": "{new}"', f'"cat": "{old}"')
        path.write_text(
            text.replace("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_AllReduce_RING_LL")
        )
    found = read_traces(tmp_path)
    assert diagnose(found.table).ranks == (2,)
    assert found.collectives[0]["operation"] == "all_reduce"


@pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8b", b'{"traceEvents": []}', b"\xff" * 100])
def test_useless_file(tmp_path: Path, content: bytes) -> None:
    """A file that is no trace does not stop the others, and is said."""
    write_traces(tmp_path, JOB)
    (tmp_path / "rank7.json").write_bytes(content)
    assert "rank7.json is of no use" in notes_of(tmp_path)


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no trace: no file whose name ends in \.json"):
        read_traces(tmp_path)


@given(args=st.binary(max_size=40))
@settings(parent=BUSY_MACHINE, max_examples=60)
def test_any_arguments(args: bytes) -> None:
    """Whatever the arguments of an event are, they cost at most that event."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "rank0_trace.json"
        event = b'{"ph": "X", "cat": "kernel", "name": "nccl", "ts": 1, "dur": 1, "args": %s}' % args
        path.write_bytes(b'{"traceEvents": [%s, %s]}' % (event, event))
        assert read_trace(path).timeline is None


@pytest.mark.parametrize("size", [1 << 24, 1 << 62, -1, "8"])
def test_impossible_world_size(tmp_path: Path, size: object) -> None:
    """It is unknown. Nobody lists 16 million missing ranks."""
    for path in write_traces(tmp_path, JOB):
        rewrite(path, lambda document: document["distributedInfo"].update(world_size=size))
    assert read_traces(tmp_path).notes == ()


def test_arguments_nested_too_deep() -> None:
    """They give nothing, at whatever depth that is."""
    for deep in NESTED:
        assert Described.of(f'{{"Collective name": {deep}}}'.encode()).external == -1


def test_collective_from_before_the_recording() -> None:
    """A kernel whose launch was not recorded has no group and no size, as seen on an H200. It is no
    collective of its own beside those of its operation that have both."""
    kernels = (
        Meeting("all_reduce", "", 0, 0, 0.04, False, 0.04),
        Meeting("all_reduce", "0 [0, 1]", 0, 4096, 0.04, False, 0.04),
    )
    lines = [StepLine(step, float(step), (kernels[step],)) for step in (0, 1)]
    rank: Any = SimpleNamespace(rank=0, timeline=SimpleNamespace(steps=lines))
    (only,) = collectives_of([rank], frozenset((0, 1)))
    assert (only["group"], only["bytes_per_step"]) == ("0 [0, 1]", 4096)
    lines[1:] = []
    (only,) = collectives_of([rank], frozenset((0, 1)))
    assert (only["group"], only["bytes_per_step"]) == (None, None)
