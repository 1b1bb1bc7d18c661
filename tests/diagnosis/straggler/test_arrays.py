"""Medians and groups over whole columns, against their plain definitions."""

from __future__ import annotations

import numpy as np

from rankwatch_diagnosis.straggler.arrays import (
    codes,
    combine,
    grouped_low_median,
    grouped_median,
    leave_one_out_median,
    steady_mean,
)


def test_codes_number_distinct_values_in_order() -> None:
    """For dense ranges and for far ones."""
    for values in ([5, 3, 5, 9], [10**12, 3, 10**12]):
        distinct, code = codes(np.array(values))
        assert distinct.tolist() == sorted(set(values))
        assert distinct[code].tolist() == values
    assert codes(np.empty(0, dtype=np.int64))[0].size == 0


def test_a_grouped_median_is_that_of_each_group_without_its_gaps() -> None:
    """NaN for a group that has nothing."""
    values = np.array([1.0, 9.0, 2.0, np.nan, 4.0, 8.0])
    group = np.array([0, 1, 0, 0, 1, 1])
    np.testing.assert_array_equal(grouped_median(values, group, 3), [1.5, 8.0, np.nan])
    np.testing.assert_array_equal(grouped_low_median(values, group, 3), [1.0, 8.0, np.nan])


def test_a_median_without_the_value_itself() -> None:
    """As leaving each one out by hand."""
    random = np.random.default_rng(0)
    for count in (2, 3, 4, 7):
        values = random.random((5, count))
        values[0, 0] = np.nan
        found = leave_one_out_median(values, axis=1)
        for row in range(5):
            for column in range(count):
                others = np.delete(values[row], column)
                others = others[np.isfinite(others)]
                expected = np.median(others) if others.size else np.nan
                np.testing.assert_allclose(found[row, column], expected)


def test_with_nobody_else_there_is_no_median() -> None:
    """Not the value itself."""
    assert np.isnan(leave_one_out_median(np.array([[3.0]]), axis=1)).all()


def test_combinations_stay_apart_beyond_64_bits() -> None:
    """Numbers of steps and ranks may be large."""
    one = np.array([0, 1, 0, 1])
    other = np.array([0, 0, 1, 0])
    key = combine((one, 2**40), (other, 2**40), (one, 2**40))
    assert len(np.unique(key)) == 3
    assert key[1] == key[3]


def test_a_steady_mean_follows_all_values_and_not_a_single_one() -> None:
    """One late operation of eight moves it far less than the mean; a shift of all moves it in full."""
    values = 0.03 * np.random.default_rng(0).standard_normal((200, 8))
    np.testing.assert_allclose(steady_mean(values + 0.05), steady_mean(values) + 0.05)
    assert np.std(steady_mean(values)) < 1.1 * np.std(values.mean(axis=1))
    struck = values.copy()
    struck[:, 0] += 1.0
    assert np.mean(struck.mean(axis=1)) > 0.12
    assert np.mean(steady_mean(struck)) < 0.02


def test_a_steady_mean_of_few_values_is_their_mean() -> None:
    """Gaps are left out."""
    np.testing.assert_array_equal(steady_mean(np.array([[1.0, 3.0], [np.nan, 2.0]])), [2.0, 2.0])
