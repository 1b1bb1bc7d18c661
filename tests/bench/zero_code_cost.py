"""Part `zero-code-cost`: CPU time of a step recorded without code, beside one with explicit hooks.

Each loop runs in forked children of one process, in turns: bare, with explicit hooks, with explicit hooks
again, and zero-code. A figure of a child is a low quantile of its steps, because a busy machine only adds to
a step. Ways are compared in each round; what explicit hooks differ from themselves is the doubt of the
measure.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from support.loops.running import run_command

from .result import BenchError, Result, Row, limited, quantile

_PROGRAM = Path(__file__).parents[1] / "support" / "loops" / "cost.py"
_LOW = 0.25
"""Quantile of the steps of a child that stands for it."""
LONG_MS = 100.0
MOST_OF_LONG = 0.01 * LONG_MS / 1e3
"""Most CPU seconds that zero-code may add to a step of 100 ms."""
MOST_OF_SHORT = 150e-6
_MOST_OTHERS = 0.001
"""Most that other threads of the process may take, as a share of a core."""
_RESAMPLED = 2000


class Case(NamedTuple):
    """A loop, and how long its steps last."""

    loop: str
    title: str
    package: str
    rounds: int
    steps: int
    warmup: int
    pause: tuple[str, ...] = ()
    """What a step takes beside its own work."""

    @property
    def most_seconds(self) -> float:
        """Most CPU time that zero-code may add to a step."""
        return MOST_OF_LONG if self.pause else MOST_OF_SHORT


_SLEEP = ("--pause-ms", f"{LONG_MS:g}")
_BUSY = (*_SLEEP, "--busy")
_LOOPS = (
    ("torch_loop", "torch with a scaler", "torch"),
    ("hf_trainer", "Hugging Face Trainer", "transformers"),
    ("lightning_fit", "Lightning fit", "lightning"),
)
CASES = (
    *(Case(*loop, rounds=20, steps=80, warmup=30) for loop in _LOOPS),
    *(Case(*loop, rounds=8, steps=12, warmup=4, pause=_BUSY) for loop in _LOOPS),
    Case(*_LOOPS[0], rounds=8, steps=12, warmup=4, pause=_SLEEP),
)


class Way(NamedTuple):
    """One way of recording a loop: a figure of each round, in seconds."""

    cpu: list[float]
    wall: list[float]
    once: list[float]
    others: list[float]


def measure(*, quick: bool) -> Result:
    """Run the part. Raises BenchError if a loop fails, or does not record all its steps."""
    cases = [each for each in CASES if _installed(each)]
    found = {_title(each): _run(each, 1 if quick else each.rounds) for each in cases}
    rows = [row for each in cases for row in _rows(each, found[_title(each)])]
    return Result(
        title="Zero-code: cost beyond explicit hooks",
        overview=(_HEAD, *(_line(each, found[_title(each)]) for each in cases)),
        rows=tuple(rows),
        notes=_NOTES,
        samples={title: {name: way._asdict() for name, way in ways.items()} for title, ways in found.items()},
    )


_HEAD = (
    "loop", "bare: step, CPU", "explicit: step, CPU", "zero-code: step, CPU", "zero-code over explicit",
    "over bare", "explicit over itself", "once",
)  # fmt: skip
_NOTES = (
    f"CPU time of the training thread; of a child its {_LOW:.0%} quantile, of the children the median. "
    "Differences are medians over the rounds, with a 95 % interval by bootstrap.",
    "A step of 100 ms multiplies matrices, whose own CPU time is left out, or sleeps where the row says so. "
    "Both leave cold caches, so the same code takes longer there.",
    "once: what zero-code adds to the training thread at the beginning: patches and the black box.",
)


def _installed(case: Case) -> bool:
    if find_spec(case.package) is not None:
        return True
    print(f"zero-code-cost: {_title(case)} is left out: no module named {case.package}", file=sys.stderr)
    return False


def _title(case: Case) -> str:
    if not case.pause:
        return f"{case.title}, shortest steps"
    return f"{case.title}, {LONG_MS:g} ms{', asleep' if case.pause == _SLEEP else ''}"


def _run(case: Case, rounds: int) -> dict[str, Way]:
    """By way of recording."""
    counts = {"--rounds": rounds, "--steps": case.steps, "--warmup": case.warmup}
    options = [word for name, count in counts.items() for word in (name, str(count))]
    done = run_command(
        [sys.executable, str(_PROGRAM), case.loop, *options, *case.pause],
        {"PYTHONPATH": str(_PROGRAM.parents[2]), "RANKWATCH_SUMMARY": "0"},
    )
    if done.returncode:
        raise BenchError(f"{_title(case)} ended with status {done.returncode}: {done.stderr[-1000:]}")
    print(f"{_title(case)}: done", file=sys.stderr, flush=True)
    return _ways([json.loads(each) for each in done.stdout.splitlines() if each.startswith('{"way"')], case)


def _ways(children: Sequence[Mapping[str, Any]], case: Case) -> dict[str, Way]:
    ways: dict[str, Way] = {}
    for child in children:
        name = child["way"]
        expected = 0 if name == "bare" else case.warmup + case.steps
        if child["recorded"] != expected:
            raise BenchError(f"{_title(case)}, {name}: {child['recorded']} steps recorded of {expected}")
        way = ways.setdefault(name, Way([], [], [], []))
        way.cpu.append(quantile(child["cpu_ns"], _LOW) / 1e9)
        way.wall.append(quantile(child["wall_ns"], _LOW) / 1e9)
        way.once.append(child["once_ns"] / 1e9)
        way.others.append(child["others"])
    return ways


def _line(case: Case, ways: Mapping[str, Way]) -> tuple[str, ...]:
    zero, explicit, bare = ways["zero-code"], ways["explicit"], ways["bare"]
    return (
        _title(case),
        *(f"{_ms(median(each.wall))}, {_us(median(each.cpu))}" for each in (bare, explicit, zero)),
        _shown(zero.cpu, explicit.cpu, _us),
        _shown(zero.cpu, bare.cpu, _us),
        _shown(ways["explicit again"].cpu, explicit.cpu, _us),
        _ms(median(_differences(zero.once, bare.once))),
    )


def _rows(case: Case, ways: Mapping[str, Way]) -> list[Row]:
    """What has a target. The doubt of the measure must be well below that."""
    zero, explicit, most = ways["zero-code"], ways["explicit"], case.most_seconds
    added = _differences(zero.cpu, explicit.cpu)
    doubt = _differences(ways["explicit again"].cpu, explicit.cpu)
    low, high = interval(doubt)
    rows = [
        limited(f"{_title(case)}: added CPU time", median(added), most, _us, _between(added, _us)),
        limited(f"{_title(case)}: doubt", max(abs(low), abs(high)), most / 3, _us),
    ]
    if case.pause:  # short steps are over before what threads do at the beginning is
        rows.append(limited(f"{_title(case)}: other threads", median(zero.others), _MOST_OTHERS, _percent))
    return rows


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(ours, theirs, strict=True)]


def interval(samples: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """Where the median of the samples is, with 95 % confidence, by bootstrap."""
    chance = random.Random(seed)
    medians = [median(chance.choices(samples, k=len(samples))) for _ in range(_RESAMPLED)]
    return quantile(medians, 0.025), quantile(medians, 0.975)


def _shown(ours: Sequence[float], theirs: Sequence[float], shown: Callable[[float], str]) -> str:
    differences = _differences(ours, theirs)
    return f"{shown(median(differences))} ({_between(differences, shown)})"


def _between(samples: Sequence[float], shown: Callable[[float], str]) -> str:
    low, high = interval(samples)
    return f"{shown(low)} to {shown(high)}"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _percent(share: float) -> str:
    return f"{share:.2%}"
