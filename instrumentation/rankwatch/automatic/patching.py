"""Replaces a function of a library by one that also reports, once, so that training cannot notice.

    replace(dataloader._BaseDataLoaderIter, "__next__", make_wrapper, shows=Capability.DATA_WAIT)
    watch(torch.Tensor, "backward", began=backward_began, ended=backward_ended, shows=Capability.BACKWARD)

The original's exceptions and results pass untouched. If another library has replaced the function before, its
function is called; if one does so later, it calls ours.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from rankwatch.automatic.visibility import visibility
from rankwatch.compiling import keep_from_compiler
from rankwatch.conventions.vocabulary import Capability, Unseen

MOST_FAILURES = 3
"""Failures of rankwatch's own code at one place after which it is not called there any more."""
_ABSENT = object()

Function = Callable[..., Any]
Began = Callable[..., Any]
"""Called with the arguments of the function before it. What it returns is given to `Ended`."""
Ended = Callable[[Any, Any, BaseException | None], object]
"""Called after the function with what `Began` returned, the result, and the exception that it raised."""
F = TypeVar("F", bound=Callable[..., Any])


class Replacement:
    """A function of a library that was replaced."""

    def __init__(self, owner: Any, name: str, original: Any, shows: Sequence[Capability]) -> None:
        self.owner = owner
        self.name = name
        self.original = original
        """What the owner held before: a function, or a static or class method of a class."""
        self.shows = shows
        self.wrapper: Any = None
        """What the owner holds instead."""
        self._others: list[ModuleType] = []
        self._own = True
        self.active = True
        """False once rankwatch's code is not called here any more."""
        self.failures = 0

    @property
    def place(self) -> str:
        """Owner and name, for messages."""
        owner = getattr(self.owner, "__name__", "")
        return f"{owner}.{self.name}" if owner else self.name

    def failed(self, error: Exception) -> None:
        """Count a failure of rankwatch's own code here; after several it is switched off."""
        self.failures += 1
        visibility.failed(f"watch {self.place}", error)
        if self.failures >= MOST_FAILURES and self.active:
            self.active = False
            for each in self.shows:
                visibility.cannot_see(each, Unseen.HOOK_FAILED)

    def in_place(self) -> bool:
        """Return True while the owner still holds our function: nobody has replaced it since."""
        return inspect.getattr_static(self.owner, self.name, None) is self.wrapper

    def put(self, wrapper: Any, others: Iterable[ModuleType | None]) -> None:
        """Give the owner this function instead, and those of the other modules that hold the original."""
        self._own = self.name in vars(self.owner)
        self.wrapper = wrapper
        self._others = [each for each in others if each and vars(each).get(self.name) is self.original]
        for each in (self.owner, *self._others):
            setattr(each, self.name, wrapper)

    def undo(self) -> None:
        """Put the original back. Where another library has replaced ours since, it only falls silent."""
        self.active = False
        _replaced.pop((id(self.owner), self.name), None)
        for each in self._others:
            if vars(each).get(self.name) is self.wrapper:
                setattr(each, self.name, self.original)
        if not self.in_place():
            return
        if self._own:
            setattr(self.owner, self.name, self.original)
        else:  # the owner has it from a base class
            delattr(self.owner, self.name)


_replaced: dict[tuple[int, str], Replacement] = {}
"""By owner, which the replacement keeps alive, and name."""


def note_displaced() -> None:
    """Say what is not visible because another library has replaced our function and does not call it."""
    for replacement in _replaced.values():
        for each in replacement.shows:
            if not visibility.has_seen(each) and not replacement.in_place():
                visibility.cannot_see(each, Unseen.REPLACED)


def replace(
    owner: Any,
    name: str,
    make_wrapper: Callable[[Function, Replacement], Function],
    *,
    shows: Capability | Sequence[Capability] = (),
    also: Sequence[str] = (),
) -> Replacement | None:
    """Replace `owner.name`, an attribute of a module or class, by `make_wrapper(original, replacement)`.

    also: names of modules that hold the same function under the same name. Those that are loaded get the
        wrapper too; those that are not will take it from the owner.

    The wrapper keeps the name, the documentation and the signature of the original. A function that is
    replaced already stays as it is. None, with a note that `shows` is not visible, if there is no such
    attribute, or no owner. The wrapper itself must keep its exceptions away from training; `watch` does it.
    """
    shown = (shows,) if isinstance(shows, Capability) else tuple(shows)
    found = _replaced.get((id(owner), name))
    original = inspect.getattr_static(owner, name, _ABSENT)
    if found is not None:
        return found
    if original is _ABSENT:
        for each in shown:
            visibility.cannot_see(each, Unseen.TOO_OLD)
        return None
    for other in _replaced.values():  # the same function under another name, or inherited
        if other.wrapper is original:
            return other
    replacement = Replacement(owner, name, original, shown)
    kind = type(original) if isinstance(original, staticmethod | classmethod) else None
    function = original.__func__ if isinstance(original, staticmethod | classmethod) else original
    wrapper = functools.wraps(function)(make_wrapper(function, replacement))
    replacement.put(wrapper if kind is None else kind(wrapper), [sys.modules.get(each) for each in also])
    _replaced[id(owner), name] = replacement
    return replacement


def watch(
    owner: Any,
    name: str,
    *,
    began: Began | None = None,
    ended: Ended | None = None,
    shows: Capability | Sequence[Capability] = (),
    also: Sequence[str] = (),
) -> Replacement | None:
    """Replace `owner.name`, as `replace` does. The function calls `began` before it and `ended` after it.

    Their exceptions are counted and never reach training; after several they are not called any more.
    """
    return replace(owner, name, functools.partial(_watching, began, ended), shows=shows, also=also)


def _watching(
    began: Began | None, ended: Ended | None, original: Function, replacement: Replacement
) -> Function:
    compiling = _compiling()

    def call(*args: Any, **kwargs: Any) -> Any:
        if compiling() or not replacement.active:
            return original(*args, **kwargs)
        token = None
        if began is not None:
            try:
                token = began(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - nothing of ours may end the training
                replacement.failed(error)
        if ended is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _end(ended, replacement, token, None, error)
            raise
        _end(ended, replacement, token, result, None)
        return result

    keep_from_compiler(call, calls=False)
    for each in (began, _end):
        keep_from_compiler(each, calls=True)
    return call


def _compiling() -> Callable[[], bool]:
    """Return torch's own function, which the compiler knows; inside a graph nothing is watched."""
    compiler: Any = sys.modules.get("torch.compiler")
    return getattr(compiler, "is_compiling", None) or bool


def _end(
    ended: Ended, replacement: Replacement, token: Any, result: Any, raised: BaseException | None
) -> None:
    try:
        ended(token, result, raised)
    except Exception as error:  # noqa: BLE001 - as above
        replacement.failed(error)


def guarded(what: str, function: F) -> F:
    """Return a function for callbacks of a library (hooks, listeners): its exceptions are counted, after
    several it is not called any more, and it then returns None."""
    place = Replacement(None, what, None, ())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if place.active:
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - as above
                place.failed(error)
        return None

    keep_from_compiler(call, calls=True)
    return call  # type: ignore[return-value]
