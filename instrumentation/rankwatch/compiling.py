"""Calls of a run inside a function that torch.compile compiles.

A compiled graph has no moments at which a phase could begin or end. So these calls record nothing there, and
the compiler must see that they do nothing: otherwise each would break the graph in two.

`run.phase` is a built-in method, too hot for a check of its own. The compiler is given a substitute for it.
The other methods ask `is_compiling`, which also has a substitute.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"


def is_compiling() -> bool:
    """False; but the compiler takes it as True, once `keep_out_of_graphs` was called."""
    return False


def keep_out_of_graphs(phase: Callable[[str], object]) -> Callable[[], None]:
    """Have the compiler take `phase` as a function that does nothing, now or when torch loads the compiler.

    Returns a function that stops waiting for the compiler.
    """
    if _COMPILER in sys.modules:
        _substitute(phase)
        return _nothing
    finder = _CompilerLoads(lambda: _substitute(phase))
    sys.meta_path.insert(0, finder)
    return finder.remove


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


def _nothing() -> None: ...


class _CompilerLoads:
    """A finder of modules that only watches: it calls `loaded` once after the compiler was imported."""

    def __init__(self, loaded: Callable[[], None]) -> None:
        self._loaded = loaded

    def remove(self) -> None:
        """Stop watching."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The compiler's own spec, with a loader that calls back; None for every other module."""
        if name != _COMPILER:
            return None
        self.remove()
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        execute, loaded = loader.exec_module, self._loaded

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                loaded()
            except Exception:  # noqa: BLE001 - another release of torch; the graph breaks, nothing else
                return

        loader.exec_module = exec_module
        return spec
