"""Part `zero-code`: seven training loops recorded without a line of code, beside their own stopwatches.

Each loop runs bare, with explicit hooks and below `rankwatch run`. Each recording is compared with the
stopwatch of the same process, so that a busy machine slows both.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from support.loops.comparison import PHASES, count, losses, misplaced_steps, same_bits, shares
from support.loops.running import LOOPS, Loop, Outcome, Way, run_loop

from .processes import temporary_directory
from .result import BenchError, Result, Row

ROUNDS = 3
QUICK_ROUNDS = 1
PHASE_DIFFERENCE = 0.03
WAIT_DIFFERENCE = 0.05
_WAIT = "data_wait"


class Round(NamedTuple):
    """One run of a loop in each way."""

    bare: Outcome
    explicit: Outcome
    zero_code: Outcome


def measure(*, quick: bool) -> Result:
    """Run the part. Raises BenchError if a loop fails, or a package for it is missing."""
    rounds = {
        loop.name: [_round(loop) for _ in range(QUICK_ROUNDS if quick else ROUNDS)]
        for loop in LOOPS.values()
        if _installed(loop)
    }
    lines = [_line(LOOPS[name], found) for name, found in rounds.items()]
    rows = [row for name, found in rounds.items() for row in _judged(LOOPS[name], found)]
    return Result(
        title="Zero-code: seven loops without a line of code",
        rows=tuple(rows),
        overview=(_HEAD, *lines),
        notes=_NOTES,
        samples={each: _samples(rounds[each]) for each in rounds},
    )


_HEAD = (
    "loop", "lines", "steps", *PHASES, "data wait", "loss", "checkpoints", "evaluations", "same bits",
    "not visible",
)  # fmt: skip
_NOTES = (
    "Phases: time recorded by zero-code against explicit hooks, each as a share of the stopwatch in the same "
    "process. Data wait: against the stopwatch. Medians of the rounds, all ranks together.",
    "Loss: how many steps have the loop's own loss bit for bit, else how far the furthest one is.",
    "Same bits: losses, final weights and random state with zero-code and without rankwatch, on every rank.",
    "Checkpoints and evaluations as seen on rank 0.",
)


def _installed(loop: Loop) -> bool:
    if not loop.package or importlib.util.find_spec(loop.package) is not None:
        return True
    print(f"zero-code: {loop.title} is left out: no module named {loop.package}", file=sys.stderr)
    return False


def _round(loop: Loop) -> Round:
    with temporary_directory() as name:
        found = Round(*(_run(loop, way, Path(name) / way) for way in Way))
    print(f"{loop.title}: one round done", file=sys.stderr, flush=True)
    return found


def _run(loop: Loop, way: Way, directory: Path, steps: int = 24, pause_ms: float = 8.0) -> Outcome:
    outcome = run_loop(loop, way, directory, steps=steps, pause_ms=pause_ms)
    if outcome.status:
        raise BenchError(f"{loop.title} ({way}) ended with status {outcome.status}: {outcome.stderr[-1000:]}")
    if way is not Way.BARE and len(outcome.boxes) != loop.ranks:
        raise BenchError(f"{loop.title} ({way}): {len(outcome.boxes)} black boxes of {loop.ranks}")
    return outcome


# -- one line of the table for each loop ----------------------------------------------------------


def _line(loop: Loop, rounds: Sequence[Round]) -> tuple[str, ...]:
    last = rounds[-1].zero_code
    box, true = last.boxes[0], last.witnessed[0]
    differences = _differences(rounds)
    wait = _wait(rounds)
    return (
        loop.title,
        "0",
        f"{len(box.steps)}/{true.steps}",
        *(_percent(differences[name]) if name in differences else "" for name in PHASES),
        _percent(wait) if wait is not None else "not visible",
        _losses(rounds),
        f"{len(box.checkpoints)}/{count(true.intervals, 'checkpoint')}",
        f"{count(box.intervals, 'evaluation')}/{count(true.intervals, 'evaluation')}",
        "yes" if all(same_bits(each.bare, each.zero_code) for each in rounds) else "NO",
        ", ".join(f"{name} ({why})" for name, why in sorted(box.capabilities.items()) if why),
    )


def _differences(rounds: Sequence[Round]) -> dict[str, float]:
    """Phase -> median difference between zero-code and explicit hooks."""
    found = [(shares(each.zero_code, PHASES), shares(each.explicit, PHASES)) for each in rounds]
    names = found[0][1]
    return {name: median(ours[name] / theirs[name] - 1 for ours, theirs in found) for name in names}


def _wait(rounds: Sequence[Round]) -> float | None:
    """Difference of the data wait from the stopwatch; None where it is not visible, and says so."""
    box = rounds[-1].zero_code.boxes[0]
    if any(name == "data_wait" and why for name, why in box.capabilities.items()):
        return None
    return median(shares(each.zero_code, (_WAIT,))[_WAIT] - 1 for each in rounds)


def _losses(rounds: Sequence[Round]) -> str:
    last = rounds[-1].zero_code
    found = losses(last.boxes[0], last.witnessed[0])
    if found.missing:
        return f"{found.missing} missing"
    steps = last.witnessed[0].steps
    return "equal" if found.equal == steps else f"{found.equal} equal, others within {found.furthest:.0e}"


def _judged(loop: Loop, rounds: Sequence[Round]) -> list[Row]:
    """What has a target."""
    zero = [each.zero_code for each in rounds]
    wrong = [
        each
        for outcome in zero
        for box, true in zip(outcome.boxes, outcome.witnessed, strict=True)
        for each in misplaced_steps(box, true)
    ]
    differences = _differences(rounds)
    worst = max(differences, key=lambda name: abs(differences[name]))
    same = all(same_bits(each.bare, each.zero_code) for each in rounds)
    wait = _wait(rounds)
    rows = [
        Row(f"{loop.title}: misplaced steps", str(len(wrong)), "; ".join(wrong[:2]), "0", not wrong),
        _limited(f"{loop.title}: furthest phase, {worst}", differences[worst], PHASE_DIFFERENCE),
        Row(f"{loop.title}: same losses and weights", "yes" if same else "no", "", "yes", same),
    ]
    if wait is not None:
        rows.append(_limited(f"{loop.title}: data wait", wait, WAIT_DIFFERENCE))
    return rows


def _limited(what: str, difference: float, at_most: float) -> Row:
    return Row(what, _percent(difference), "", f"within {at_most:.0%}", abs(difference) <= at_most)


def _samples(rounds: Sequence[Round]) -> list[Mapping[str, object]]:
    return [
        {way: shares(getattr(each, way), (*PHASES, _WAIT)) for way in ("explicit", "zero_code")}
        for each in rounds
    ]


def _percent(share: float) -> str:
    return f"{share:+.1%}"
