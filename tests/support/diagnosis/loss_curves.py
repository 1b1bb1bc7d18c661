"""Made loss curves, healthy and diverging, of which the truth is known.

Shapes and noise are drawn apart from each other, and neither is what the detector assumes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rankwatch_agent.training.learning.loss import RelearnReason
from support.diagnosis.loss_noise import NOISES, memories

HEALTHY_STEPS = 10_000
DIVERGING_STEPS = 3_000
NOISE = (0.003, 0.08)
"""Standard deviation of the noise as a part of the loss: of large batches, and of small ones."""
SPIKES_APART = 25
"""Natural spikes begin so many steps apart; a tail may still reach into the next."""
VISIBLE_RISE = 0.05
VISIBLE_STEPS = 20
"""A gradual divergence begins where the loss without noise, as a mean of so many steps, is above its lowest
by this part of it, and by one standard deviation of the noise: before, an eye on the smoothed curve sees
nothing."""


@dataclass(frozen=True)
class Truth:
    """A divergence and the noise in which it hides."""

    rises: tuple[float, ...]
    """From the turn on: how much higher the loss stands without noise, as a part of itself."""
    sigma: float
    """Standard deviation of the noise, likewise."""
    memories: tuple[tuple[float, float], ...]
    """Size and memory of its parts."""


@dataclass(frozen=True)
class Curve:
    """Steps and losses in the order in which a run reports them."""

    kind: str
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    onset: int | None = None
    """Index of the first value that is not as it should be; None in a healthy run."""
    turn: int | None = None
    """Index at which it began to diverge, where nobody could see that yet; None without divergence."""
    spikes: tuple[range, ...] = ()
    """Indices of natural spikes that recover."""
    marks: Mapping[int, RelearnReason] = field(default_factory=dict)
    """Index -> what is known to begin there: what the agent is told."""
    truth: Truth | None = None
    """What nobody knows who sees only the losses; of divergences whose noise stays what it was."""

    @property
    def new_levels(self) -> frozenset[int]:
        """Steps that a user tells the command, which sees no more than the file; a mistake nobody tells."""
        told = (RelearnReason.DATASET, RelearnReason.LEARNING_RATE, RelearnReason.RESTART)
        end = len(self.steps) if self.turn is None else self.turn
        known = (at for at, reason in self.marks.items() if reason in told and at < end)
        return frozenset(self.steps[at] for at in known)

    def csv(self) -> str:
        """The curve as a file of `rankwatch diagnose loss`."""
        rows = zip(self.steps, self.losses, strict=True)
        return "step,loss\n" + "".join(f"{step},{loss:.6g}\n" for step, loss in rows)


class Run:
    """A healthy run: a loss that falls, with noise in proportion to it, of any family.

    Its shape is a power of the step, two exponentials, or a long plateau before a fall.
    """

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.sigma = math.exp(source.uniform(*map(math.log, NOISE)))
        family = source.choice(tuple(NOISES))
        self._noise = NOISES[family](source)
        self.memories = memories(family, self._noise)
        self._level = source.choice((_power, _power, _exponentials, _late_fall))(source)
        self._coarse = source.random() < 0.1

    def clean(self, step: int) -> float:
        """The loss without noise."""
        return self._level(step)

    def truth(self, times: Sequence[float]) -> Truth:
        """What is so many times as high, step by step from its turn on."""
        return Truth(tuple(each - 1.0 for each in times), self.sigma, self.memories)

    def loss(self, step: int, *, times: float = 1.0, noisier: float = 1.0) -> float:
        """The loss of a step, so many times as high; each call draws its own noise."""
        # A loss is seldom negative: a far outlier below takes off at most nine tenths.
        value = self._level(step) * times * max(0.1, 1.0 + noisier * self.sigma * self._noise())
        return _in_bfloat16(value) if self._coarse else value

    def losses(self, steps: int, times: Callable[[int], float] = lambda _: 1.0) -> list[float]:
        """The losses of all steps from 0 on."""
        return [self.loss(step, times=times(step)) for step in range(steps)]


def _in_bfloat16(value: float) -> float:
    """Eight bits of precision: how some trainers report their loss."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256) / 256, exponent)


def _power(source: random.Random) -> Callable[[int], float]:
    floor, fall = source.uniform(0.5, 2.5), source.uniform(2.0, 8.0)
    scale, power = source.uniform(5.0, 40.0), source.uniform(0.3, 0.9)
    return lambda step: floor + fall * (1.0 + step / scale) ** -power


def _exponentials(source: random.Random) -> Callable[[int], float]:
    floor, fast, slow = source.uniform(0.05, 2.0), source.uniform(0.5, 4.0), source.uniform(0.3, 2.0)
    soon, late = source.uniform(20, 150), source.uniform(500, 5000)
    return lambda step: floor + fast * math.exp(-step / soon) + slow * math.exp(-step / late)


def _late_fall(source: random.Random) -> Callable[[int], float]:
    """Flat for long, then a new skill: the loss falls within some hundred steps."""
    begin, floor, fall = _power(source), source.uniform(0.5, 0.8), 1.0
    at, within = source.uniform(500, 2500), source.uniform(20, 150)
    return lambda step: begin(step) * (floor + (fall - floor) / (1.0 + math.exp((step - at) / within)))


def _plain(source: random.Random, steps: int) -> Curve:
    return _curve("plain", Run(source).losses(steps))


def _nearly_zero(source: random.Random, steps: int) -> Curve:
    """A model that learns its data by heart: the loss falls towards zero, its noise is as large as itself."""
    shape, final = source.uniform(0.3, 0.9), source.uniform(0.003, 0.05)
    within = source.uniform(300, 2000)
    losses = [
        (final + 2.3 * math.exp(-step / within)) * math.exp(source.gauss(0.0, shape)) for step in range(steps)
    ]
    return _curve("nearly zero", losses)


def _warm_up_bump(source: random.Random, steps: int) -> Curve:
    """The learning rate reaches its top: the loss bulges by up to 6 %, for up to 120 steps."""
    run, middle = Run(source), source.randint(60, 300)
    width, height = source.uniform(15, 60), source.uniform(0.02, 0.06)
    return _curve(
        "warm-up bump",
        run.losses(steps, lambda step: 1.0 + height * math.exp(-(((step - middle) / width) ** 2))),
    )


def _spikes(source: random.Random, steps: int) -> Curve:
    """Up to twenty spikes up to four times the loss, risen within 3 steps, with a tail of up to 10 steps."""
    run = Run(source)
    times, spikes = [1.0] * steps, list[range]()
    places = source.sample(range(100, steps - 100, SPIKES_APART), source.randint(2, 20))
    for begin in places:
        height = source.uniform(0.2, 3.0)
        rise, tail = source.randint(1, 3), source.uniform(0.3, 10.0)
        span = range(begin, begin + rise + math.ceil(5 * tail))
        for offset, step in enumerate(span):
            up = (offset + 1) / rise if offset < rise else math.exp(-(offset - rise + 1) / tail)
            times[step] = max(times[step], 1.0 + height * up)
        spikes.append(span)
    return _curve("spikes", run.losses(steps, lambda step: times[step]), spikes=tuple(spikes))


def _batch_size(source: random.Random, steps: int) -> Curve:
    """Batches of another size: the noise changes by up to a factor of two, the loss by up to 1 %."""
    run = Run(source)
    at = sorted(source.sample(range(300, steps - 300), source.randint(1, 3)))
    losses, begin, noisier, shift = list[float](), 0, 1.0, 1.0
    for end in (*at, steps):
        losses += [run.loss(step, times=shift, noisier=noisier) for step in range(begin, end)]
        begin, noisier = end, source.choice((0.5, 0.7, 1.4, 2.0))
        shift = source.uniform(0.99, 1.01)
    return _curve("batch size", losses, marks=dict.fromkeys(at, RelearnReason.BATCH_SIZE))


def _restarts(source: random.Random, steps: int) -> Curve:
    """It goes on from a checkpoint, some steps back or not, with up to 10 % more for a while."""
    run, numbers, losses = Run(source), list[int](), list[float]()
    cuts = sorted(source.sample(range(150, steps - 100), source.randint(1, 4)))
    begin, marks = 0, dict[int, RelearnReason]()
    for cut in (*cuts, steps):
        bump, tail = (source.uniform(0.0, 0.1) if begin else 0.0), source.uniform(5, 60)
        for step in range(begin, cut):
            numbers.append(step)
            losses.append(run.loss(step, times=1.0 + bump * math.exp(-(step - begin) / tail)))
        if cut < steps:
            marks[len(losses)] = RelearnReason.RESTART
        begin = max(0, cut - source.choice((0, source.randint(10, 300))))
    return Curve("restarts", tuple(numbers), tuple(losses), marks=marks)


def _learning_rate(source: random.Random, steps: int) -> Curve:
    """Decay in steps, after each of which the loss falls by 3 to 15 %, or warm restarts, which lift it."""
    run, apart = Run(source), source.randint(800, 2500)
    part, within = source.uniform(0.03, 0.15), source.uniform(5, 80)
    restarts = source.random() < 0.5

    def times(step: int) -> float:
        number, since = divmod(step, apart)
        left = math.exp(-since / within) if number else 0.0  # of the change at the last step
        if restarts:  # down with the cosine, up soon
            return 1.0 - part * (0.5 * (1.0 - math.cos(math.pi * since / apart)) + left)
        return (1.0 - part) ** (number - left)

    marks = dict.fromkeys(range(apart, steps, apart), RelearnReason.LEARNING_RATE)
    return _curve("learning rate", run.losses(steps, times), marks=marks)


def _phases(source: random.Random, steps: int) -> Curve:
    """Other data, marked by the user: the loss is 30 % lower to 50 % higher from one step to the next."""
    run = Run(source)
    at = sorted(source.sample(range(300, steps - 300), source.randint(1, 3)))
    levels = [1.0, *(source.uniform(0.7, 1.5) for _ in at)]
    times = [levels[sum(step >= begin for begin in at)] for step in range(steps)]
    marks = dict.fromkeys(at, RelearnReason.DATASET)
    return _curve("data phases", run.losses(steps, lambda step: times[step]), marks=marks)


def _epochs(source: random.Random, steps: int) -> Curve:
    """Data in the same order in each epoch: the loss sways by up to 3 %, and falls at each new epoch."""
    run, length = Run(source), source.randint(300, 3000)
    sway, fall = source.uniform(0.005, 0.03), source.uniform(0.0, 0.06)
    phase = source.uniform(0.0, 2 * math.pi)

    def times(step: int) -> float:
        epoch, within = divmod(step, length)
        return (1.0 - fall) ** epoch * (1.0 + sway * math.sin(2 * math.pi * within / length + phase))

    return _curve("epochs", run.losses(steps, times))


def _drift(source: random.Random, steps: int) -> Curve:
    """It turns round and climbs by 50 to 200 % within 300 to 1,000 steps."""
    climb = source.uniform(0.5, 2.0) / source.uniform(300, 1000)
    return _gradual("slow drift up", source, steps, lambda since: 1.0 + climb * since)


def _exponential(source: random.Random, steps: int) -> Curve:
    """The rise above the loss grows e-fold in 10 to 60 steps, up to 3 to 30 times the loss."""
    within, most = source.uniform(10, 60), source.uniform(3.0, 30.0)
    return _gradual(
        "exponential", source, steps, lambda since: min(most, 1.0 + 0.01 * math.expm1(since / within))
    )


def _oscillation(source: random.Random, steps: int) -> Curve:
    """It swings with a period of 4 to 60 steps, e-fold in 15 to 60 steps, up to 1 to 5 times the loss."""
    period, within, most = source.uniform(4, 60), source.uniform(15, 60), source.uniform(1.0, 5.0)

    def times(since: float) -> float:
        swing = min(most, 0.01 * math.expm1(since / within))
        turned = math.sin(2 * math.pi * since / period)
        return 1.0 + (swing if turned > 0 else 0.5 * min(1.0, swing)) * turned

    return _gradual("growing oscillation", source, steps, times)


def _gradual(kind: str, source: random.Random, steps: int, times: Callable[[float], float]) -> Curve:
    run, turn = Run(source), _turn(source, steps)
    losses = run.losses(steps, lambda step: times(max(0, step - turn)))
    visible = (1.0 + max(VISIBLE_RISE, run.sigma)) * run.clean(turn) * VISIBLE_STEPS
    clean = [run.clean(step) * times(max(0, step - turn)) for step in range(turn - VISIBLE_STEPS, steps)]
    sums = (sum(clean[end - VISIBLE_STEPS : end]) for end in range(VISIBLE_STEPS, len(clean) + 1))
    shown = (step for step, recent in enumerate(sums, -1) if recent >= visible and step >= 0)
    # One that never shows, because the loss falls beneath it, begins where it is highest.
    onset = turn + next(shown, max(range(len(clean) - VISIBLE_STEPS), key=clean[VISIBLE_STEPS:].__getitem__))
    truth = run.truth([times(since) for since in range(steps - turn)])
    return replace(_curve(kind, losses, onset, turn), truth=truth)


def _step_up(source: random.Random, steps: int) -> Curve:
    """From one step to the next it stands 5 sigma + 10 to 100 % higher, and stays there."""
    run, onset = Run(source), _turn(source, steps)
    higher = 1.0 + source.uniform(0.1, 1.0) + 5.0 * run.sigma
    losses = run.losses(steps, lambda step: higher if step >= onset else 1.0)
    truth = run.truth([higher] * (steps - onset))
    return replace(_curve("step up", losses, onset, onset), truth=truth)


def _bad_restart(source: random.Random, steps: int) -> Curve:
    """It goes on from a checkpoint, up to 300 steps back, and stands 40 to 200 % higher from then on."""
    run, cut = Run(source), _turn(source, steps)
    begin = cut - source.choice((0, source.randint(20, 300)))
    higher = 1.0 + source.uniform(0.4, 2.0)
    numbers = (*range(cut), *range(begin, begin + steps - cut))
    losses = [run.loss(step, times=higher if at >= cut else 1.0) for at, step in enumerate(numbers)]
    return Curve("bad restart", numbers, tuple(losses), cut, cut, marks={cut: RelearnReason.RESTART})


def _as_untrained(source: random.Random, steps: int) -> Curve:
    """Within 3 to 60 steps it forgets all: the loss is that of a guess, ln(vocabulary), and hardly moves."""
    run, onset = Run(source), _turn(source, steps)
    guess, within = math.log(source.choice((32_000, 50_257, 128_256, 262_144))), source.uniform(1.0, 20.0)

    def loss(step: int) -> float:
        learnt = math.exp(-(step - onset + 1) / within) if step >= onset else 1.0
        return learnt * run.loss(step) + (1.0 - learnt) * guess * (1.0 + source.gauss(0.0, 0.002))

    return _curve("as untrained", [loss(step) for step in range(steps)], onset, onset)


def _nan(source: random.Random, steps: int) -> Curve:
    run, onset = Run(source), _turn(source, steps)
    losses = [math.nan if step >= onset else run.loss(step) for step in range(steps)]
    return _curve("NaN", losses, onset, onset)


def _turn(source: random.Random, steps: int) -> int:
    return source.randrange(steps // 8, steps // 2)


def _curve(
    kind: str,
    losses: list[float],
    onset: int | None = None,
    turn: int | None = None,
    *,
    spikes: tuple[range, ...] = (),
    marks: Mapping[int, RelearnReason] | None = None,
) -> Curve:
    return Curve(kind, tuple(range(len(losses))), tuple(losses), onset, turn, spikes, marks or {})


_Make = Callable[[random.Random, int], Curve]
HEALTHY: Mapping[str, _Make] = MappingProxyType(
    {
        "plain": _plain,
        "nearly zero": _nearly_zero,
        "warm-up bump": _warm_up_bump,
        "spikes": _spikes,
        "batch size": _batch_size,
        "restarts": _restarts,
        "learning rate": _learning_rate,
        "data phases": _phases,
        "epochs": _epochs,
    }
)
DIVERGING: Mapping[str, _Make] = MappingProxyType(
    {
        "slow drift up": _drift,
        "exponential": _exponential,
        "step up": _step_up,
        "growing oscillation": _oscillation,
        "as untrained": _as_untrained,
        "bad restart": _bad_restart,
        "NaN": _nan,
    }
)


def curves(kind: str, count: int, seed: int, steps: int | None = None) -> Iterator[Curve]:
    """So many curves of a kind; the same for the same seed."""
    make = HEALTHY.get(kind) or DIVERGING[kind]
    length = steps or (HEALTHY_STEPS if kind in HEALTHY else DIVERGING_STEPS)
    for number in range(count):
        yield make(random.Random(f"{kind} {seed} {number}"), length)
