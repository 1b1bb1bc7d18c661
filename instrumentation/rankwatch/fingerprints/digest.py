"""Two sums over the bits of tensors, computed where the tensors are.

The bits are read as integers of 32 bits. The first sum weighs each of them by an odd number that depends on
its position, modulo 2**64: one flipped bit always changes it, and a permutation or two equal flips do so with
near certainty. The second one is `torch.hash_tensor`, where torch has it (2.13): it knows no position.

A tensor's values are never looked at as numbers, so the sign of zero and the payload of a NaN count.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

GROUPS = 16
"""Parts of the parameters that are told apart, of about the same size. Each has its own two sums."""
CHUNK = 1 << 20
"""Integers that are read at a time. It bounds the scratch memory: 16 bytes for each."""
_WORDS = ("int32", "int16", "uint8")


class Piece(NamedTuple):
    """A part of the integers of one tensor."""

    tensor: int
    begin: int
    end: int


class Digest:
    """The sums of tensors of one layout on one device.

    After the first call it allocates nothing on the device but what `compute` returns. It uses no random
    numbers and never waits for the device.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        torch = _torch()
        device = tensors[0].device
        sizes = [_words(each) for each in tensors]
        self._groups = _groups(sizes)
        most = max(len(chunks) for chunks in self._groups)
        longest = max(sum(each.end - each.begin for each in chunk) for part in self._groups for chunk in part)
        with torch.no_grad():
            self._weights = _odd(torch.arange(longest, dtype=torch.int64, device=device))
            numbers = torch.arange(GROUPS * most, dtype=torch.int64, device=device)
            self._chunk_weights = _odd(numbers + CHUNK).view(GROUPS, most)
            self._scratch = torch.empty(longest, dtype=torch.int64, device=device)
            self._sums = torch.zeros(GROUPS, most, dtype=torch.int64, device=device)
            self._hashes = torch.zeros(GROUPS, most, dtype=torch.int64, device=device)
        self._hash = getattr(torch, "hash_tensor", None)

    def compute(self, tensors: Sequence[Any]) -> Any:
        """Return the sums as int64 of shape [2, GROUPS] on the device."""
        torch = _torch()
        with torch.no_grad():
            flat = [as_integers(each) for each in tensors]
            for group, chunks in enumerate(self._groups):
                for number, chunk in enumerate(chunks):
                    self._add(group, number, [flat[at][begin:end] for at, begin, end in chunk])
            sums = (self._sums * self._chunk_weights).sum(1)
            if self._hash is None:
                return torch.stack((sums, torch.zeros_like(sums)))
            return torch.stack((sums, self._hash(self._hashes, 1).view(torch.int64)))

    def _add(self, group: int, number: int, parts: list[Any]) -> None:
        torch = _torch()
        size = sum(each.numel() for each in parts)
        bits = self._scratch[:size]
        if len(parts) == 1:
            bits.copy_(parts[0])
        else:
            torch.cat(parts, out=bits)
        if self._hash is not None:
            self._hashes[group, number] = self._hash(bits).view(torch.int64)
        torch.sum(bits.mul_(self._weights[:size]), 0, out=self._sums[group, number])


def layout_of(tensors: Sequence[Any]) -> tuple[object, ...]:
    """Equal for tensors that one `Digest` can be used for."""
    return tuple((each.device, each.dtype, each.numel()) for each in tensors)


def group_of(tensors: Sequence[Any]) -> list[int]:
    """The group of each tensor."""
    found = [0] * len(tensors)
    for group, chunks in enumerate(_groups([_words(each) for each in tensors])):
        for chunk in chunks:
            for piece in chunk:
                found[piece.tensor] = group
    return found


def as_integers(tensor: Any) -> Any:
    """The bits of a tensor in the order of memory, as integers. A view, unless it has gaps."""
    torch = _torch()
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_contiguous():
        flat = tensor.view(-1)
    elif _has_no_gaps(tensor):
        flat = tensor.as_strided((tensor.numel(),), (1,))
    else:
        flat = tensor.reshape(-1)
    word = _word(flat)
    if flat.storage_offset() * flat.element_size() % word.itemsize:
        flat = flat.clone()
    return flat.view(word)


def _has_no_gaps(tensor: Any) -> bool:
    """True if the elements fill a range of memory, in any order of dimensions, such as channels last."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _word(tensor: Any) -> Any:
    torch = _torch()
    size = tensor.numel() * tensor.element_size()
    words = [getattr(torch, name) for name in _WORDS]
    return next(each for each in words if size % each.itemsize == 0)


def _words(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size() // _word(tensor).itemsize)


def _groups(sizes: Sequence[int]) -> list[list[list[Piece]]]:
    """Groups of chunks of pieces. A tensor lies in one group; small tensors share a chunk."""
    total, passed = max(1, sum(sizes)), 0
    groups: list[list[list[Piece]]] = [[] for _ in range(GROUPS)]
    for number, size in enumerate(sizes):
        chunks = groups[min(GROUPS - 1, passed * GROUPS // total)]
        room = CHUNK - sum(each.end - each.begin for each in chunks[-1]) if chunks else 0
        begin = 0
        while begin < size:
            if room == 0:
                chunks.append([])
                room = CHUNK
            end = min(size, begin + room)
            chunks[-1].append(Piece(number, begin, end))
            room -= end - begin
            begin = end
        passed += size
    return groups


def _odd(numbers: Any) -> Any:
    """Odd numbers that look random: the mixing function of SplitMix64, modulo 2**64."""
    mixed = numbers * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        shifted = (mixed >> shift) & ((1 << (64 - shift)) - 1)  # torch's shift keeps the sign
        mixed = (mixed ^ shifted) * _signed(factor)
    return mixed | 1


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _torch() -> Any:
    return importlib.import_module("torch")
