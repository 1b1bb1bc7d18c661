"""A fault that repeats does not fill the log."""

from __future__ import annotations

from rankwatch_agent.runtime.logs import (
    BURST_SECONDS,
    MAX_BURST,
    MAX_MESSAGES,
    REPEAT_SECONDS,
    LogLimit,
)
from support.agent.process import ManualClock


def test_a_message_is_allowed_at_first_and_again_after_a_while() -> None:
    """Once, then once in REPEAT_SECONDS."""
    clock = ManualClock()
    limit = LogLimit(clock)
    assert [limit.allows("a"), limit.allows("a"), limit.allows("b")] == [True, False, True]
    clock.now += REPEAT_SECONDS
    assert [limit.allows("a"), limit.allows("a")] == [True, False]


def test_messages_without_end_do_not_take_memory_without_end() -> None:
    """After MAX_MESSAGES distinct ones all are forgotten."""
    clock = ManualClock()
    limit = LogLimit(clock)
    for number in range(MAX_MESSAGES + 1):
        clock.now += BURST_SECONDS if number % MAX_BURST == 0 else 0
        assert limit.allows(str(number))
    assert limit.allows("0")


def test_many_different_messages_at_once_are_cut_off_and_told_later() -> None:
    """Ten thousand lines in a second help nobody; what goes on is not forgotten."""
    clock = ManualClock()
    limit = LogLimit(clock)
    assert sum(limit.allows(str(number)) for number in range(10_000)) == MAX_BURST
    clock.now += BURST_SECONDS
    assert limit.allows("9999")
    assert not limit.allows("0")
