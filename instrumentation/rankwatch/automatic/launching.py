"""The environment in which every rank of a job records itself, whatever launches it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rankwatch.conventions import environment
from rankwatch.errors import UsageError

SITE = Path(__file__).resolve().parent / "site"
"""Folder with the sitecustomize.py that wakes rankwatch."""


def recording_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with what zero-code recording needs: the folder in front of PYTHONPATH, and two variables.

    Raises UsageError if PYTHONPATH cannot hold the folder.
    """
    site = str(SITE)
    if os.pathsep in site:
        raise UsageError(f"PYTHONPATH cannot hold {site}, because its name contains {os.pathsep!r}")
    others = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each != site]
    path = os.pathsep.join([site, *others] if others != [""] else [site])
    return {
        environment.SINGLE_PROCESS: "1",
        **env,
        environment.PYTHON: sys.executable,
        "PYTHONPATH": path,
    }
