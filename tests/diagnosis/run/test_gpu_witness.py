"""Whether the GPUs confirm the slow rank of a run that an evidence bundle shows: by their work and clocks
before the run stood."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.simulation.black_boxes import SimulatedBox, job_boxes
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_cli.commands.diagnose import run
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.gpus import WHILE_IT_RAN, GpuFigures, SeenGpus, gpus_of_bundle
from rankwatch_diagnosis.run.witnesses import GPU_EVIDENCE, RECORDER_EVIDENCE, with_gpu_witness, witness_lines
from support.diagnosis.run_boxes import make_bundle

DATA_PARALLEL = JobShape(data_parallel=8)
PIPELINE = JobShape(data_parallel=4, pipeline_parallel=2)
SLOW_2 = Fault(cause=Cause.SLOW_RANK, ranks=(2,), factor=1.4)
Share = tuple[float, ...]
"""SM activity by rank."""
ALIKE = (0.6,) * 8


def but(rank: int, activity: float) -> Share:
    """One GPU works otherwise than the rest."""
    return (*ALIKE[:rank], activity, *ALIKE[rank + 1 :])


def page(activity: Sequence[float], more: str = "") -> str:
    """What the agent exported of GPUs that always held a kernel."""
    lines = [more]
    for rank, share in enumerate(activity):
        lines += [
            f'rankwatch_gpu_utilization_ratio{{gpu="GPU-{rank}"}} 1.0',
            f'rankwatch_gpu_activity_ratio{{gpu="GPU-{rank}",unit="sm"}} {share}',
        ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated ranks do not report an end: a bundle is made of living ranks."""
    monkeypatch.setattr(SimulatedBox, "finish", lambda *_: None)


def bundle(directory: Path, text: str, *, fault: Fault = SLOW_2, shape: JobShape = DATA_PARALLEL) -> Path:
    """The boxes of a simulated run, and the page from before its last progress."""
    table = simulate(Job(shape=shape, fault=fault, steps=100, seed=1)).table
    for rank, (box, moments) in enumerate(
        job_boxes(table, shape, directory / "blackboxes", run="job", seed=1)
    ):
        box._writer.set_gpu(f"GPU-{rank}")
        for _ in moments:
            pass
        box.close()
    make_bundle(directory, shape.ranks, WHILE_IT_RAN, text)
    return directory


def said(directory: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The verdict about the slowdown by the command line, and the opinion of the GPUs."""
    assert run.main([str(directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["straggler"]
    return found, found["evidence"].get(GPU_EVIDENCE, {}).get("opinion")


OPINIONS: dict[str, tuple[Share, str | None]] = {
    "works most": (but(2, 0.9), "agrees"),
    "works least": (but(2, 0.3), "agrees"),
    "a little more": (but(2, 0.66), "none"),
    "another works most": (but(5, 0.9), "disagrees"),
    "another a little more": (but(5, 0.66), "none"),
    "two others": ((0.9, 0.9, *ALIKE[2:]), "none"),
    "not measured": (but(2, 0.0), None),
    "a peer not measured": (but(5, 0.0), None),
    "no number": (but(2, math.nan), None),
}


@pytest.mark.usefixtures("unfinished")
@pytest.mark.parametrize("case", OPINIONS)
def test_opinion(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU that stands out from every other speaks for its rank; another rank's takes the name away."""
    activity, opinion = OPINIONS[case]
    found, heard = said(bundle(tmp_path, page(activity)), capsys)
    assert heard == opinion
    named = opinion != "disagrees"
    assert (found["cause"], found["ranks"]) == (("slow_rank", [2]) if named else ("inconclusive", []))
    why = "by the GPUs, that of rank 5 works most (SM activity 90% against 60%)"
    assert named or why in found["evidence"]["why"]


@pytest.mark.usefixtures("unfinished")
@pytest.mark.parametrize(
    ("fault", "shape"),
    [(SLOW_2, PIPELINE), (Fault(cause=Cause.NETWORK, factor=4.0), DATA_PARALLEL)],
    ids=["pipeline", "another cause"],
)
def test_not_heard(fault: Fault, shape: JobShape, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The schedule of a pipeline decides which GPU works most; what names no rank is confirmed by none."""
    assert said(bundle(tmp_path, page(but(2, 0.9)), fault=fault, shape=shape), capsys)[1] is None


HEAT = 'rankwatch_gpu_throttle_active{{gpu="GPU-{}",reason="sw_thermal_slowdown"}} 1'
CLOCK = 'rankwatch_gpu_clock_hertz{{gpu="GPU-{}",clock="sm"}} {}e9'


CLOCKS: dict[str, tuple[Sequence[int], dict[int, float], bool]] = {
    "held down": ((2,), {2: 1.1}, True),
    "at full clock": ((2,), {}, False),
    "without a fault": ((), {2: 1.1}, False),
    "as all others": (range(8), {2: 1.1}, False),
    "another": ((5,), {5: 1.1}, False),
}
"""Ranks with a fault that holds their clocks down, clocks other than 1.7 GHz, and whether that is said."""


@pytest.mark.usefixtures("unfinished")
@pytest.mark.parametrize("case", CLOCKS)
def test_clocks(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cause in the hardware is a fault that the peers do not have, at a clock below theirs."""
    hot, clocks, held = CLOCKS[case]
    more = [HEAT.format(rank) for rank in hot]
    more += [CLOCK.format(rank, clocks.get(rank, 1.7)) for rank in range(8)]
    found, _ = said(bundle(tmp_path, page(ALIKE, "\n".join(more))), capsys)
    words = found["evidence"][GPU_EVIDENCE].get("held_down")
    expected = "sw_thermal_slowdown holds down the clock of the GPU of rank 2: 1,100 MHz against 1,700 MHz"
    assert words == (expected if held else None)


@pytest.fixture
def judged(tmp_path: Path, unfinished: None) -> Any:
    """The boxes, the verdict about rank 2, and what the GPUs show: that of rank 5 works most."""
    directory = bundle(tmp_path, "")
    verdict = diagnose_run(directory)
    boxes = verdict.boxes
    (directory / "metrics" / WHILE_IT_RAN).write_text(page(but(5, 0.9)))
    return boxes, verdict.straggler, gpus_of_bundle(directory, boxes, WHILE_IT_RAN)


def test_confirmed_by_recorders(judged: Any) -> None:
    """One witness for the verdict and one against it: the rank keeps its name, and both are shown."""
    boxes, found, gpus = judged
    other = {RECORDER_EVIDENCE: {"opinion": "agrees", "words": "rank 2 comes last"}}
    kept = with_gpu_witness(boxes, gpus, replace(found, evidence={**found.evidence, **other}))
    assert kept.ranks == (2,)
    agrees, disagrees = witness_lines(kept)
    assert agrees == "             the flight recorders agree: rank 2 comes last"
    assert disagrees.startswith("             but by the GPUs, that of rank 5 works most")


def test_clear_only(judged: Any) -> None:
    """Figures of part of a step, those of another time, and a host's work say nothing against a rank."""
    boxes, found, gpus = judged
    assert with_gpu_witness(boxes, gpus, found).ranks == ()
    step = found.evidence["step_seconds"]
    assert with_gpu_witness(boxes, gpus._replace(seconds=2 * step), found).ranks == (2,)
    past = replace(found, causes=(replace(found.causes[0], last_step=40), *found.causes[1:]))
    assert with_gpu_witness(boxes, gpus, past) == past
    loading = replace(found, phase=SlowPhase.DATA_LOADING)
    assert with_gpu_witness(boxes, gpus, loading).ranks == (2,)


def test_host_work(judged: Any) -> None:
    """A rank in its loader has the GPU that works least, and none as little; working most proves nothing."""
    boxes, found, _ = judged

    def opinion(activity: Share) -> Any:
        seen = {
            rank: GpuFigures(utilization=each, multiprocessors=each) for rank, each in enumerate(activity)
        }
        loading = replace(found, phase=SlowPhase.DATA_LOADING)
        heard = with_gpu_witness(boxes, SeenGpus(seen, 10.0), loading).evidence[GPU_EVIDENCE]
        return heard["opinion"]

    assert [opinion(but(2, each)) for each in (0.3, 0.0, 0.9)] == ["agrees", "agrees", "none"]
    assert opinion((0.6, 0.6, 0.0, 0.0, *ALIKE[4:])) == "none"
