"""Members of a process group in short form."""

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
def test_ranks_are_told_in_runs(ranks: tuple[int, ...], text: str) -> None:
    """A person reads at a glance which ranks are meant."""
    assert members_text(ranks) == text


@BUSY_MACHINE
@given(st.sets(st.integers(0, 20000), max_size=200), st.sets(st.integers(0, 20000), max_size=200))
def test_different_groups_have_different_texts(one: set[int], other: set[int]) -> None:
    """However many ranks they have, and in whatever order these come."""
    first, second = members_text(list(one)), members_text(sorted(other, reverse=True))
    assert len(first) <= MOST_CHARACTERS
    assert (first == second) == (one == other)
