"""The FLOPs of the model for a token, as torch counts them in one step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rankwatch.conventions.vocabulary import FLOPS_PER_TOKEN
from rankwatch.failures import Failures
from rankwatch.scalars import StatedValues

_SPLIT = ("cp", "ep", "pp", "tp")
"""Dimensions over which ranks share the work for one token."""


class FlopCount(AbstractContextManager["FlopCount"]):
    """Counts the floating-point operations of a block by torch's own counter, and states those of a token.

    tokens: that the block works on.
    coordinates: the rank's position in each parallel dimension, and the size of that.
    """

    def __init__(
        self,
        tokens: float,
        stated: StatedValues,
        failures: Failures,
        coordinates: Mapping[str, tuple[int, int]],
    ) -> None:
        self._tokens, self._stated, self._failures, self._coordinates = tokens, stated, failures, coordinates
        self._mode: Any = None
        self._inside = 0
        """How often it has been entered again inside itself."""

    def __enter__(self) -> FlopCount:
        if self._mode is not None:
            self._inside += 1
            return self
        try:
            self._mode = _counter(self._failures)
            self._mode.__enter__()
        except Exception as error:  # noqa: BLE001 - no counter may end the training
            self._mode = None
            self._failures.note("count FLOPs", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mode is None or self._inside:
            self._inside = max(0, self._inside - 1)
            return
        mode, self._mode = self._mode, None
        try:
            mode.__exit__(kind, error, trace)
            if kind is None:
                self._state(int(mode.get_total_flops()))
        except Exception as failure:  # noqa: BLE001 - as above
            self._failures.note("count FLOPs", failure)

    def _state(self, flops: int) -> None:
        split = [name for name, (_, size) in self._coordinates.items() if name in _SPLIT and size > 1]
        if split:
            self._failures.misuse(
                "count_flops counts the work of one rank, and this run splits a model over "
                f"{', '.join(split)}: state the FLOPs of a token with start(flops_per_token=)"
            )
        elif flops <= 0:
            self._failures.misuse("count_flops saw no operation that torch can count, such as compiled code")
        else:
            self._stated.state(FLOPS_PER_TOKEN, flops / self._tokens)


def _counter(failures: Failures) -> Any:
    """Return torch's counter. It runs inside each operation of the block, so its failures must stay there."""
    from torch.utils.flop_counter import FlopCounterMode

    class Counter(FlopCounterMode):
        def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
            try:
                return super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]
            except Exception as error:  # noqa: BLE001 - the formula of any operation
                failures.note("count FLOPs", error)
                return out

    return Counter(display=False)
