"""The FLOPs of the model for a token, as the run states them or as torch counts them once.

They are a scalar that is recorded again now and then, so that an agent that starts later knows it, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rankwatch.conventions.cost import FLOPS_PER_TOKEN
from rankwatch.errors import UsageError
from rankwatch.failures import Failures

REPEAT_STEPS = 500
"""Steps after which it is recorded again: far fewer than a ring holds."""
_SPLIT = ("cp", "ep", "pp", "tp")
"""Dimensions over which ranks share the work for one token."""


class FlopsPerToken:
    """The value of a run, once it is known.

    record: takes the name and the value of a scalar.
    coordinates: the rank's position in each parallel dimension.
    """

    def __init__(
        self,
        record: Callable[[str, float], None],
        failures: Failures,
        coordinates: Callable[[], Mapping[str, tuple[int, int]]],
    ) -> None:
        self._record = record
        self._failures = failures
        self._coordinates = coordinates
        self._value = 0.0
        self._steps_left = 0

    def state(self, value: float) -> None:
        """From now on this is the value. The next step records it."""
        self._value, self._steps_left = value, 0

    def after_step(self) -> None:
        """Record the value if it is due."""
        if not self._value:
            return
        self._steps_left -= 1
        if self._steps_left < 0:
            self._steps_left = REPEAT_STEPS
            self._record(FLOPS_PER_TOKEN, self._value)

    def counted(self, flops: int, tokens: float) -> None:
        """State what torch has counted in a block that worked on so many tokens."""
        split = [name for name, (_, size) in self._coordinates().items() if name in _SPLIT and size > 1]
        if split:
            self._failures.misuse(
                "count_flops counts the work of one rank, and this run splits a model over "
                f"{', '.join(split)}: state the FLOPs of a token with start(flops_per_token=)"
            )
        elif flops <= 0:
            self._failures.misuse("count_flops saw no operation that torch can count, such as compiled code")
        else:
            self.state(flops / tokens)

    def count(self, tokens: float) -> FlopCount:
        """A block in which torch counts."""
        return FlopCount(self, tokens, self._failures)


class FlopCount(AbstractContextManager["FlopCount"]):
    """Counts the floating-point operations of a block by torch's own counter."""

    def __init__(self, stated: FlopsPerToken, tokens: float, failures: Failures) -> None:
        self.flops = 0
        """Those of the block, after its end."""
        self._stated, self._tokens, self._failures = stated, tokens, failures
        self._mode: Any = None

    def __enter__(self) -> FlopCount:
        try:
            from torch.utils.flop_counter import FlopCounterMode

            self._mode = FlopCounterMode(display=False)
            self._mode.__enter__()
        except Exception as error:  # noqa: BLE001 - no counter may end the training
            self._mode = None
            self._failures.note("count FLOPs", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mode is None:
            return
        try:
            self._mode.__exit__(kind, error, trace)
            self.flops = int(self._mode.get_total_flops())
            if kind is None:
                self._stated.counted(self.flops, self._tokens)
        except Exception as failure:  # noqa: BLE001 - as above
            self._failures.note("count FLOPs", failure)


def as_amount(name: str, value: object) -> float:
    """A finite number above 0. Raises UsageError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 < value < math.inf:
        return float(value)
    raise UsageError(f"{name} is {value!r:.100}, expected a number above 0")
