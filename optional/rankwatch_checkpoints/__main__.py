"""Verifies one checkpoint beside a training, and prints JSON: the agent's confined child.

Its standard input holds the path up to a zero byte, because every user can see its arguments. Then follows
one line after the other with the bytes per second that it may read from now on, because several children
share what the agent may read. Where the input ends, its parent has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from typing import Any

from rankwatch_checkpoints.result import CheckpointError, CheckpointGoneError
from rankwatch_checkpoints.verify import verify


class _Rate:
    """The rate that the parent has set last."""

    def __init__(self) -> None:
        self._bytes_per_second = 0.0
        self.update(0)
        os.set_blocking(0, False)

    def __call__(self) -> float:
        return self._bytes_per_second

    def update(self, _: int) -> None:
        """Take the newest rate. Ends this process where its parent has ended."""
        try:
            lines = os.read(0, 1 << 16).split()
        except BlockingIOError:
            return
        if not lines:
            sys.exit(1)
        self._bytes_per_second = float(lines[-1])


def main(as_owner: bool) -> None:
    """Print one JSON object: `result`, `gone` or `error`.

    as_owner: this process has the rights of the owner. Else it looks who owns what it opens.
    """
    (owner,) = sys.argv[1:]  # argparse would import a module, which the owner may have no right to read
    path, rate, found = _path(), _Rate(), None
    with contextlib.suppress(MemoryError):
        found = _found(path, rate, None if as_owner else int(owner))
    if found is None:  # what was read so far is gone by now, so that there is memory for this
        most = resource.getrlimit(resource.RLIMIT_AS)[0] >> 20
        found = {"error": f"it takes more than {most} MiB of memory to verify {path}"}
    print(json.dumps(found), flush=True)


def _found(path: str, rate: _Rate, owner: int | None) -> dict[str, Any]:
    try:
        found = verify(path, bytes_per_second=rate, progress=rate.update, keep_cached=False, owner=owner)
        return {"result": found.as_json()}
    except CheckpointGoneError as error:
        return {"gone": str(error)}
    except CheckpointError as error:
        return {"error": str(error)}


def _path() -> str:
    given = bytearray()
    while (byte := os.read(0, 1)) not in (b"\0", b""):
        given += byte
    return os.fsdecode(bytes(given))
