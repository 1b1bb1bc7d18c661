"""Ids of traces and spans: the same everywhere, different for different things."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from rankwatch.identity import rank_step_span, run_trace, span, span_text, step_trace, trace_text


@pytest.mark.process
def test_same_in_every_process() -> None:
    """Nodes agree without talking: the id depends on nothing but the fields."""
    code = "from rankwatch.identity import *; print(step_trace('c', 'run', 2, 100), run_trace('c', 'run'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(step_trace("c", "run", 2, 100)), str(run_trace("c", "run"))]


def test_different_things_differ() -> None:
    """Fields are not simply joined: ("a", "bc") and ("ab", "c") are two runs."""
    traces = [run_trace("a", "bc"), run_trace("ab", "c"), run_trace("", "abc")]
    traces += [
        step_trace("a", "b", attempt, step) for attempt, step in itertools.product(range(4), range(400))
    ]
    spans = [rank_step_span(traces[0], rank) for rank in range(400)] + [span(traces[0], "rank", 1, "forward")]
    assert len(set(traces)) == len(traces)
    assert len(set(spans)) == len(spans)
    assert step_trace("a", "b", 1, 11) != step_trace("a", "b", 11, 1)


def test_text() -> None:
    """As W3C trace context has them."""
    assert trace_text(1) == "0" * 31 + "1"
    assert span_text(255) == "0" * 14 + "ff"
    assert len(trace_text(run_trace("", "run"))) == 32
    assert len(span_text(span(1, "x"))) == 16
