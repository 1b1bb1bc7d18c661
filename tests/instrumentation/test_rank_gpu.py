"""The GPU of a rank: said by the trainer, or asked of torch once CUDA is in use."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rankwatch
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.reader import Reader
from rankwatch.rank_gpu import MAX_ATTEMPTS, RankGpu
from support.training.blackbox import box

UUIDS = [f"{number}1111111-aaaa-bbbb-cccc-0123456789ab" for number in range(4)]


@dataclass
class Cuda:
    """What `torch.cuda` tells, on a machine with four GPUs."""

    initialized: bool = True
    current: int = 0
    held: dict[int, int] = field(default_factory=dict)
    model: str = "NVIDIA H100 80GB HBM3"
    uuids: list[Any] = field(default_factory=lambda: [*UUIDS])
    asked: int = 0

    def is_initialized(self) -> bool:
        self.asked += 1
        return self.initialized

    def current_device(self) -> int:
        assert self.initialized, "torch would initialise CUDA"
        return self.current

    def device_count(self) -> int:
        return len(self.uuids)

    def memory_allocated(self, device: int) -> int:
        return self.held.get(device, 0)

    def get_device_properties(self, device: int) -> Any:
        assert self.initialized, "torch would initialise CUDA"
        return SimpleNamespace(name=self.model, uuid=self.uuids[device])


def gpu_of(directory: Path) -> str:
    """What a reader of the black box is told."""
    reader = Reader(box(directory))
    try:
        return reader.now().gpu
    finally:
        reader.close()


def steps(run: rankwatch.Run, count: int = 1) -> None:
    for _ in range(count):
        with run.step():
            pass


def watch(run: rankwatch.Run, cuda: Any) -> None:
    run.after_steps(RankGpu(run._writer, cuda).resolve)


def test_a_gpu_said_by_hand_is_there_from_the_start(tmp_path: Path) -> None:
    """And torch is not asked."""
    run = rankwatch.start(run="r", directory=tmp_path, gpu=f"GPU-{UUIDS[2]}", flight_recorder=False)
    assert gpu_of(tmp_path) == f"GPU-{UUIDS[2]}"
    assert isinstance(run, rankwatch.Run)
    run.finish()


@pytest.mark.parametrize("gpu", ["3", "", "0000:3b:00.0", "GPU-" + "1" * 60, "GPU-\n", "GPU-é", 3])
def test_what_is_no_uuid_is_told_to_the_caller(tmp_path: Path, gpu: Any) -> None:
    """A number would mean another GPU after a reboot."""
    with pytest.raises(rankwatch.UsageError, match=r"gpu is .*expected a UUID"):
        rankwatch.start(run="r", directory=tmp_path, gpu=gpu)


def test_without_cuda_nothing_is_asked(run: rankwatch.Run, tmp_path: Path) -> None:
    """A rank on CPUs pays nothing for it."""
    assert run.device is None
    assert len(run._resolvers) == 1
    steps(run)
    assert gpu_of(tmp_path) == ""


def test_the_gpu_is_known_after_the_first_step_that_used_one(run: rankwatch.Run, tmp_path: Path) -> None:
    """Before that torch must not be made to initialise CUDA; afterwards it is not asked again."""
    cuda = Cuda(initialized=False, held={1: 1 << 30}, current=1)
    watch(run, cuda)
    steps(run, 3)
    assert gpu_of(tmp_path) == ""
    cuda.initialized = True
    steps(run)
    assert gpu_of(tmp_path) == f"GPU-{UUIDS[1]}"
    asked = cuda.asked
    steps(run, 5)
    assert cuda.asked == asked


def test_the_gpu_is_the_one_that_holds_the_tensors(run: rankwatch.Run, tmp_path: Path) -> None:
    """With `tensor.to("cuda:3")` the current device stays 0, and a stray tensor may lie on it."""
    watch(run, Cuda(current=0, held={0: 512, 3: 1 << 30}))
    steps(run)
    assert gpu_of(tmp_path) == f"GPU-{UUIDS[3]}"


def test_torch_is_asked_a_hundred_times_at_most(run: rankwatch.Run, tmp_path: Path) -> None:
    """A job on CPUs of a machine with GPUs."""
    cuda = Cuda(initialized=False)
    watch(run, cuda)
    steps(run, MAX_ATTEMPTS + 20)
    assert cuda.asked == MAX_ATTEMPTS
    assert gpu_of(tmp_path) == ""


def test_where_memory_is_not_accounted_for_the_current_device_counts_in_the_end(
    run: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocator of the trainer's own."""

    def refuse(cuda: Cuda, device: int) -> int:
        raise RuntimeError("does not yet support getDeviceStats")

    monkeypatch.setattr(Cuda, "memory_allocated", refuse)
    watch(run, Cuda(current=2))
    steps(run, MAX_ATTEMPTS - 1)
    assert gpu_of(tmp_path) == ""
    steps(run)
    assert gpu_of(tmp_path) == f"GPU-{UUIDS[2]}"
    assert run._writer.integers[Now.ERRORS] == 0


def test_a_mig_instance_is_told_as_one(run: rankwatch.Run, tmp_path: Path) -> None:
    """Torch gives the UUID without saying of what."""
    watch(run, Cuda(model="NVIDIA A100-SXM4-40GB MIG 1g.5gb", held={0: 1}))
    steps(run)
    assert gpu_of(tmp_path) == f"MIG-{UUIDS[0]}"


@pytest.mark.parametrize("uuid", ["", "unknown", None, b"\x00" * 16, "x" * 500])
def test_a_torch_that_gives_no_uuid_leaves_it_unknown(run: rankwatch.Run, tmp_path: Path, uuid: Any) -> None:
    """Old versions have none, and other vendors another form."""
    watch(run, Cuda(uuids=[uuid], held={0: 1}))
    steps(run)
    assert gpu_of(tmp_path) == ""
    assert run._writer.integers[Now.ERRORS] == 0


def test_a_torch_that_raises_is_told_once_and_left_alone(run: rankwatch.Run, tmp_path: Path) -> None:
    """After an error on the GPU each further question would raise too."""
    cuda = Cuda(uuids=[], held={0: 1})
    watch(run, cuda)
    steps(run, 5)
    assert run._writer.integers[Now.ERRORS] == 1
    assert cuda.asked == 1


def spoil_word(word: int) -> Callable[[rankwatch.Run], None]:
    return lambda run: run._writer.integers.__setitem__(Now.GPU, word)


def spoil_name(run: rankwatch.Run) -> None:
    run._writer.set_gpu("GPU-x\ny")


@pytest.mark.parametrize("spoil", [spoil_word(-1), spoil_word(1 << 62), spoil_word(400), spoil_name])
def test_a_reader_is_not_fooled_by_what_is_no_gpu(
    run: rankwatch.Run, tmp_path: Path, spoil: Callable[[rankwatch.Run], None]
) -> None:
    """The box comes from the training process."""
    spoil(run)
    assert gpu_of(tmp_path) == ""


def test_a_full_table_of_names_leaves_it_unknown(run: rankwatch.Run, tmp_path: Path) -> None:
    """Number 0 stands for no name, as in boxes of older versions."""
    for number in range(layout.NAME_COUNT):
        run._writer.name_number(f"name {number}")
    watch(run, Cuda(held={0: 1}))
    steps(run)
    assert gpu_of(tmp_path) == ""


@pytest.mark.gpu
def test_a_real_gpu_is_told_by_the_name_nvidia_smi_gives_it(tmp_path: Path) -> None:
    """Once a tensor lies on it."""
    torch: Any = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    run = rankwatch.start(run="r", directory=tmp_path, flight_recorder=False, collectives=False)
    assert isinstance(run, rankwatch.Run)
    with run, run.step():
        tensor = torch.ones(1024, device="cuda")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    told = gpu_of(tmp_path)
    assert tensor.is_cuda
    assert told.startswith(("GPU-", "MIG-"))
    assert f"UUID: {told})" in listed
