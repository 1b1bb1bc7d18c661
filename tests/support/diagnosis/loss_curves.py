"""Made loss curves, healthy and diverging, of which the truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

STEPS = 2000
NOISE = (0.005, 0.05)
"""Standard deviation of the noise as a part of the loss: of large batches, and of small ones."""


@dataclass(frozen=True)
class Curve:
    """Steps and losses in the order in which a run reports them."""

    kind: str
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    onset: int | None = None
    """Index of the first value that is not as it should be; None in a healthy run."""

    def csv(self) -> str:
        """The curve as a file of `rankwatch diagnose loss`."""
        rows = zip(self.steps, self.losses, strict=True)
        return "step,loss\n" + "".join(f"{step},{loss:.6g}\n" for step, loss in rows)


class Run:
    """A run whose loss falls with a power of the step: `floor + fall * (1 + step / scale) ** -power`.

    The noise is Gaussian, in proportion to the loss, and in part carried from step to step.
    """

    def __init__(self, source: random.Random, *, memory: float = 0.0) -> None:
        self.source = source
        self.sigma = math.exp(source.uniform(*map(math.log, NOISE)))
        self._floor = source.uniform(1.5, 2.5)
        self._fall = source.uniform(3.0, 8.0)
        self._scale = source.uniform(5.0, 40.0)
        self._power = source.uniform(0.4, 0.9)
        self._memory = memory
        self._carried = 0.0

    def loss(self, step: int, *, noisier: float = 1.0) -> float:
        """The loss of a step; each call draws its own noise."""
        fresh = self.source.gauss(0.0, math.sqrt(1.0 - self._memory**2))
        self._carried = self._memory * self._carried + fresh
        level = self._floor + self._fall * (1.0 + step / self._scale) ** -self._power
        return level * (1.0 + noisier * self.sigma * self._carried)


def _plain(source: random.Random) -> Curve:
    run = Run(source)
    return _curve("plain", [run.loss(step) for step in range(STEPS)])


def _carried_noise(source: random.Random) -> Curve:
    run = Run(source, memory=source.uniform(0.5, 0.9))
    return _curve("noise carried over", [run.loss(step) for step in range(STEPS)])


def _warm_up_bump(source: random.Random) -> Curve:
    """The learning rate reaches its top: the loss bulges by up to 6 %, for up to 120 steps."""
    run, middle = Run(source), source.randint(60, 300)
    width, height = source.uniform(15, 60), source.uniform(0.02, 0.06)
    bulge = (1.0 + height * math.exp(-(((step - middle) / width) ** 2)) for step in range(STEPS))
    return _curve("warm-up bump", [run.loss(step) * factor for step, factor in enumerate(bulge)])


def _data_spikes(source: random.Random) -> Curve:
    """Up to ten odd batches, of one to three steps each, at up to four times the loss."""
    run = Run(source)
    losses = [run.loss(step) for step in range(STEPS)]
    for _ in range(source.randint(1, 10)):
        at = source.randrange(100, STEPS - 10)
        for offset in range(source.choice((1, 1, 1, 2, 3))):
            losses[at + offset] *= source.uniform(1.2, 4.0)
    return _curve("data spikes", losses)


def _batch_size(source: random.Random) -> Curve:
    """Batches of another size: the noise changes by up to a factor of two, the loss by up to 1 %."""
    run, at = Run(source), source.randrange(300, STEPS - 300)
    noisier, shift = source.choice((0.5, 0.7, 1.4, 2.0)), source.uniform(0.99, 1.01)
    before = [run.loss(step) for step in range(at)]
    return _curve(
        "batch size", before + [shift * run.loss(step, noisier=noisier) for step in range(at, STEPS)]
    )


def _restarts(source: random.Random) -> Curve:
    """One to three times it goes on from a checkpoint some steps back, with up to 3 % more for a while."""
    run, steps, losses = Run(source), list[int](), list[float]()
    cuts = sorted(source.sample(range(150, STEPS - 100), source.randint(1, 3)))
    begin = 0
    for cut in (*cuts, STEPS):
        bump = source.uniform(0.0, 0.03) if begin else 0.0
        for step in range(begin, cut):
            steps.append(step)
            losses.append(run.loss(step) * (1.0 + bump * math.exp(-(step - begin) / 30)))
        begin = max(0, cut - source.randint(10, 300))
    return Curve("restarts", tuple(steps), tuple(losses))


def _drift(source: random.Random) -> Curve:
    """It turns round and climbs by 50 to 200 % within 300 to 1,000 steps."""
    run, onset = Run(source), _onset(source)
    climb = source.uniform(0.5, 2.0) / source.uniform(300, 1000)
    losses = [run.loss(step) * (1.0 + climb * max(0, step - onset)) for step in range(STEPS)]
    return _curve("slow drift up", losses, onset)


def _blow_up(source: random.Random) -> Curve:
    """It grows to 3 to 30 times itself within 5 to 100 steps, and stays there."""
    run, onset = Run(source), _onset(source)
    times, within = source.uniform(3.0, 30.0), source.uniform(5, 100)
    grown = (times ** min(1.0, max(0, step - onset) / within) for step in range(STEPS))
    return _curve("blow-up", [run.loss(step) * factor for step, factor in enumerate(grown)], onset)


def _plateau(source: random.Random) -> Curve:
    """From one step to the next it stands 5 sigma + 10 to 100 % higher, and stays there."""
    run, onset = Run(source), _onset(source)
    higher = 1.0 + source.uniform(0.1, 1.0) + 5.0 * run.sigma
    losses = [run.loss(step) * (higher if step >= onset else 1.0) for step in range(STEPS)]
    return _curve("high plateau", losses, onset)


def _nan(source: random.Random) -> Curve:
    run, onset = Run(source), _onset(source)
    return _curve("NaN", [math.nan if step >= onset else run.loss(step) for step in range(STEPS)], onset)


def _onset(source: random.Random) -> int:
    return source.randrange(200, STEPS - 500)


def _curve(kind: str, losses: list[float], onset: int | None = None) -> Curve:
    return Curve(kind, tuple(range(len(losses))), tuple(losses), onset)


HEALTHY: Mapping[str, Callable[[random.Random], Curve]] = MappingProxyType(
    {
        "plain": _plain,
        "noise carried over": _carried_noise,
        "warm-up bump": _warm_up_bump,
        "data spikes": _data_spikes,
        "batch size": _batch_size,
        "restarts": _restarts,
    }
)
DIVERGING: Mapping[str, Callable[[random.Random], Curve]] = MappingProxyType(
    {"slow drift up": _drift, "blow-up": _blow_up, "high plateau": _plateau, "NaN": _nan}
)


def curves(kind: str, count: int, seed: int) -> Iterator[Curve]:
    """So many curves of a kind; the same for the same seed."""
    make = HEALTHY.get(kind) or DIVERGING[kind]
    for number in range(count):
        yield make(random.Random(f"{kind} {seed} {number}"))
