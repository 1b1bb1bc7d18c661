"""Part `hot-path`: cost of a phase and of a step on the training thread, beside other libraries.

All calls run in one process in turns of a few milliseconds and are judged by ratios, because a slow or busy
machine slows all of them.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from timeit import Timer
from typing import NamedTuple, TextIO

from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PrometheusHistogram

import rankwatch
from rankwatch import Run
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.vocabulary import PHASES
from rankwatch.identity import Identity

from .processes import temporary_directory
from .result import BenchError, Result, Row, limited, spread

PHASE = "rankwatch phase"
STEP = "rankwatch step"
OBSERVE = "prometheus_client Histogram.observe"
SPAN = "OpenTelemetry span"
LONG_GPU_STEP = "rankwatch step of 8 phases on a GPU, each timed"
SHORT_GPU_STEP = "rankwatch step of 8 phases on a GPU, each 32nd timed"
PRINT = "print of 4 values"
KEPT_PRINT = "print of 4 values, its line kept"
LOG = "record of logging, written as a line"
KEPT_LOG = "record of logging, written as a line that is kept"

_SECONDS = 0.05
"""Observed value: a phase of a step of 100 ms; in the fourth of prometheus_client's default buckets."""
OBSERVE_RATIO = 0.55
"""Most that a phase may cost, in calls of prometheus_client's `Histogram.observe`."""
SPAN_RATIO = 1 / 20
"""Most that a phase may cost, in OpenTelemetry spans."""
_call_handlers = logging.Logger.callHandlers
"""As it is before a run keeps lines."""


class Effort(NamedTuple):
    """How long to measure."""

    rounds: int
    turn_seconds: float
    """Time of one loop; shorter than a scheduler's slice, so that most are undisturbed."""


FULL = Effort(rounds=101, turn_seconds=0.004)
QUICK = Effort(rounds=15, turn_seconds=0.002)


class _Event(NamedTuple):
    """What CUDA does is left out: recording and reading an event cost nothing."""

    milliseconds: float
    """To the next one."""

    def query(self) -> bool:
        """True: the device is done."""
        return True

    def elapsed_time(self, later: object) -> float:
        """As of CUDA's event."""
        return self.milliseconds


class _Stream:
    """The compute stream of a GPU in the place of the one that torch shows."""

    def __init__(self, milliseconds: float) -> None:
        self.event = lambda: _Event(milliseconds)

    def record(self, event: object) -> None:
        """Nothing is recorded."""

    def follow(self) -> bool:
        """There is one stream."""
        return False

    is_current = in_backward = is_capturing = follow


_GPU_STEP = """
with run.step():
    for name in names:
        with run.phase(name):
            pass
"""
_PHASES_OF_GPU_STEP = ("forward", "backward", "optimizer", "communication") * 2


def compared_calls(
    run: Run, long_steps: Run, short_steps: Run, bare: TextIO, kept: TextIO
) -> dict[str, Timer]:
    """The calls, in the order of the table. The last two runs are on a GPU. kept: a stream whose lines the
    first run keeps."""
    declared = PrometheusHistogram("phase_seconds", "Phases.", ["phase"], registry=CollectorRegistry())
    observed = declared.labels("forward")  # looked up once: the cheapest use of the peer
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("bench")
    printed = "print('step', 1200, 'loss', 2.5312, file=stream)"
    logged = "logger.info('step %d loss %.4f', 1200, 2.5312)"
    return {
        PHASE: _timer("with run.phase('forward'): pass", run=run),
        STEP: _timer("with run.step(): pass", run=run),
        LONG_GPU_STEP: _timer(_GPU_STEP, run=_timed(long_steps, 1e3), names=_PHASES_OF_GPU_STEP),
        SHORT_GPU_STEP: _timer(_GPU_STEP, run=_timed(short_steps, 1.0), names=_PHASES_OF_GPU_STEP),
        OBSERVE: _timer("histogram.observe(seconds)", histogram=observed, seconds=_SECONDS),
        SPAN: _timer("with tracer.start_as_current_span('forward'): pass", tracer=tracer),
        PRINT: _timer(printed, stream=bare),
        KEPT_PRINT: _timer(printed, stream=kept),
        LOG: _timer(logged, logger=_logger(bare, kept=False)),
        KEPT_LOG: _timer(logged, logger=_logger(bare, kept=True)),
    }


def _timer(statement: str, **names: object) -> Timer:
    return Timer(statement, globals=names)


def _timed(run: Run, milliseconds: float) -> Run:
    """The run, with a stream of a GPU on which a step of so many phases takes this long."""
    timeline = run.device
    assert timeline is not None
    timeline.use(_Stream(milliseconds))
    run.after_steps(timeline.resolve)
    return run


def _logger(stream: TextIO, *, kept: bool) -> logging.Logger:
    logger = logging.Logger("train")
    logger.addHandler(logging.StreamHandler(stream))
    if not kept:
        logger.callHandlers = partial(_call_handlers, logger)  # type: ignore[method-assign]
    return logger


def measure(*, quick: bool) -> Result:
    """Run the part. Raises BenchError if rankwatch does not record."""
    with temporary_directory() as directory, _nowhere() as bare, redirect_stdout(_nowhere()) as kept, kept:
        run = rankwatch.start(
            run="bench", rank=0, directory=directory, collectives=False, flight_recorder=False
        )
        if not isinstance(run, Run):
            raise BenchError("could not measure the hot path: rankwatch records nothing here")
        with run, _on_gpu(directory, "long") as long, _on_gpu(directory, "short") as short:
            calls = compared_calls(run, long, short, bare, kept)
            samples = interleave(calls, QUICK if quick else FULL)
    return _result(samples)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def _on_gpu(directory: str, name: str) -> Run:
    identity = Identity(run=name)
    return Run(identity, Writer(Path(directory, name), identity, phases=PHASES), PHASES, on_gpu=True)


def interleave(compared: Mapping[str, Timer], effort: Effort) -> dict[str, list[float]]:
    """Nanoseconds per call, by call and round. `timeit` lets no garbage be collected meanwhile."""
    counts = {name: _calls_in(timer, effort.turn_seconds) for name, timer in compared.items()}
    samples: dict[str, list[float]] = {name: [] for name in compared}
    names = list(compared)
    for number in range(effort.rounds):
        first = number % len(names)  # no call always follows the same one
        for name in (*names[first:], *names[:first]):
            samples[name].append(compared[name].timeit(counts[name]) / counts[name] * 1e9)
        gc.collect()
    return samples


def _calls_in(timer: Timer, seconds: float) -> int:
    """Calls that fill this time; measuring it also warms the call up."""
    count = 100
    while (taken := timer.timeit(count)) < seconds / 4:
        count *= 2
    return max(1, round(count * seconds / taken))


def _result(samples: Mapping[str, Sequence[float]]) -> Result:
    costs = [
        Row(name, _ns(each.median), each.quartiles(_ns))
        for name, each in ((name, spread(values)) for name, values in samples.items())
    ]
    phase = samples[PHASE]
    return Result(
        title="Hot path: one record on the training thread",
        rows=(
            *costs,
            _ratio("phase / Histogram.observe", phase, samples[OBSERVE], OBSERVE_RATIO),
            _ratio("phase / OpenTelemetry span", phase, samples[SPAN], SPAN_RATIO),
            *(
                _ratio(f"{name} / 8 spans", samples[name], [8 * each for each in samples[SPAN]], 1.0)
                for name in (LONG_GPU_STEP, SHORT_GPU_STEP)
            ),
        ),
        notes=(
            f"{len(phase)} rounds, all calls in each; judged by the median of their ratios.",
            "On a GPU: the part of Python; what CUDA takes for the 2 to 10 events of a step is left out.",
            "Lines are written to /dev/null. Python writes the 4 values of a print in 8 pieces.",
            "A phase reads the clock twice, at its begin and end; observe receives a value.",
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
