"""Microbatches of packed documents: equal in tokens, unequal in the squares of their lengths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.simulation.shape import JobShape

CONTEXT_TOKENS = 8_192
MOST_DOCUMENTS = 24
"""In one microbatch."""
MEDIAN_TOKENS = 600.0
SIGMA = 1.2
"""Of the log-normal law of document lengths: web text has a few documents of a whole context."""


def squared_lengths(shape: JobShape, steps: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Sum of squared document lengths over its mean, of shape (step, replica, microbatch).

    Documents fill a context one after the other; the last one is cut off, as in packed pre-training data.
    Attention works on pairs of tokens of one document, so its cost grows with this sum.
    """
    size = (steps, shape.data_parallel, shape.microbatches, MOST_DOCUMENTS)
    lengths = MEDIAN_TOKENS * np.exp(SIGMA * random.standard_normal(size, dtype=np.float32))
    ends = np.minimum(np.cumsum(lengths, axis=-1), CONTEXT_TOKENS)
    taken = np.diff(ends, axis=-1, prepend=0.0)
    sums = np.sum(taken**2, axis=-1, dtype=np.float64)
    relative: NDArray[np.float64] = sums / sums.mean()
    return relative
