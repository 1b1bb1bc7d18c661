"""Detectors of others, from their published rules, each with its own meaning of an alarm.

None is more than its rule: what they do about an alarm (skip, clip, run again, stop) is left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol


class Peer(Protocol):
    """Judges one loss after the other."""

    def alarms(self, value: float) -> bool:
        """Whether the rule holds for the loss of this step."""


class _Window:
    """Mean and standard deviation of the last values."""

    def __init__(self, size: int) -> None:
        self.values: deque[float] = deque(maxlen=size)
        self._sum = self._squares = 0.0
        self._until_exact = size

    @property
    def full(self) -> bool:
        return len(self.values) == self.values.maxlen

    @property
    def mean(self) -> float:
        return self._sum / len(self.values)

    @property
    def sigma(self) -> float:
        return math.sqrt(max(0.0, self._squares / len(self.values) - self.mean**2))

    def add(self, value: float) -> None:
        if self.full:
            self._sum -= self.values[0]
            self._squares -= self.values[0] ** 2
        self.values.append(value)
        self._sum += value
        self._squares += value * value
        self._until_exact -= 1
        if self._until_exact == 0 or not math.isfinite(self._squares):  # rounding must not add up
            self._sum, self._squares = sum(self.values), sum(each * each for each in self.values)
            self._until_exact = len(self.values)


class StabilityMonitor:
    """OLMo-core `StabilityMonitorCallback`: above the mean of the last 128 by 6 standard deviations."""

    def __init__(self, size: int = 128, sigmas: float = 6.0) -> None:
        self._window, self._sigmas = _Window(size), sigmas

    def alarms(self, value: float) -> bool:
        """Whether the value is a spike; the first window is silent."""
        window = self._window
        sigma = window.sigma if window.full else 0.0
        spike = sigma > 1e-10 and value - window.mean > self._sigmas * sigma
        window.add(value)
        return spike


class KillLossSpike:
    """llm-foundry `KillLossSpike`: would it stop the run?

    Twice the mean of the last 100 more than 4 times in a row, or, after 200 steps, half of the last 100
    above 10.
    """

    def __init__(self, size: int = 100, times: float = 2.0, patience: int = 4, cap: float = 10.0) -> None:
        self._window = _Window(size)
        self._size, self._times, self._patience, self._cap = size, times, patience, cap
        self._steps = self._in_a_row = 0

    def alarms(self, value: float) -> bool:
        """Whether the run would be stopped here."""
        window = self._window
        self._steps += 1
        alarm = False
        if window.full:
            self._in_a_row = self._in_a_row + 1 if value >= self._times * window.mean else 0
            alarm = self._in_a_row > self._patience
            if not alarm and self._steps > 2 * self._size and value > self._cap:
                alarm = 2 * sum(each > self._cap for each in window.values) >= self._size
        window.add(value)
        return alarm


class RerunMachine:
    """Megatron-LM `RerunStateMachine`: not finite, or ten times the largest of the first 100 values."""

    def __init__(self, values: int = 100, times: float = 10.0) -> None:
        self._left, self._times, self._largest = values, times, 0.0

    def alarms(self, value: float) -> bool:
        """Whether the step would be run again."""
        if not math.isfinite(value):
            return True
        if self._left:
            self._left -= 1
            self._largest = max(self._largest, abs(value))
            return False
        return abs(value) >= self._times * self._largest


class ZClip:
    """ZClip 1.0: more than 2.5 standard deviations above a moving average (0.97); 25 steps to warm up.

    Made for gradient norms, of which it clips each that is above. What is above enters clipped.
    """

    def __init__(self, keep: float = 0.97, warm_up: int = 25, sigmas: float = 2.5) -> None:
        self._keep, self._warm_up, self._sigmas = keep, warm_up, sigmas
        self._first: list[float] = []
        self._mean = self._variance = 0.0

    def alarms(self, value: float) -> bool:
        """Whether the value would be clipped."""
        if not math.isfinite(value):
            return False
        if len(self._first) < self._warm_up:
            self._first.append(value)
            self._mean = sum(self._first) / len(self._first)
            self._variance = sum((each - self._mean) ** 2 for each in self._first) / len(self._first)
            return False
        sigma = math.sqrt(self._variance)
        above = (value - self._mean) / (sigma + 1e-6)
        taken = self._mean + self._sigmas**2 / above * sigma if above > self._sigmas else value
        self._mean = self._keep * self._mean + (1.0 - self._keep) * taken
        self._variance = self._keep * self._variance + (1.0 - self._keep) * (taken - self._mean) ** 2
        return above > self._sigmas


class ZScore:
    """A plain z-score: more than 3 standard deviations above the mean of the last 30."""

    def __init__(self, size: int = 30, sigmas: float = 3.0) -> None:
        self._window, self._sigmas = _Window(size), sigmas

    def alarms(self, value: float) -> bool:
        """Whether the value is that far above; the first window is silent."""
        window = self._window
        alarm = window.full and value - window.mean > self._sigmas * window.sigma > 0.0
        if math.isfinite(value):
            window.add(value)
        return alarm


PEERS: Mapping[str, Callable[[], Peer]] = MappingProxyType(
    {
        "OLMo-core `StabilityMonitor`, 6 sigma of 128": StabilityMonitor,
        "llm-foundry `KillLossSpike`, 2 x mean of 100": KillLossSpike,
        "Megatron rerun machine, 10 x first 100": RerunMachine,
        "ZClip, 2.5 sigma, average 0.97": ZClip,
        "z-score, 3 sigma of 30": ZScore,
    }
)
