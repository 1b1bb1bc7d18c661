"""The limits that hold for every test."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import MEMORY_BYTES


@pytest.mark.process
def test_memory_limit() -> None:
    """A test that takes too much memory gets a MemoryError, and so do the programs it starts."""
    with pytest.raises(MemoryError):
        bytearray(MEMORY_BYTES)
    child = subprocess.run([sys.executable, "-c", f"bytearray({MEMORY_BYTES})"], stderr=subprocess.PIPE)
    assert b"MemoryError" in child.stderr


def test_time_limit(request: pytest.FixtureRequest) -> None:
    """A test that hangs is ended, however it was started."""
    assert 0 < float(request.config.getini("timeout")) <= 600
    assert request.config.pluginmanager.has_plugin("timeout")
