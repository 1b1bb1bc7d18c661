"""Writing PromQL that a person can read: dedented, with the times filled in."""

from __future__ import annotations

from textwrap import dedent

RUNNING = 'state=~"starting|running"'
"""Matcher of `rankwatch_rank_state` for ranks that have not ended."""
ENDED = RUNNING.replace("=~", "!~")
"""Matcher for those that have."""


def promql(text: str) -> str:
    """A multi-line expression without the indentation of the source it stands in."""
    return dedent(text).strip() + "\n"
