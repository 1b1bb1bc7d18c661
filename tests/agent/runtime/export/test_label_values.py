"""Whatever a black box brings as a label value can be exported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_agent.runtime.exposition import MAX_BYTES, fit_label_value
from support.fuzzing import BUSY_MACHINE


@pytest.mark.parametrize("value", ["", "run-7", 'say "hi"\nback\\slash', "größe 漢字"])
def test_a_fitting_value_stays_as_it_is(value: str) -> None:
    """Quotes, newlines and backslashes are the business of the format."""
    assert fit_label_value(value) == value


@pytest.mark.parametrize(("value", "fitted"), [("a\x00b\tc", "a\ufffdb\ufffdc"), ("a\udc80b", "a?b")])
def test_control_characters_and_lone_surrogates_are_replaced(value: str, fitted: str) -> None:
    """NUL would end the input of Prometheus's parser; a surrogate is no UTF-8."""
    assert fit_label_value(value) == fitted


def test_long_values_stay_distinct_and_bounded() -> None:
    """Two values of 10 kB that begin alike remain two."""
    fitted = [fit_label_value("x" * 10_000 + end) for end in "ab"]
    assert fitted[0] != fitted[1]
    assert all(len(each.encode()) <= MAX_BYTES for each in fitted)


@BUSY_MACHINE
@given(st.text(st.characters(), max_size=400))
def test_every_text_becomes_bounded_utf8(value: str) -> None:
    """No input raises; fitting twice changes nothing more."""
    fitted = fit_label_value(value)
    assert len(fitted.encode("utf-8")) <= MAX_BYTES
    assert fit_label_value(fitted) == fitted
