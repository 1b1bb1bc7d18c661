"""Calls of a run inside a function that torch.compile compiles.

A compiled graph has no moments at which a phase could begin or end. So these calls record nothing there, and
the compiler must see that they do nothing: otherwise each would break the graph in two.

`run.phase` is a built-in method, too hot for a check of its own. The compiler is given a substitute for it.
The other methods ask `is_compiling`, which also has a substitute.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rankwatch.automatic.imports import when_imported

_COMPILER = "torch._dynamo"


def is_compiling() -> bool:
    """False; but the compiler takes it as True, once `keep_out_of_graphs` was called."""
    return False


def keep_out_of_graphs(phase: Callable[[str], object]) -> Callable[[], None]:
    """Have the compiler take `phase` as a function that does nothing, now or when torch loads the compiler.

    Returns a function that stops waiting for the compiler.
    """
    return when_imported({_COMPILER: lambda compiler: _substitute(phase)})


def _substitute(phase: Callable[[str], object]) -> None:
    torch: Any = importlib.import_module("torch")
    substitute: Any = getattr(torch.compiler, "substitute_in_graph", None)
    if substitute is None:  # before torch 2.6
        return
    substitute(phase, skip_signature_check=True)(_null_phase)
    if not getattr(is_compiling, "substituted", False):
        substitute(is_compiling)(_true)
        is_compiling.substituted = True  # type: ignore[attr-defined]


def _null_phase(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def _true() -> bool:
    return True
