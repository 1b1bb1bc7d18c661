"""What the GPUs of the ranks of a run that stands show: spinning, never launched, dead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.run.boxes import Boxes
from rankwatch_diagnosis.run.engine import diagnose_waiting
from rankwatch_diagnosis.run.gpus import AT_THE_STALL, GpuFigures, GpuState, with_gpus
from support.diagnosis.run_boxes import at_one_collective, boxes_seen, make_bundle

SPINS = GpuFigures(up=1.0, utilization=1.0, multiprocessors=0.04, power_share=0.2)
IDLE = GpuFigures(up=1.0, utilization=0.0, multiprocessors=0.0, power_share=0.1)
COMPUTES = GpuFigures(up=1.0, utilization=1.0, multiprocessors=0.9, power_share=0.8)
DEAD = GpuFigures(up=0.0)
NOT_KNOWN = GpuFigures(up=1.0)
GPUS = ("GPU-a", "GPU-b", "GPU-c")
NOBODY = HangVerdict(state=State.HANG)


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    ranks = at_one_collective(tmp_path, GPUS)
    yield boxes_seen(tmp_path)
    for each in ranks:
        each.writer.unlock()


@pytest.mark.parametrize(
    ("figures", "state"),
    [
        (SPINS, GpuState.SPINS),
        (SPINS._replace(multiprocessors=None), GpuState.SPINS),
        (SPINS._replace(power_share=None), GpuState.SPINS),
        (IDLE, GpuState.NOT_LAUNCHED),
        (COMPUTES, GpuState.COMPUTES),
        (DEAD, GpuState.DEAD),
        (NOT_KNOWN, None),
        (SPINS._replace(multiprocessors=None, power_share=None), None),
        (SPINS._replace(power_share=0.9), None),
        (SPINS._replace(utilization=0.5), None),
    ],
)
def test_state(figures: GpuFigures, state: GpuState | None) -> None:
    """Figures that are few, in between or at odds with each other tell nothing."""
    assert figures.state is state


@pytest.mark.parametrize(
    ("seen", "ranks"),
    [
        ((SPINS, IDLE, SPINS), (1,)),
        ((SPINS, DEAD, SPINS), (1,)),
        ((SPINS, DEAD, IDLE), (1,)),
        ((SPINS, SPINS, SPINS), ()),
        ((IDLE, IDLE, IDLE), ()),
        ((SPINS, IDLE, IDLE), ()),
        ((SPINS, IDLE, COMPUTES), ()),
        ((SPINS, IDLE, NOT_KNOWN), ()),
        ((SPINS, IDLE), ()),
    ],
)
def test_who_is_named(seen: tuple[GpuFigures, ...], ranks: tuple[int, ...], boxes: Boxes) -> None:
    """A dead GPU, or the one that alone runs nothing while those of all others spin; else nobody."""
    found = with_gpus(boxes, NOBODY, dict(enumerate(seen)))
    assert (found.state, found.ranks) == (State.HANG, ranks)


def test_named_rank_keeps_its_reason(boxes: Boxes) -> None:
    """Where the waits name a rank, its GPU is told beside the reason, and an idle one is a victim."""
    named = HangVerdict(state=State.HANG, ranks=(2,), evidence={"reasons": {"2": "has not called it"}})
    found = with_gpus(boxes, named, {0: SPINS, 1: IDLE, 2: SPINS})
    assert found.ranks == (2,)
    assert found.evidence["reasons"] == {
        "2": "has not called it; its GPU spins in a kernel (100% utilisation, 4% active multiprocessors, "
        "20% power of the limit)"
    }
    assert found.evidence["gpus"] == {"spins in a kernel": [0, 2], "runs no kernel": [1]}


@pytest.mark.parametrize("state", [State.OK, State.SLOW, State.INCONCLUSIVE])
def test_run_that_does_not_stand(state: State, boxes: Boxes) -> None:
    """GPUs of a run that goes on, or of which nothing waits, say nothing about a hang."""
    going = HangVerdict(state=state)
    assert with_gpus(boxes, going, {0: SPINS, 1: DEAD, 2: SPINS}) == going


def page(*figures: tuple[float, float], more: str = "") -> str:
    """Utilisation and power of each GPU."""
    lines = []
    for gpu, (utilization, watts) in zip(GPUS, figures, strict=True):
        lines += [
            f'rankwatch_gpu_up{{gpu="{gpu}"}} 1',
            f'rankwatch_gpu_utilization_ratio{{gpu="{gpu}"}} {utilization}',
            f'rankwatch_gpu_activity_ratio{{gpu="{gpu}",unit="tensor"}} 0.0',
            f'rankwatch_gpu_activity_ratio{{gpu="{gpu}",unit="sm"}} {0.04 * utilization}',
            f'rankwatch_gpu_power_watts{{gpu="{gpu}"}} {watts}',
            f'rankwatch_gpu_power_limit_watts{{gpu="{gpu}"}} 700',
        ]
    return "\n".join((*lines, more)) + "\n"


def bundle(directory: Path, text: str, *, gpus: Sequence[str] = GPUS) -> Path:
    for each in at_one_collective(directory / "blackboxes", gpus):
        each.writer.unlock()
    make_bundle(directory, len(gpus), AT_THE_STALL, text)
    return directory


ONE_IDLE = ((1.0, 140.0), (0.0, 70.0), (1.0, 140.0))


def test_bundle(tmp_path: Path) -> None:
    """The page in an evidence bundle names the rank of which the boxes say nothing."""
    found = diagnose_waiting(bundle(tmp_path, page(*ONE_IDLE)))
    assert (found.state, found.ranks) == (State.HANG, (1,))
    assert "its GPU runs no kernel (0% utilisation" in str(found.evidence["reasons"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rankwatch_gpu_up{",
        page(*ONE_IDLE).replace("GPU-", "GPU-other-"),
        page(*ONE_IDLE, more='rankwatch_gpu_processes{gpu="GPU-b"} 2'),
        page(*ONE_IDLE).replace('rankwatch_gpu_utilization_ratio{gpu="GPU-b"}', "rankwatch_gpu_other"),
    ],
    ids=["empty", "garbled", "other GPUs", "a process beside the rank", "MIG"],
)
def test_page_without_figures(text: str, tmp_path: Path) -> None:
    """A page that lacks figures of a rank of its own, or shows them of others too, names nobody."""
    found = diagnose_waiting(bundle(tmp_path, text))
    assert found.ranks == ()
    assert "runs no kernel" not in str(found.evidence)


def test_shared_gpu(tmp_path: Path) -> None:
    """The figures of a GPU that two ranks share are of neither: only that it is lost holds for both."""
    directory = bundle(tmp_path, page(*ONE_IDLE), gpus=("GPU-a", "GPU-b", "GPU-b"))
    found = diagnose_waiting(directory)
    assert (found.ranks, found.evidence["gpus"]) == ((), {"spins in a kernel": [0]})
    lost = page(*ONE_IDLE).replace('rankwatch_gpu_up{gpu="GPU-b"} 1', 'rankwatch_gpu_up{gpu="GPU-b"} 0')
    (directory / "metrics" / AT_THE_STALL).write_text(lost)
    assert diagnose_waiting(directory).ranks == (1, 2)
