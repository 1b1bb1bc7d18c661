"""Summaries of samples."""

from __future__ import annotations

import pytest

from bench.result import BenchError
from bench.spread import quantile, spread


def test_a_quantile_is_a_sample_that_was_taken() -> None:
    """The 99th percentile of a hundred scrapes is the second longest, of few scrapes the longest."""
    assert quantile([float(each) for each in range(1, 101)], 0.99) == 99.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile([3.0, 1.0, 2.0], 0.0) == 1.0


def test_the_median_of_an_even_number_of_samples_lies_between_the_middle_two() -> None:
    """With four samples neither of the middle ones is preferred."""
    assert spread([4.0, 1.0, 2.0, 3.0]).median == 2.5
    assert spread([3.0, 1.0, 2.0]).median == 2.0


def test_no_sample_is_a_broken_benchmark() -> None:
    """Nothing measured must never look like a fast result."""
    with pytest.raises(BenchError, match="no sample"):
        quantile([], 0.5)
    with pytest.raises(BenchError, match="no sample"):
        spread([])
