"""Runs a function on many arguments in several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


def in_processes(
    function: Callable[..., _Result], arguments: Sequence[tuple[object, ...]], processes: int
) -> list[_Result]:
    """The results, in order; the same whatever the number of processes."""
    if processes == 1:
        return [function(*each) for each in arguments]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(function, *zip(*arguments, strict=True)))
