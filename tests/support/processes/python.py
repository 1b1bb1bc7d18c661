"""Short programs in a Python of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def python(
    code: str, *arguments: str, directory: Path | None = None, check: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` to its end, with these variables of the environment beside those of the test.

    directory: that of its black boxes.
    check: raise if it fails.
    """
    where = {} if directory is None else {"RANKWATCH_DIR": str(directory)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **where, **variables},
        capture_output=True,
        text=True,
        check=check,
        timeout=600,
    )
