"""The GPU of a rank, given by the trainer or reported by torch once CUDA is in use, and what torch's
allocator holds there, which is sampled seldom and without asking the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import rankwatch
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.records import AllocatorNow
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity
from rankwatch.rank_gpu import MAX_ATTEMPTS, SAMPLE_SECONDS, AllocatorMemory, RankGpu
from support.training.blackbox import box, now

UUIDS = [f"{number}1111111-aaaa-bbbb-cccc-0123456789ab" for number in range(4)]


@dataclass
class Cuda:
    """A fake `torch.cuda` on a machine with four GPUs."""

    initialized: bool = True
    current: int = 0
    held: dict[int, int] = field(default_factory=dict)
    model: str = "NVIDIA H100 80GB HBM3"
    uuids: list[Any] = field(default_factory=lambda: [*UUIDS])
    queries: int = 0
    stats: dict[str, Any] = field(default_factory=dict)
    """What the allocator reports, in the form of torch 2.13."""
    samples: int = 0

    def is_initialized(self) -> bool:
        self.queries += 1
        return self.initialized

    def current_device(self) -> int:
        assert self.initialized, "torch would initialise CUDA"
        return self.current

    def device_count(self) -> int:
        return len(self.uuids)

    def memory_allocated(self, device: int) -> int:
        return self.held.get(device, 0)

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        assert device == self.current
        self.samples += 1
        return self.stats

    def get_device_properties(self, device: int) -> Any:
        assert self.initialized, "torch would initialise CUDA"
        return SimpleNamespace(name=self.model, uuid=self.uuids[device])


def gpu_of(directory: Path) -> str:
    """The GPU as a reader of the black box sees it."""
    return now(box(directory)).gpu


def steps(run: rankwatch.Run, count: int = 1) -> None:
    for _ in range(count):
        with run.step():
            pass


def watch(run: rankwatch.Run, cuda: Any) -> None:
    run.after_steps(RankGpu(run._writer, cuda).resolve)


def test_given_gpu(tmp_path: Path) -> None:
    """A GPU given to `start` is recorded at once."""
    run = rankwatch.start(run="r", rank=0, directory=tmp_path, gpu=f"GPU-{UUIDS[2]}", flight_recorder=False)
    assert gpu_of(tmp_path) == f"GPU-{UUIDS[2]}"
    assert isinstance(run, rankwatch.Run)
    run.finish()


@pytest.mark.parametrize("gpu", ["3", "", "0000:3b:00.0", "GPU-" + "1" * 60, "GPU-\n", "GPU-é", 3])
def test_given_gpu_that_is_no_uuid(tmp_path: Path, gpu: Any) -> None:
    """It raises. An index, for example, may mean another GPU after a reboot."""
    with pytest.raises(rankwatch.UsageError, match=r"gpu is .*expected a UUID"):
        rankwatch.start(run="r", directory=tmp_path, gpu=gpu)


def test_no_cuda(run: rankwatch.Run, tmp_path: Path) -> None:
    """A rank on CPUs never queries torch."""
    assert run.device is None
    owners = {type(getattr(each, "__self__", each)) for each in run._resolvers}
    assert not owners & {RankGpu, AllocatorMemory}
    steps(run)
    assert gpu_of(tmp_path) == ""


def test_first_step_with_cuda(run: rankwatch.Run, tmp_path: Path) -> None:
    """The GPU is known after the first step that used CUDA. Torch is never made to initialise CUDA, and is
    not queried again once the GPU is known."""
    cuda = Cuda(initialized=False, held={1: 1 << 30}, current=1)
    watch(run, cuda)
    steps(run, 3)
    assert gpu_of(tmp_path) == ""
    cuda.initialized = True
    steps(run)
    assert gpu_of(tmp_path) == f"GPU-{UUIDS[1]}"
    queries = cuda.queries
    steps(run, 5)
    assert cuda.queries == queries


@pytest.mark.parametrize(
    ("cuda", "gpu"),
    [
        # With `tensor.to("cuda:3")` the current device stays 0, and a stray tensor may lie there.
        pytest.param(Cuda(current=0, held={0: 512, 3: 1 << 30}), f"GPU-{UUIDS[3]}", id="most memory"),
        # Torch reports the UUID without a prefix.
        pytest.param(
            Cuda(model="NVIDIA A100-SXM4-40GB MIG 1g.5gb", held={0: 1}), f"MIG-{UUIDS[0]}", id="MIG"
        ),
        # Old versions report no UUID, and other vendors use another form.
        *(
            pytest.param(Cuda(uuids=[uuid], held={0: 1}), "", id=f"UUID {uuid!r}"[:30])
            for uuid in ("", "unknown", None, b"\x00" * 16, "x" * 500)
        ),
    ],
)
def test_gpu_of_a_rank(run: rankwatch.Run, tmp_path: Path, cuda: Cuda, gpu: str) -> None:
    """The rank's GPU holds most of its tensors. It stays unknown where it has no UUID."""
    watch(run, cuda)
    steps(run)
    assert gpu_of(tmp_path) == gpu
    assert run._writer.integers[Now.ERRORS] == 0


def test_gpu_and_full_table_of_names(run: rankwatch.Run, tmp_path: Path) -> None:
    """The GPU stays unknown, as in boxes of older versions."""
    for number in range(layout.NAME_COUNT):
        run._writer.name_number(f"name {number}")
    watch(run, Cuda(held={0: 1}))
    steps(run)
    assert gpu_of(tmp_path) == ""


def test_bounded_attempts(run: rankwatch.Run, tmp_path: Path) -> None:
    """A job on the CPUs of a machine with GPUs queries torch a hundred times at most."""
    cuda = Cuda(initialized=False)
    watch(run, cuda)
    steps(run, MAX_ATTEMPTS + 20)
    assert cuda.queries == MAX_ATTEMPTS
    assert gpu_of(tmp_path) == ""


def test_allocator_without_statistics(
    run: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the trainer's own allocator reports no memory, the last attempt takes the current device."""
    refuses = Mock(side_effect=RuntimeError("does not yet support getDeviceStats"))
    monkeypatch.setattr(Cuda, "memory_allocated", refuses)
    watch(run, Cuda(current=2))
    steps(run, MAX_ATTEMPTS - 1)
    assert gpu_of(tmp_path) == ""
    steps(run)
    assert gpu_of(tmp_path) == f"GPU-{UUIDS[2]}"
    assert run._writer.integers[Now.ERRORS] == 0


def test_torch_that_raises(run: rankwatch.Run, tmp_path: Path) -> None:
    """The error is counted once, and torch is not queried again: after an error on the GPU it always
    raises."""
    cuda = Cuda(uuids=[], held={0: 1})
    watch(run, cuda)
    steps(run, 5)
    assert run._writer.integers[Now.ERRORS] == 1
    assert cuda.queries == 1


@pytest.mark.parametrize("word", [-1, 1 << 62, 400, None], ids=["-1", "2**62", "400", "odd name"])
def test_invalid_gpu_in_box(run: rankwatch.Run, tmp_path: Path, word: int | None) -> None:
    """A reader does not trust the box, which comes from the training process."""
    if word is None:
        run._writer.set_gpu("GPU-x\ny")
    else:
        run._writer.integers[Now.GPU] = word
    assert gpu_of(tmp_path) == ""


def stats(allocated: int, *, peak: int, reserved: int, retries: int = 0, failures: int = 0) -> dict[str, Any]:
    return {
        "allocated_bytes": {"all": {"current": allocated, "peak": peak}, "small_pool": {"current": 1}},
        "reserved_bytes": {"all": {"current": reserved, "peak": reserved}},
        "num_alloc_retries": retries,
        "num_ooms": failures,
    }


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    written = Writer(tmp_path, Identity(run="job"), phases=())
    yield written
    written.unlock()


def seen(writer: Writer) -> AllocatorNow | None:
    return now(writer.path).allocator


def test_sample(writer: Writer) -> None:
    """A reader gets bytes and counts of all pools."""
    cuda = Cuda(current=2, stats=stats(5 << 30, peak=7 << 30, reserved=8 << 30, retries=3, failures=1))
    assert seen(writer) is None
    AllocatorMemory(writer, cuda).resolve()
    assert seen(writer) == AllocatorNow(5 << 30, 8 << 30, 7 << 30, 3, 1)


def test_seldom(writer: Writer) -> None:
    """Between two samples lie ten seconds, however short the steps. The end takes one more."""
    cuda = Cuda(current=2, stats=stats(1, peak=1, reserved=1))
    moments = iter([at for at in range(100, 131) for _ in range(2)])
    memory = AllocatorMemory(writer, cuda, clock=lambda: float(next(moments)))
    for _ in range(30):
        memory.resolve()
    assert cuda.samples <= 30 // SAMPLE_SECONDS + 1
    cuda.stats = stats(1, peak=9, reserved=1, failures=1)
    memory.sample()
    found = seen(writer)
    assert found is not None
    assert (found.peak, found.out_of_memory) == (9, 1)


@pytest.mark.parametrize("cuda", [Cuda(initialized=False), Cuda(stats={}), Cuda(stats={"odd": 1})])
def test_unknown(writer: Writer, cuda: Cuda) -> None:
    """CUDA is not initialised for it, and statistics of another form cost nothing but the figures."""
    AllocatorMemory(writer, cuda).resolve()
    assert seen(writer) in (None, AllocatorNow(0, 0, 0, 0, 0))
