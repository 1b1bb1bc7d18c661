"""Keeps our functions out of torch.compile."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any


def keep_from_compiler(function: Any) -> None:
    """Under a compiled model torch.compile would compile the function too, and all it calls, and warn.

    Not by `torch.compiler.disable`: that imports the compiler, which takes a second.
    """
    torch: Any = importlib.import_module("torch")
    function._torchdynamo_disable = True  # what `disable` sets: a call of it is not inlined
    with contextlib.suppress(AttributeError):  # another torch may know another way
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
