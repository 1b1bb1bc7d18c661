"""Noise of made losses, in families that share nothing but their standard deviation, which is about 1."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

Noise = Callable[[], float]
"""The noise of the next step."""


def _gaussian(source: random.Random) -> Noise:
    return lambda: source.gauss(0.0, 1.0)


def _heavy_tailed(source: random.Random) -> Noise:
    """Student's t with 3 to 6 degrees of freedom: one value in some thousand is 10 sigma away."""
    freedom = source.uniform(3.0, 6.0)
    scale = math.sqrt((freedom - 2.0) / freedom)

    def noise() -> float:
        return scale * source.gauss(0.0, 1.0) / math.sqrt(source.gammavariate(freedom / 2, 2 / freedom))

    return noise


def _skewed(source: random.Random) -> Noise:
    """Log-normal: far outliers above, none below, as losses of small batches have."""
    shape = source.uniform(0.3, 0.8)
    mean = math.exp(shape**2 / 2)
    scale = mean * math.sqrt(math.exp(shape**2) - 1.0)
    return lambda: (math.exp(source.gauss(0.0, shape)) - mean) / scale


class _Carried:
    """Noise of which each step keeps a part (an autoregression of order one)."""

    def __init__(self, source: random.Random, memory: float) -> None:
        self._source, self.memory = source, memory
        self._fresh = math.sqrt(1.0 - memory**2)
        self._carried = source.gauss(0.0, 1.0)

    def __call__(self) -> float:
        self._carried = self.memory * self._carried + self._source.gauss(0.0, self._fresh)
        return self._carried


_SCALES = ((0.9, 0.0), (0.35, 0.9), (0.2, 0.99), (0.15, 0.999))
"""Size and memory of the parts of noise of many scales."""


def memories(name: str, noise: Noise) -> tuple[tuple[float, float], ...]:
    """Size and memory of the parts that noise of a family is the sum of."""
    if isinstance(noise, _Carried):
        return ((1.0, noise.memory),)
    return _SCALES if name == "many scales" else ((1.0, 0.0),)


def _carried(source: random.Random) -> Noise:
    return _Carried(source, source.uniform(0.5, 0.95))


def _many_scales(source: random.Random) -> Noise:
    """Parts that last 1, 10, 100 and 1,000 steps: the longer, the smaller, as with data in rough order."""
    parts = [(part, _Carried(source, memory)) for part, memory in _SCALES]
    return lambda: sum(part * noise() for part, noise in parts)


def _changing(source: random.Random) -> Noise:
    """Its standard deviation wanders by a factor of two and back, over some hundred steps."""
    volatility = _Carried(source, 0.995)
    return lambda: math.exp(0.35 * volatility()) * source.gauss(0.0, 0.94)


def _in_turns(source: random.Random) -> Noise:
    """Two sorts of batches in turn, of which one is harder and noisier: buckets by length, two data sets."""
    often, apart = source.uniform(0.1, 0.5), source.uniform(0.5, 2.0)
    mean = often * apart
    scale = math.sqrt(often * (apart**2 + 1.0) + (1.0 - often) * 0.6 - mean**2)

    def noise() -> float:
        hard = source.random() < often
        return (source.gauss(apart, 1.0) if hard else source.gauss(0.0, 0.775)) / scale - mean / scale

    return noise


NOISES: Mapping[str, Callable[[random.Random], Noise]] = MappingProxyType(
    {
        "gaussian": _gaussian,
        "heavy-tailed": _heavy_tailed,
        "skewed": _skewed,
        "carried over": _carried,
        "many scales": _many_scales,
        "changing": _changing,
        "in turns": _in_turns,
    }
)
