"""Part `zero-code`: seven training loops recorded without a line of code, beside their own stopwatches.

Each loop runs with explicit hooks and below `rankwatch run`. Each recording is compared with the stopwatch of
the same process, so that a busy machine slows both. One bare run of each loop shows that training is the
same.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

from support.loops.comparison import (
    PHASES,
    WARM_UP,
    Compared,
    compare,
    count,
    first_seconds,
    losses,
    misplaced_steps,
    same_bits,
    step_seconds,
)
from support.loops.running import LOOPS, Loop, Outcome, Way, run_loop

from .processes import temporary_directory
from .result import BenchError, Result, Row

ROUNDS = 2
QUICK_ROUNDS = 1
STEPS = 20
PAUSE_MS = 20.0
"""Length of each forward, backward, fetch and update: the steps of these loops last 60 to 240 ms."""
PHASE_DIFFERENCE = 0.03
WAIT_DIFFERENCE = 0.05
_WAIT = "data_wait"


class Round(NamedTuple):
    """One run of a loop with each kind of recording."""

    explicit: Outcome
    zero_code: Outcome


class Measured(NamedTuple):
    """The runs of one loop."""

    loop: Loop
    bare: Outcome
    rounds: Sequence[Round]

    @property
    def zero_code(self) -> list[Outcome]:
        """Of each round."""
        return [each.zero_code for each in self.rounds]


def measure(*, quick: bool) -> Result:
    """Run the part. Raises BenchError if a loop fails."""
    loops = [each for each in LOOPS.values() if _installed(each)]
    with ThreadPoolExecutor(2) as pool:  # nothing is timed in these runs
        bare = list(pool.map(lambda each: _run(each, Way.BARE, pause_ms=0.0), loops))
    rounds = [[_round(loop) for loop in loops] for _ in range(QUICK_ROUNDS if quick else ROUNDS)]
    measured = [Measured(*each) for each in zip(loops, bare, zip(*rounds, strict=True), strict=True)]
    return Result(
        title="Zero-code: seven loops without a line of code",
        rows=tuple(row for each in measured for row in _judged(each)),
        overview=(_HEAD, *map(_line, measured)),
        notes=_NOTES,
        samples={each.loop.name: _samples(each.rounds) for each in measured},
    )


_HEAD = (
    "loop", "step", "steps", *PHASES, "data wait", "loss", "checkpoints", "evaluations", "same bits",
    f"first {WARM_UP} steps", "not visible",
)  # fmt: skip
_NOTES = (
    "Phases: what zero-code records beyond explicit hooks, as a share and per step. Each is first compared "
    "with the stopwatch of its own process. Data wait: against that stopwatch. Medians of the rounds, all "
    "ranks together.",
    f"The first {WARM_UP} steps are left out of these. Their column says how much longer they are with "
    "zero-code, once in a run: the black box is opened, and classes of modules are learned.",
    "Loss: equal if each step has the loop's own loss bit for bit, else how far the furthest one is.",
    "Same bits: losses, final weights and random state with zero-code and without rankwatch, on every rank.",
    "Checkpoints and evaluations are those of rank 0.",
)


def _installed(loop: Loop) -> bool:
    if not loop.package or importlib.util.find_spec(loop.package) is not None:
        return True
    print(f"zero-code: {loop.title} is left out: no module named {loop.package}", file=sys.stderr)
    return False


def _round(loop: Loop) -> Round:
    found = Round(_run(loop, Way.EXPLICIT), _run(loop, Way.ZERO_CODE))
    print(f"{loop.title}: one round done", file=sys.stderr, flush=True)
    return found


def _run(loop: Loop, way: Way, pause_ms: float = PAUSE_MS) -> Outcome:
    with temporary_directory() as name:
        outcome = run_loop(loop, way, Path(name), steps=STEPS, pause_ms=pause_ms)
    if outcome.status:
        raise BenchError(f"{loop.title} ({way}) ended with status {outcome.status}: {outcome.stderr[-3000:]}")
    if way is not Way.BARE and len(outcome.boxes) != loop.ranks:
        raise BenchError(f"{loop.title} ({way}): {len(outcome.boxes)} black boxes of {loop.ranks}")
    return outcome


# -- one line of the table for each loop ----------------------------------------------------------


def _line(measured: Measured) -> tuple[str, ...]:
    box, true = measured.zero_code[-1].boxes[0], measured.zero_code[-1].witnessed[0]
    differences = {name: _median(found) for name, found in _differences(measured.rounds).items()}
    longer = median(first_seconds(each.zero_code) - first_seconds(each.explicit) for each in measured.rounds)
    return (
        measured.loop.title,
        f"{median(map(step_seconds, measured.zero_code)) * 1e3:.0f} ms",
        f"{len(box.steps)}/{true.steps}",
        *(_shown(differences[name]) if name in differences else "" for name in (*PHASES, _WAIT)),
        _losses(measured.zero_code),
        f"{len(box.checkpoints)}/{count(true.intervals, 'checkpoint')}",
        f"{count(box.intervals, 'evaluation')}/{count(true.intervals, 'evaluation')}",
        "yes" if _same_bits(measured) else "NO",
        f"{longer:+.2f} s",
        ", ".join(f"{name} ({why})" for name, why in sorted(box.capabilities.items()) if why),
    )


def _differences(rounds: Sequence[Round]) -> dict[str, list[Compared]]:
    """By phase, of each round: the phases against explicit hooks, the data wait against the stopwatch.

    There is no data wait where it is not visible; the recording says so.
    """
    found: dict[str, list[Compared]] = {}
    for each in rounds:
        ours, theirs = (compare(outcome, (*PHASES, _WAIT)) for outcome in (each.zero_code, each.explicit))
        for name in PHASES:
            share = ours[name].share / theirs[name].share
            found.setdefault(name, []).append(Compared(share, ours[name].excess - theirs[name].excess))
        capabilities = each.zero_code.boxes[0].capabilities
        if not any(name == _WAIT and why for name, why in capabilities.items()):
            found.setdefault(_WAIT, []).append(ours[_WAIT])
    return found


def _median(found: Sequence[Compared]) -> Compared:
    return Compared(median(each.share for each in found), median(each.excess for each in found))


def _same_bits(measured: Measured) -> bool:
    return all(same_bits(measured.bare, each) for each in measured.zero_code)


def _losses(outcomes: Sequence[Outcome]) -> str:
    found = [
        losses(*each) for outcome in outcomes for each in zip(outcome.boxes, outcome.witnessed, strict=True)
    ]
    if missing := sum(each.missing for each in found):
        return f"{missing} missing"
    furthest = max(each.furthest for each in found)
    return f"within {furthest:.0e}" if furthest else "equal"


def _judged(measured: Measured) -> list[Row]:
    """What has a target."""
    title, rounds = measured.loop.title, measured.rounds
    wrong = [
        each
        for outcome in measured.zero_code
        for box, true in zip(outcome.boxes, outcome.witnessed, strict=True)
        for each in misplaced_steps(box, true)
    ]
    differences = _differences(rounds)
    worst = max(PHASES, key=lambda name: abs(_median(differences[name]).share - 1))
    same, loss = _same_bits(measured), _losses(measured.zero_code)
    rows = [
        Row(f"{title}: misplaced steps", str(len(wrong)), "; ".join(wrong[:2]), "0", not wrong),
        _limited(f"{title}: furthest phase, {worst}", differences[worst], PHASE_DIFFERENCE),
        Row(f"{title}: loss", loss, "", "equal", loss == "equal"),
        Row(f"{title}: same losses and weights", "yes" if same else "no", "", "yes", same),
        _all_seen(measured),
    ]
    if _WAIT in differences:
        rows.append(_limited(f"{title}: data wait", differences[_WAIT], WAIT_DIFFERENCE))
    return rows


def _all_seen(measured: Measured) -> Row:
    """Checkpoints and evaluations of rank 0."""
    seen, there = 0, 0
    for each in measured.zero_code:
        box, true = each.boxes[0], each.witnessed[0]
        seen += len(box.checkpoints) + count(box.intervals, "evaluation")
        there += count(true.intervals, "checkpoint") + count(true.intervals, "evaluation")
    what = f"{measured.loop.title}: checkpoints and evaluations"
    return Row(what, f"{seen} of {there}", "", "all", seen == there)


def _limited(what: str, found: Sequence[Compared], at_most: float) -> Row:
    shares = sorted(each.share - 1 for each in found)
    spread = f"{_percent(shares[0])} to {_percent(shares[-1])} (range)"
    middle = _median(found)
    return Row(what, _shown(middle), spread, f"within {at_most:.0%}", abs(middle.share - 1) <= at_most)


def _samples(rounds: Sequence[Round]) -> list[Mapping[str, object]]:
    return [
        {
            way: {name: each._asdict() for name, each in compare(outcome, (*PHASES, _WAIT)).items()}
            for way, outcome in each._asdict().items()
        }
        for each in rounds
    ]


def _shown(difference: Compared) -> str:
    return f"{_percent(difference.share - 1)} ({difference.excess * 1e6:+.0f} us)"


def _percent(share: float) -> str:
    return f"{share:+.1%}"
