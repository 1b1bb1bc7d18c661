"""Ledgers as JSON values, and back. Loading raises LookupError, TypeError, ValueError or AttributeError
for anything else than was saved."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rankwatch.conventions.states import GoodputState
from rankwatch.identity import MOST_ATTEMPTS
from rankwatch_agent.training.goodput.attempt_spans import AttemptSpan
from rankwatch_agent.training.goodput.rank_ledger import FirstStep, Process, RankLedger, Seconds
from rankwatch_agent.training.goodput.run_ledger import RunLedger


def save_run(ledger: RunLedger) -> dict[str, Any]:
    """Everything that another agent needs to go on."""
    return {
        "attempts": {number: asdict(span) for number, span in ledger.attempts.by_number.items()},
        "ranks": {number: [each.role, _save_rank(each)] for number, each in ledger.ranks.items()},
    }


def load_run(saved: Any, started: float) -> RunLedger:
    """started: Unix time at which this agent started."""
    ledger = RunLedger()
    for number, span in saved["attempts"].items():
        ledger.attempts.by_number[_attempt(number)] = _load_span(**span)
    for number, (role, rank) in saved["ranks"].items():
        found = ledger.rank_of(int(number), str(role))
        _load_rank(found, rank)
        found.unseen_until = started
    return ledger


def _save_rank(ledger: RankLedger) -> dict[str, Any]:
    return {
        "by_attempt": ledger.by_attempt,
        "replayed_steps": ledger.replayed_steps,
        "process": ledger.process,
        "cursor": ledger.cursor,
        "ended": ledger.ended,
        "stepped": ledger.stepped,
        "first": None if ledger.first is None else asdict(ledger.first),
    }


def _load_rank(ledger: RankLedger, saved: Any) -> None:
    ledger.by_attempt = {_attempt(number): _seconds(each) for number, each in saved["by_attempt"].items()}
    ledger.replayed_steps = int(saved["replayed_steps"])
    if saved["process"] is not None:
        pid, monotonic, wall, attempt = saved["process"]
        ledger.process = Process(int(pid), _finite(monotonic), _finite(wall), _attempt(attempt))
        ledger.resume()
    ledger.cursor = _finite(saved["cursor"])
    ledger.ended, ledger.stepped = bool(saved["ended"]), bool(saved["stepped"])
    first = saved["first"]
    if first is not None:
        following = [_finite(each) for each in first["following"]]
        seconds = _finite(first["seconds"])
        if seconds <= 0.0:
            raise ValueError("a step took no time")
        ledger.first = FirstStep(seconds, _seconds(first["states"]), following)


def _load_span(started: Any, last: Any, world_size: Any, first_step: Any, highest_step: Any) -> AttemptSpan:
    lowest = None if first_step is None else int(first_step)
    return AttemptSpan(_finite(started), _finite(last), int(world_size), lowest, int(highest_step))


def _attempt(number: Any) -> int:
    found = int(number)
    if not 0 <= found <= MOST_ATTEMPTS:
        raise ValueError(f"{found} is no number of an attempt")
    return found


def _seconds(saved: Any) -> Seconds:
    return {GoodputState(state): _finite(seconds) for state, seconds in saved.items()}


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no finite number")
    return number
