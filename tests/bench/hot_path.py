"""Part `hot-path`: what one phase and one step cost the training thread, beside the peers.

All run in one process, in turns of a few milliseconds, and are judged by ratios: a machine that is
slow or busy is so for all of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import rankwatch
from rankwatch import Run

from . import contenders
from .contenders import Contender
from .errors import BenchError
from .result import Result, Row, limited
from .spread import spread
from .workplace import temporary_directory

OBSERVE_RATIO = 0.5
"""Most that a phase may cost, in calls of prometheus_client's `Histogram.observe`."""
SPAN_RATIO = 1 / 20
"""Most that a phase may cost, in OpenTelemetry spans."""


class Effort(NamedTuple):
    """How long to measure."""

    rounds: int
    turn_seconds: float
    """Time of one contender in one round; shorter than a scheduler's slice, so that most are undisturbed."""


FULL = Effort(rounds=101, turn_seconds=0.004)
QUICK = Effort(rounds=15, turn_seconds=0.002)


def measure(*, quick: bool) -> Result:
    """Raises BenchError where rankwatch does not record."""
    with temporary_directory() as directory:
        run = rankwatch.start(run="bench", directory=directory, collectives=False, flight_recorder=False)
        if not isinstance(run, Run):
            raise BenchError("could not measure the hot path: rankwatch records nothing here")
        with run:
            samples = interleave(contenders.contenders(run), QUICK if quick else FULL)
    return _result(samples)


def interleave(compared: Sequence[Contender], effort: Effort) -> dict[str, list[float]]:
    """Nanoseconds per call, by contender and round. As in `timeit`, no garbage is collected meanwhile."""
    counts = {each.name: _calls_in(each, effort.turn_seconds) for each in compared}
    samples: dict[str, list[float]] = {each.name: [] for each in compared}
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for number in range(effort.rounds):
            first = number % len(compared)  # nobody always runs behind the same neighbour
            for each in (*compared[first:], *compared[:first]):
                samples[each.name].append(_seconds(each, counts[each.name]) / counts[each.name] * 1e9)
            gc.collect()
    finally:
        if was_enabled:
            gc.enable()
    return samples


def _calls_in(contender: Contender, seconds: float) -> int:
    """Calls that fill this time; measuring it also warms the contender up."""
    count = 100
    while (taken := _seconds(contender, count)) < seconds / 4:
        count *= 2
    return max(1, round(count * seconds / taken))


def _seconds(contender: Contender, count: int) -> float:
    began = time.perf_counter()
    contender.loop(count)
    return time.perf_counter() - began


def _result(samples: Mapping[str, Sequence[float]]) -> Result:
    costs = [
        Row(name, _ns(each.median), each.quartiles(_ns))
        for name, each in ((name, spread(values)) for name, values in samples.items())
    ]
    phase = samples[contenders.PHASE]
    return Result(
        title="Hot path: one record on the training thread",
        rows=(
            *costs,
            _ratio("phase / Histogram.observe", phase, samples[contenders.OBSERVE], OBSERVE_RATIO),
            _ratio("phase / OpenTelemetry span", phase, samples[contenders.SPAN], SPAN_RATIO),
        ),
        notes=(
            f"{len(phase)} rounds, all contenders in each; judged by the median of the rounds' ratios.",
            "A phase is entered and left: it reads the clock twice; observe and record are given a value.",
        ),
        samples={"nanoseconds_per_call": samples},
    )


def _ratio(what: str, ours: Sequence[float], theirs: Sequence[float], at_most: float) -> Row:
    rounds = spread([one / other for one, other in zip(ours, theirs, strict=True)])
    fastest = min(ours) / min(theirs)
    return limited(
        what, rounds.median, at_most, _times, f"{rounds.quartiles(_times)}, {_times(fastest)} of the fastest"
    )


def _ns(value: float) -> str:
    return f"{value:,.0f} ns"


def _times(value: float) -> str:
    return f"{value:.3f} x"
