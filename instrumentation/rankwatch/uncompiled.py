"""Keeps our functions out of torch.compile."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any


def keep_from_compiler(function: Any) -> Any:
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
    """Return the function as `keep_from_compiler` does, with the name and the signature of the original."""
    return functools.update_wrapper(keep_from_compiler(function), original)


def _with_compiler_off(function: Any, frames: Any) -> Any:
    """For torch 2.6, which can skip a function, but not the functions that it calls."""
    switch = frames.set_eval_frame

    def uncompiled(*arguments: Any, **named: Any) -> Any:
        compiler = switch(None)
        try:
            return function(*arguments, **named)
        finally:
            switch(compiler)

    frames.skip_code(uncompiled.__code__)
    uncompiled._torchdynamo_disable = True  # type: ignore[attr-defined]
    return uncompiled
