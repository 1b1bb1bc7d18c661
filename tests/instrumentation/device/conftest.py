"""A rank on a simulated GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.device.lone import LoneRank


@pytest.fixture
def rank(tmp_path: Path) -> LoneRank:
    return LoneRank(tmp_path)
