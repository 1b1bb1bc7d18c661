"""What torch's allocator holds is sampled after a step, seldom, and without asking a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.records import AllocatorNow
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity
from rankwatch.rank_gpu import SAMPLE_SECONDS, AllocatorMemory
from support.training.blackbox import now


@dataclass
class Cuda:
    """A fake `torch.cuda`; `stats` is what it reports, in the form of torch 2.13."""

    initialized: bool = True
    stats: dict[str, Any] = field(default_factory=dict)
    samples: int = 0

    def is_initialized(self) -> bool:
        return self.initialized

    def current_device(self) -> int:
        assert self.initialized, "torch would initialise CUDA"
        return 2

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        assert device == 2
        self.samples += 1
        return self.stats


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
    cuda = Cuda(stats=stats(5 << 30, peak=7 << 30, reserved=8 << 30, retries=3, failures=1))
    assert seen(writer) is None
    AllocatorMemory(writer, cuda).resolve()
    assert seen(writer) == AllocatorNow(5 << 30, 8 << 30, 7 << 30, 3, 1)


def test_seldom(writer: Writer) -> None:
    """Between two samples lie ten seconds, however short the steps. The end takes one more."""
    cuda = Cuda(stats=stats(1, peak=1, reserved=1))
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
