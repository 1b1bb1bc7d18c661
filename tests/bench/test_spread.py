"""Summaries of samples."""

from __future__ import annotations

import pytest

from bench.result import BenchError, quantile, spread


def test_quantile() -> None:
    """A quantile is one of the samples: the 99th percentile of few scrapes is the longest."""
    assert quantile([float(each) for each in range(1, 101)], 0.99) == 99.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile([3.0, 1.0, 2.0], 0.0) == 1.0


def test_median() -> None:
    """The median of an even number of samples is the mean of the middle two."""
    assert spread([4.0, 1.0, 2.0, 3.0]).median == 2.5
    assert spread([3.0, 1.0, 2.0]).median == 2.0


def test_no_samples() -> None:
    """An empty measurement must not look like a fast one."""
    with pytest.raises(BenchError, match="no sample"):
        quantile([], 0.5)
    with pytest.raises(BenchError, match="no sample"):
        spread([])
