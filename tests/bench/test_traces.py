"""The benchmark of traces, in its short form."""

from __future__ import annotations

import pytest

from .traces import diagnose

pytestmark = pytest.mark.process


def test_short_form() -> None:
    """It writes traces of the size asked for, runs the real command, and the slow rank is named."""
    result = diagnose(2, packed=True, ranks=6)
    found = {row.what: row for row in result.rows}
    assert found["the slow rank is named, and no other"].met
    assert result.samples["peak_bytes"]
