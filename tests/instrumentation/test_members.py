"""The members of a process group as a short text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch.members import MOST_CHARACTERS, members_text
from support.fuzzing import BUSY_MACHINE


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), ""),
        ((5,), "5"),
        ((0, 1), "0-1"),
        ((0, 2), "0,2"),
        ((3, 1, 0, 2), "0-3"),
        ((0, 4, 8, 12), "0-12/4"),
        ((0, 1, 2, 3, 8, 9, 10, 11), "0-3,8-11"),
        (range(16384), "0-16383"),
    ],
)
def test_members_text(ranks: tuple[int, ...], text: str) -> None:
    """Ranks are grouped into runs, which a person reads at a glance."""
    assert members_text(ranks) == text


@BUSY_MACHINE
@given(st.sets(st.integers(0, 20000), max_size=200), st.sets(st.integers(0, 20000), max_size=200))
def test_unique_text(one: set[int], other: set[int]) -> None:
    """Two groups have the same short text only if they have the same ranks, in any order."""
    first, second = members_text(list(one)), members_text(sorted(other, reverse=True))
    assert len(first) <= MOST_CHARACTERS
    assert (first == second) == (one == other)
