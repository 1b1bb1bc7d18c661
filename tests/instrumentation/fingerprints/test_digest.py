"""The sums over the bits of tensors."""

from __future__ import annotations

import pytest
import torch

from rankwatch.fingerprints import digest
from rankwatch.fingerprints.digest import Digest


def sums(*tensors: torch.Tensor) -> list[list[int]]:
    result: list[list[int]] = Digest(tensors).compute(tensors).tolist()
    return result


def flipped(tensor: torch.Tensor, element: int, bit: int) -> torch.Tensor:
    """A copy in which one bit of one 32-bit word differs."""
    copy = tensor.clone()
    word = copy.view(-1).view(torch.int32)
    word[element] ^= -(2**31) if bit == 31 else 1 << bit
    return copy


@pytest.mark.parametrize("bit", [0, 1, 15, 22, 30, 31])
@pytest.mark.parametrize("element", [0, 1, 4095, 4096, 9999])
def test_each_bit(element: int, bit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flipped bit changes the sums, in the first chunk and in the last, shorter one."""
    monkeypatch.setattr(digest, "BLOCK", 4096)
    tensor = torch.randn(10_000)
    assert sums(tensor) != sums(flipped(tensor, element, bit))


def test_what_the_hash_does_not_see() -> None:
    """A permutation, two equal flips, and two flipped signs change the weighted sum; the hash misses them."""
    tensor = torch.arange(1, 1001, dtype=torch.float32)
    twice = flipped(flipped(tensor, 3, 5), 700, 5)
    signs = flipped(flipped(tensor, 3, 31), 701, 31)  # the highest bits of two integers of 64 bits
    neighbours = torch.cat((tensor[1:2], tensor[0:1], tensor[2:]))  # in one integer of 64 bits
    pairs = -tensor[:4], tensor[4:]  # the highest bits of both halves of two integers
    for other in (tensor.flip(0), twice, signs, neighbours, torch.cat(pairs)):
        assert sums(tensor)[0] != sums(other)[0]
        assert sum(sums(tensor)[0]) != sum(sums(other)[0])


def test_bits_not_values() -> None:
    """The sign of zero and the payload of a NaN count, and NaN equals itself."""
    zeros = torch.zeros(8)
    assert sums(zeros) != sums(-zeros)
    nan = torch.full((8,), float("nan"))
    assert sums(nan) == sums(nan.clone())
    assert sums(nan) != sums(flipped(nan, 2, 0))


TYPES = "float32 bfloat16 float16 float64 complex64 int8 bool float8_e4m3fn"


@pytest.mark.parametrize("dtype", [getattr(torch, each) for each in TYPES.split()])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_every_type(dtype: torch.dtype, size: int) -> None:
    """Parameters of every type and of odd sizes have sums that see their last byte."""
    raw = torch.arange(size * 8, dtype=torch.uint8) % 2
    width = torch.empty((), dtype=dtype).element_size()
    tensor = raw[: size * width].clone().view(dtype)
    other = raw[: size * width].clone()
    other[-1] ^= 1
    assert sums(tensor) == sums(tensor.clone())
    assert sums(tensor) != sums(other.view(dtype))


@pytest.mark.parametrize("sizes", [(1,), (5000, 3, 7), (4096 * 2 * 5,), (8192, 70_001, 9, 9), (300_000, 1)])
def test_way_of_a_gpu(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks at once, as on a GPU, give the same sums as one after the other, also for odd sizes."""
    monkeypatch.setattr(digest, "BLOCK", 4096)
    tensors = [torch.randn(size) for size in sizes]
    at_once = Digest(tensors, blocks_at_once=4).compute(tensors)
    assert at_once.sum(1).tolist() == Digest(tensors).compute(tensors).sum(1).tolist()


def test_modes_of_torch() -> None:
    """Deterministic algorithms, autocast, inference mode and another default device change nothing."""
    tensors = [torch.randn(1001), torch.randn(64)]
    expected = sums(*tensors)
    torch.use_deterministic_algorithms(True)
    try:
        assert sums(*tensors) == expected
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        assert sums(*tensors) == expected
    with torch.inference_mode():
        assert sums(*tensors) == sums(*(each.clone() for each in tensors)) == expected
    assert sums(*tensors) == expected
    assert sums(torch.randn(6, dtype=torch.complex64).conj())


def test_layout_in_memory() -> None:
    """Views that are not contiguous, misaligned or without dimensions can be read."""
    base = torch.randn(4, 3, 8, 8)
    misaligned = torch.randn(9).to(torch.bfloat16)[1:]
    for each in (base.to(memory_format=torch.channels_last), base[:, 1], misaligned):
        assert sums(each) == sums(each.clone())
    assert sums(torch.tensor(3.0)) != sums(torch.tensor(-3.0))


def test_groups() -> None:
    """A flip changes the sum of its own group only, so that the group can be named."""
    tensors = [torch.randn(100) for _ in range(64)]
    others = list(tensors)
    others[40] = flipped(tensors[40], 7, 3)
    before, after = sums(*tensors)[0], sums(*others)[0]
    different = [at for at, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
    assert different == [digest.group_of(tensors)[40]]
    assert len(set(digest.group_of(tensors))) == digest.GROUPS


def test_without_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.13 there is the weighted sum alone, and it is the same."""
    tensor = torch.randn(1000)
    full = sums(tensor)
    monkeypatch.delattr(torch, "hash_tensor", raising=False)
    assert sums(tensor) == [full[0], [0] * digest.GROUPS]


def scratch(reader: Digest) -> int:
    return sum(each.nbytes for each in (reader._scratch, reader._joined, reader._weights))


def test_bounded_scratch() -> None:
    """Reading 64 MiB takes scratch memory once, 16 MiB at most, and nearly nothing each time."""
    tensors = [torch.zeros(1 << 20) for _ in range(16)]
    reader = Digest(tensors)
    with torch.profiler.profile(profile_memory=True) as profile:
        reader.compute(tensors)
    allocated = [event.self_cpu_memory_usage for event in profile.events()]
    assert sum(each for each in allocated if each > 0) < 64 * 1024
    assert scratch(reader) <= 2 << 20
    many = Digest([torch.zeros(3) for _ in range(100)] + tensors, blocks_at_once=digest._BLOCKS_AT_ONCE)
    assert scratch(many) <= 17 << 20


def test_random_numbers_are_left_alone() -> None:
    """Training draws the same random numbers with and without fingerprints."""
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    sums(torch.zeros(100))
    assert torch.equal(torch.rand(4), expected)
