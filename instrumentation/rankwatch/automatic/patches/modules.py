"""Forward passes of root modules: those that no other module calls.

No hook sees only them, and hooks for all modules would slow each one down. So the classes of the root modules
are learned during the first steps: `torch.nn.Module.__call__` is replaced until the first module is called,
and put back before the call goes on. Then the class of that module gets a `__call__` that reports. Subclasses
inherit it; below a root module it costs one test. Later the same happens where a backward pass follows no
forward pass that was seen: a model of another class is trained then.

The compiler sees neither: it traces what is below the call. The modules themselves do not change, so saved
ones load without rankwatch. That holds for cloudpickle too, which saves the classes of a script by value.
"""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rankwatch.automatic import loop
from rankwatch.automatic.patching import guarded, replace
from rankwatch.automatic.visibility import visibility
from rankwatch.compiling import keep_from_compiler
from rankwatch.conventions.vocabulary import Capability, Unseen

_MOST_CLASSES = 32
"""Classes of root modules that are learned."""
_UPDATES = 3
"""Optimizer steps during which classes are learned in any case."""
_CALLS = 8
"""Calls of root modules for which they are learned later, where a forward pass was not seen."""


_root_modules: RootModules | None = None
"""Those of this process."""


def patch(module: ModuleType) -> None:
    """Watch torch's base class of modules, once `torch.compiler` is there."""
    global _root_modules
    if not hasattr(module, "is_compiling"):
        visibility.cannot_see(Capability.FORWARD, Unseen.TOO_OLD)
        return
    torch = importlib.import_module("torch.nn.modules.module")
    _root_modules = RootModules(torch.Module, module.is_compiling)
    _root_modules.learn()


def learn_more() -> None:
    """Learn from a forward pass not seen: the next module called may be one that no other module calls."""
    if _root_modules is not None:
        _root_modules.learn_more()


class _Event:
    """A function that becomes one of the standard library where a class is saved by value."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call

    def __call__(self, value: Any) -> Any:
        return self._call(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (operator.is_, None)


def _reporting(call: Callable[..., Any], compiling: Any, began: Any, ended: Any) -> Any:
    """Return a `__call__` that reports. It uses no global name, so that it can be saved by value."""

    def reporting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or not began(self):
            return call(self, *args, **kwargs)
        result = None
        try:
            result = call(self, *args, **kwargs)
            return result
        finally:
            ended(result)

    return reporting


def _inherited(base: Any) -> Callable[..., Any]:
    """Return the `__call__` of the base class, whatever it is by then: tracers replace it for a while."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return base.__call__(self, *args, **kwargs)

    return call


class RootModules:
    """Learns which classes are called as root modules, and watches those."""

    def __init__(self, base: Any, compiling: Callable[[], bool]) -> None:
        self._base = base
        self._compiling = compiling
        self._original = base.__call__
        self._learner: Any = None
        """What the base class has for a `__call__` while the next root module is waited for."""
        self._classes: set[type] = set()
        self._unseen = 0
        self._calls_left = 0
        for each in (_Event.__call__, _reporting(base, compiling, base, base)):
            keep_from_compiler(each, calls=each is _Event.__call__)
        # Saved by value, `began` is `partial(is_, None)`: false for each module, so nothing is reported.
        self._began = _Event(guarded("watch the beginning of forward passes", self._call_began))
        self._ended = _Event(guarded("watch the end of forward passes", self._call_ended))

    def learn(self) -> None:
        """Wait for the next call of a module."""
        if self._base.__call__ is not self._original:
            return  # another library has replaced it, for now or for good
        learner = _reporting(self._original, self._compiling, self._began, self._ended)
        self._learner = self._base.__call__ = functools.wraps(self._original)(learner)

    def learn_more(self) -> None:
        """Learn from a forward pass not seen. Loops where that is so in each step learn ever more seldom."""
        self._unseen += 1
        if self._unseen & (self._unseen - 1) == 0 and len(self._classes) < _MOST_CLASSES:
            self._calls_left = _CALLS
            if self._learner is None:
                self.learn()

    def _put_back(self) -> None:
        if self._learner is not None and self._base.__call__ is self._learner:
            self._base.__call__ = self._original
        self._learner = None

    def _call_began(self, module: Any) -> bool:
        if self._learner is not None:
            self._put_back()
        began = loop.current().forward_began(module)
        if began and type(module) not in self._classes and len(self._classes) < _MOST_CLASSES:
            self._watch(type(module))
        return began

    def _call_ended(self, result: Any) -> None:
        running = loop.current()
        running.forward_ended(_holds_loss(result))
        if (running.updates < _UPDATES or self._calls_left) and len(self._classes) < _MOST_CLASSES:
            self._calls_left = max(0, self._calls_left - 1)
            if self._learner is None:
                self.learn()

    def _watch(self, kind: Any) -> None:
        self._classes.add(kind)
        own = kind.__call__
        call = _inherited(self._base) if own is self._original else own
        wrapper = _reporting(call, self._compiling, self._began, self._ended)
        replace(kind, "__call__", lambda original, _: wrapper, shows=Capability.FORWARD)


def _holds_loss(result: Any) -> bool:
    """Return True if a module returned a scalar that has a gradient: alone, in a tuple, or as `loss`."""
    if isinstance(result, Mapping):
        result = result.get("loss")
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return any(getattr(each, "ndim", 1) == 0 and getattr(each, "requires_grad", False) for each in parts[:8])
