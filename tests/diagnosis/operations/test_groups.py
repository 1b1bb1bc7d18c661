"""The group-by primitives, against their plain definitions."""

from __future__ import annotations

import numpy as np

from rankwatch_diagnosis.operations.groups import Groups, cumcount, factorize

GROUPS = Groups(np.array([0, 1, 0, 0, 1, 1]), 3)
VALUES = np.array([1.0, 9.0, 2.0, np.nan, 4.0, 8.0])


def test_factorize() -> None:
    """Distinct values come in ascending order, for dense ranges and for far ones."""
    for values in ([5, 3, 5, 9], [10**12, 3, 10**12]):
        code, distinct = factorize(np.array(values))
        assert distinct.tolist() == sorted(set(values))
        assert distinct[code].tolist() == values
    assert factorize(np.empty(0, dtype=np.int64))[0].size == 0


def test_ngroup() -> None:
    """Groups are numbered in the order of their sorted keys."""
    groups = Groups.by(np.array([7, 3, 7, 3]), np.array([1, 2, 0, 2]))
    assert (groups.number.tolist(), groups.count) == ([2, 0, 1, 0], 3)


def test_ngroup_beyond_64_bits() -> None:
    """The product of the numbers of keys may not fit, and what occurs is still kept apart."""
    random = np.random.default_rng(0)
    keys = [random.permutation(5_000) for _ in range(6)]  # 5,000 ** 6 is above 2 ** 63
    assert Groups.by(*keys).count == 5_000
    twice = [np.r_[key, key] for key in keys]
    assert Groups.by(*twice).number[:5_000].tolist() == Groups.by(*twice).number[5_000:].tolist()


def test_grid() -> None:
    """Every cell of the array has a number, whether it occurs or not."""
    cells = Groups.grid((np.array([0, 1]), 2), (np.array([2, 0]), 3))
    assert (cells.number.tolist(), cells.count) == ([2, 3], 6)


def test_cumcount() -> None:
    """In the order of the rows, or in one that is given."""
    key = np.array([4, 1, 4, 4, 1])
    assert cumcount(key).tolist() == [0, 0, 1, 2, 1]
    assert cumcount(key, np.array([4, 3, 2, 1, 0])).tolist() == [2, 1, 1, 0, 0]
    assert cumcount(np.empty(0, dtype=np.int64)).size == 0


def test_reductions() -> None:
    """An empty group has no size, no sum and no mean; its extremes are infinite."""
    values = np.nan_to_num(VALUES)
    np.testing.assert_array_equal(GROUPS.size(), [3, 3, 0])
    np.testing.assert_array_equal(GROUPS.sum(values), [3.0, 21.0, 0.0])
    np.testing.assert_array_equal(GROUPS.mean(values), [1.0, 7.0, np.nan])
    np.testing.assert_array_equal(GROUPS.min(values), [0.0, 4.0, np.inf])
    np.testing.assert_array_equal(GROUPS.max(values), [2.0, 9.0, -np.inf])
    np.testing.assert_array_equal(Groups(GROUPS.number, 2).first(values), [1.0, 9.0])


def test_group_median() -> None:
    """Gaps are left out; a group without values has no median."""
    np.testing.assert_array_equal(GROUPS.median(VALUES), [1.5, 8.0, np.nan])
    np.testing.assert_array_equal(GROUPS.low_median(VALUES), [1.0, 8.0, np.nan])
