"""Pickles that would run a command if anything executed them."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any


class Reduces:
    """Runs a command when unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def attacks(canary: Path) -> dict[str, bytes]:
    """Pickles that would create the canary, by every operation that can call something."""
    command = f"touch {canary}".encode()
    text = b"X" + struct.pack("<I", len(command)) + command
    return {
        "reduce": pickle.dumps(Reduces(command.decode()), 4),
        "reduce, protocol 0": pickle.dumps(Reduces(command.decode()), 0),
        "global": b"cos\nsystem\n(" + text + b"tR.",
        "inst": b"(" + text + b"ios\nsystem\n.",
        "obj": b"(cos\nsystem\n" + text + b"o.",
        "newobj": b"\x80\x02cos\nsystem\n(" + text + b"t\x81.",
        "newobj_ex": b"\x80\x04cos\nsystem\n(" + text + b"t}\x92.",
        "stack_global": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85R.",
        "build": b"\x80\x02cos\nsystem\n)R}X\x08\x00\x00\x00__dict__" + text + b"sb.",
        "persistent id": b"cos\nsystem\n(" + text + b"tRQ.",
        "setitems on a call": b"cos\nenviron\n" + text + text + b"s.",
        "append on a global": b"cos\nenviron\n(" + text + b"e.",
        "eval": b"c__builtin__\neval\n(X\x16\x00\x00\x00__import__('os').abort()tR.",
        "import by name": b"cantigravity\nfly\n)R.",
    }
