"""How our code stays out of torch.compile: calls of a run inside a compiled function, and what we replace.

A compiled graph has no moments at which a phase could begin or end. So these calls record nothing there, and
the compiler must see that they do nothing: otherwise each would break the graph in two.

`run.phase` is a built-in method, too hot for a check of its own. The compiler is given a substitute for it.
The other methods ask `is_compiling`, which also has a substitute.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_COMPILER = "torch._dynamo"


def is_compiling() -> bool:
    """Return False; but the compiler takes it as True, once `keep_out_of_graphs` was called."""
    return False


def keep_out_of_graphs(phase: Callable[[str], object]) -> Callable[[], None]:
    """Have the compiler take `phase` as a function that does nothing, now or when torch loads the compiler.

    Returns a function that stops waiting for the compiler.
    """
    from rankwatch.automatic.imports import when_imported  # needed beside torch only

    return when_imported({_COMPILER: lambda compiler: _substitute(phase)})


def keep_from_compiler(function: object, *, calls: bool) -> None:
    """Let the compiler execute this function as it is. It looks at each frame that runs below a compiled
    function with breaks in its graph, such as a whole training step.

    calls: also what the function calls.
    """
    code = getattr(function, "__code__", None)
    if code is None or "torch" not in sys.modules:
        return
    try:
        frames: Any = importlib.import_module("torch._C._dynamo.eval_frame")
        skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip if calls else default))
        if calls:
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
    except (ImportError, AttributeError, TypeError):  # before torch 2.7
        return


def uncompiled(function: Any) -> Any:
    """Return the function, or one around it, in a form that torch.compile leaves alone.

    Under a compiled model torch would otherwise compile the function and all that it calls, and warn.
    `torch.compiler.disable` is not used because it imports the compiler, which takes a second.
    """
    torch: Any = importlib.import_module("torch")
    function._torchdynamo_disable = True  # `disable` sets this too: calls are not inlined
    with contextlib.suppress(AttributeError):  # another release of torch may do it in another way
        frames = torch._C._dynamo.eval_frame
        if not hasattr(frames, "set_code_exec_strategy"):
            return _with_compiler_off(function, frames)
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def in_place_of(original: Any, function: Any) -> Any:
    """Return the function as `uncompiled` does, with the name and the signature of the original."""
    return functools.update_wrapper(uncompiled(function), original)


class Substitutes:
    """Functions that stand in the place of a library's: all that the library has, or none after an error.

    wanted: owner, name, and what makes ours of the original.
    """

    def __init__(self, *wanted: tuple[Any, str, Callable[[Any], Any]]) -> None:
        self.missing: list[str] = []
        """Names of what the installed library does not have."""
        self._put: list[tuple[Any, str, Any, Any]] = []
        try:
            for owner, name, make in wanted:
                self._substitute(owner, name, make)
        except BaseException:
            self.remove()
            raise

    def _substitute(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        from inspect import getattr_static

        original = getattr_static(owner, name, None)
        if original is None:
            self.missing.append(name)
            return
        inherited = name not in vars(owner)
        ours = in_place_of(original, make(original))
        setattr(owner, name, ours)
        self._put.append((owner, name, ours, None if inherited else original))

    def remove(self) -> None:
        """Put the originals back, unless somebody else has replaced ours."""
        while self._put:
            owner, name, ours, original = self._put.pop()
            if vars(owner).get(name) is not ours:
                continue
            if original is None:  # the owner has it from a base class
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _with_compiler_off(function: Any, frames: Any) -> Any:
    """Wrap it for torch 2.6, which can skip a function, but not the functions that it calls."""
    switch = frames.set_eval_frame

    def around(*arguments: Any, **named: Any) -> Any:
        compiler = switch(None)
        try:
            return function(*arguments, **named)
        finally:
            switch(compiler)

    frames.skip_code(around.__code__)
    around._torchdynamo_disable = True  # type: ignore[attr-defined]
    return around


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
