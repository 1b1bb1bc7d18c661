"""Fixtures of the tests of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.training.collector import RanksCollector


@pytest.fixture
def collector(tmp_path: Path) -> RanksCollector:
    """The collector of the ranks whose boxes lie in the folder of the test."""
    return RanksCollector(directory=tmp_path)
