"""Limits for every test: one that runs away fails alone and does not take the machine with it.

The test that waits longest begins, so that the others do not wait for it at the end.
"""

from __future__ import annotations

import os
import resource

import pytest

MEMORY_BYTES = 6 << 30
"""Of data in each process of the tests. RLIMIT_AS would also count what browsers and Go only reserve."""


def pytest_configure() -> None:
    """Beyond the limit is a MemoryError, also in children. `timeout` in pyproject.toml limits the time."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    known = [each for each in (MEMORY_BYTES, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))
    os.environ["RANKWATCH_SUMMARY"] = "0"  # else each rank of a test starts a process when it exits
    os.environ["RANKWATCH_LOG_LINES"] = "0"  # else pytest's own streams are watched
    os.environ["RANKWATCH_TRACKERS"] = "0"  # else each rank 0 starts a thread


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a longer time limit than the others first; all of one file stay together."""
    patient = {item.path for item in items if item.get_closest_marker("timeout")}
    items.sort(key=lambda item: item.path not in patient)
