"""Two sums over the bits of tensors, computed where the tensors are.

The bits are read as integers of 64 bits; a tensor that ends within one is filled up with zeros. The first sum
weighs each integer by an odd number that depends on its position, modulo 2**64. Its upper half is added to it
before, times another odd number: else two flips of the highest bit would cancel out, as the difference of two
weights is even. One flipped bit always changes the sum, because its effect is an odd number times a power of
two below 2**64. A permutation and several flips do so with near certainty.

The second sum is `torch.hash_tensor`, where torch has it: it knows no position. A tensor's values are never
looked at as numbers, so the sign of zero and the payload of a NaN count.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

GROUPS = 16
"""Parts of the parameters that are told apart, of about the same size. Each has its own two sums."""
BLOCK = 1 << 16
"""Integers with weights of their own; another weight stands for the block. They fit into a CPU's cache."""
_BLOCKS_AT_ONCE = 16
"""On a GPU, so that it has few kernels to start. It bounds the scratch memory: 16 MiB."""
_WORDS = ("int64", "int32", "int16", "uint8")
_WORD_BYTES = 8
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, odd."""


class Piece(NamedTuple):
    """A part of the integers of one tensor."""

    tensor: int
    begin: int
    end: int


class Digest:
    """The sums of tensors of one layout on one device.

    After the first call it allocates little on the device but what `compute` returns: copies of tensors that
    have gaps, that are not aligned, or that do not end with an integer. It uses no random numbers and never
    waits for the device.
    """

    def __init__(self, tensors: Sequence[Any], *, blocks_at_once: int | None = None) -> None:
        """Prepare for these tensors. blocks_at_once: by default what suits the device, with the same sums."""
        torch = _torch()
        device = tensors[0].device
        # The CPU reads a block once, from its cache; only there integers have a product of vectors.
        self._at_once = blocks_at_once or (1 if device.type == "cpu" else _BLOCKS_AT_ONCE)
        self._groups = _groups([_words(each) for each in tensors], self._at_once * BLOCK)
        chunks = [chunk for group in self._groups for chunk in group]
        longest = max(_length([chunk]) for chunk in chunks)
        joined = max((_length([chunk]) for chunk in chunks if len(chunk) > 1), default=0)
        most = max(-(-_length(group) // BLOCK) for group in self._groups)
        with torch.no_grad():
            self._weights = _odd(torch.arange(min(BLOCK, longest), dtype=torch.int64, device=device))
            numbers = torch.arange(GROUPS * most, dtype=torch.int64, device=device)
            self._block_weights = _odd(numbers + BLOCK).view(GROUPS, most)
            self._scratch, self._joined = (
                torch.empty(size, dtype=torch.int64, device=device) for size in (longest, joined)
            )
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
                    parts = [_part(flat[at], begin, end) for at, begin, end in chunk]
                    self._add(group, number * self._at_once, parts)
            sums = (self._sums * self._block_weights).sum(1)
            if self._hash is None:
                return torch.stack((sums, torch.zeros_like(sums)))
            return torch.stack((sums, self._hash(self._hashes, 1).view(torch.int64)))

    def _add(self, group: int, block: int, parts: list[Any]) -> None:
        torch = _torch()
        bits = parts[0]
        if len(parts) > 1:
            bits = torch.cat(parts, out=self._joined[: sum(each.numel() for each in parts)])
        mixed = torch.bitwise_right_shift(bits, 32, out=self._scratch[: bits.numel()])
        torch.add(bits, mixed, alpha=_signed(_GOLDEN), out=mixed)
        if self._hash is not None:
            self._hashes[group, block] = self._hash(bits).view(torch.int64)
        if self._at_once == 1:
            torch.dot(mixed, self._weights[: bits.numel()], out=self._sums[group, block])
            return
        whole = bits.numel() // BLOCK
        cut = whole * BLOCK
        for rows, at in ((mixed[:cut].view(whole, BLOCK), 0), (mixed[cut:].view(1, -1), whole)):
            if rows.numel():
                rows.mul_(self._weights[: rows.shape[1]])
                torch.sum(rows, 1, out=self._sums[group, block + at : block + at + len(rows)])


def layout_of(tensors: Sequence[Any]) -> tuple[object, ...]:
    """Return what is equal for tensors that one `Digest` can be used for."""
    return tuple((each.device, each.dtype, each.numel()) for each in tensors)


def group_of(tensors: Sequence[Any]) -> list[int]:
    """Return the group of each tensor."""
    found = [0] * len(tensors)
    for group, chunks in enumerate(_groups([_words(each) for each in tensors], BLOCK)):
        for chunk in chunks:
            for piece in chunk:
                found[piece.tensor] = group
    return found


def as_integers(tensor: Any) -> Any:
    """Return the bits of a tensor in the order of memory, as the largest integers that it consists of.

    A view, unless it has gaps.
    """
    torch = _torch()
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_contiguous():
        flat = tensor.view(-1)
    elif _has_no_gaps(tensor):
        flat = tensor.as_strided((tensor.numel(),), (1,))
    else:
        flat = tensor.reshape(-1)
    size = flat.element_size()
    starts = flat.numel() * size, flat.storage_offset() * size, flat.data_ptr()
    words = (getattr(torch, name) for name in _WORDS)
    return flat.view(next(each for each in words if not any(start % each.itemsize for start in starts)))


def _part(flat: Any, begin: int, end: int) -> Any:
    """Return integers of 64 bits of a tensor; `flat` may consist of smaller ones."""
    torch = _torch()
    if flat.dtype == torch.int64:
        return flat[begin:end]
    each = _WORD_BYTES // flat.element_size()
    part = flat[begin * each : end * each]
    filled = torch.zeros(end - begin, dtype=torch.int64, device=flat.device)
    filled.view(flat.dtype)[: part.numel()].copy_(part)
    return filled


def _has_no_gaps(tensor: Any) -> bool:
    """Return True if the elements fill a range of memory, in any order of dimensions, as channels last."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _words(tensor: Any) -> int:
    return int(-(-tensor.numel() * tensor.element_size() // _WORD_BYTES))


def _groups(sizes: Sequence[int], most: int) -> list[list[list[Piece]]]:
    """Return groups of chunks of pieces. A tensor lies in one group; small ones share a chunk of at most so
    many integers."""
    total, passed = max(1, sum(sizes)), 0
    groups: list[list[list[Piece]]] = [[] for _ in range(GROUPS)]
    for number, size in enumerate(sizes):
        chunks = groups[min(GROUPS - 1, passed * GROUPS // total)]
        room = most - _length(chunks[-1:]) if chunks else 0
        begin = 0
        while begin < size:
            if room == 0:
                chunks.append([])
                room = most
            end = min(size, begin + room)
            chunks[-1].append(Piece(number, begin, end))
            room -= end - begin
            begin = end
        passed += size
    return groups


def _length(chunks: Sequence[Sequence[Piece]]) -> int:
    return sum(piece.end - piece.begin for chunk in chunks for piece in chunk)


def _odd(numbers: Any) -> Any:
    """Return odd numbers that look random: the mixing function of SplitMix64, modulo 2**64."""
    mixed = numbers * _signed(_GOLDEN)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        shifted = (mixed >> shift) & ((1 << (64 - shift)) - 1)  # torch's shift keeps the sign
        mixed = (mixed ^ shifted) * _signed(factor)
    return mixed | 1


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _torch() -> Any:
    return importlib.import_module("torch")
