"""Verifies one checkpoint beside a training, and prints JSON: the agent's confined child.

Its standard input holds one line after the other with the bytes per second that it may read from now on,
because several children share what the agent may read. Where the input ends, its parent has ended.
"""

from __future__ import annotations

import json
import os
import sys

from rankwatch.checkpoint_files.result import CheckpointError, CheckpointGoneError
from rankwatch.checkpoint_files.verify import verify


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
    owner, path = sys.argv[1:]  # argparse would import a module, which the owner may have no right to read
    rate = _Rate()
    try:
        found = verify(
            path,
            bytes_per_second=rate,
            progress=rate.update,
            keep_cached=False,
            owner=None if as_owner else int(owner),
        )
        print(json.dumps({"result": found.as_json()}))
    except CheckpointGoneError as error:
        print(json.dumps({"gone": str(error)}))
    except (CheckpointError, MemoryError) as error:
        print(json.dumps({"error": str(error) or "it needs more memory than verification may use"}))
