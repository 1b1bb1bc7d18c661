"""Losses of small models that are really trained, well and with mistakes; the same for the same seed.

They take part in `make bench-loss`: a made curve diverges as its maker thinks, a trained one as it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rankwatch_agent.training.learning.loss import RelearnReason
from support.diagnosis.loss_curves import VISIBLE_RISE, VISIBLE_STEPS, Curve

STEPS = 2000
FAULT_STEP = 1200
LASTING_STEPS = 100
"""A mistake harms where the mean of so many steps is higher by a tenth and two standard deviations."""
SYMBOLS, CONTEXT = 48, 24


class Task:
    """A model and its data: `loss(count)` draws so many samples; `spoilt` gives them random labels."""

    rate = 1e-3
    """Learning rate of AdamW with which it learns well; SGD takes 50 times as much."""
    part = 1
    """Of a batch's samples it takes one in so many, because each is long."""

    def __init__(self, seed: int) -> None:
        self.source = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.spoilt = False
        self.model: nn.Module

    def loss(self, count: int) -> Tensor:
        """The mean loss of a fresh batch."""
        raise NotImplementedError

    def _labels(self, labels: Tensor, classes: int) -> Tensor:
        if not self.spoilt:
            return labels
        return torch.randint(classes, labels.shape, generator=self.source)


class Perceptron(Task):
    """An MLP that imitates a random teacher with ten classes, some of whose labels are wrong."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._teacher = torch.randn(20, 10, generator=self.source)
        self.model = nn.Sequential(
            nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def loss(self, count: int) -> Tensor:
        """The mean loss of a fresh batch."""
        inputs = torch.randn(count, 20, generator=self.source)
        labels = (inputs @ self._teacher).argmax(1)
        wrong = torch.rand(count, generator=self.source) < 0.1
        labels = torch.where(wrong, torch.randint(10, (count,), generator=self.source), labels)
        result: Tensor = cross_entropy(self.model(inputs), self._labels(labels, 10))
        return result


class Images(Task):
    """A CNN that tells eight patterns in noise apart, each at any place."""

    rate = 2e-3

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._patterns = torch.randn(8, 4, 4, generator=self.source)
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 8)
        )

    def loss(self, count: int) -> Tensor:
        """The mean loss of a fresh batch."""
        labels = torch.randint(8, (count,), generator=self.source)
        images = 0.7 * torch.randn(count, 1, 8, 8, generator=self.source)
        row, column = torch.randint(5, (2,), generator=self.source).tolist()
        images[:, 0, row : row + 4, column : column + 4] += self._patterns[labels]
        result: Tensor = cross_entropy(self.model(images), self._labels(labels, 8))
        return result


class Characters(Task):
    """A transformer of one layer on text of words: which letters follow is learnt by attention."""

    rate = 3e-3
    part = 4

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._words = torch.randint(SYMBOLS, (200, 6), generator=self.source)
        self._often = 1.0 / torch.arange(1, 201)
        self.model = _Transformer(32)

    def loss(self, count: int) -> Tensor:
        """The mean loss of a fresh batch."""
        count //= self.part
        words = count * (CONTEXT // 6 + 2)
        drawn = torch.multinomial(self._often, words, replacement=True, generator=self.source)
        text = self._words[drawn].reshape(count, -1)[:, : CONTEXT + 1]
        logits = self.model(text[:, :-1])
        labels = self._labels(text[:, 1:].reshape(-1), SYMBOLS)
        result: Tensor = cross_entropy(logits.reshape(-1, SYMBOLS), labels)
        return result


class _Transformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(CONTEXT, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, text: Tensor) -> Tensor:
        x = self.symbols(text) + self.places.weight
        queries, keys, values = self.mix(self.before(x)).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(mixed)
        logits: Tensor = self.head(x + self.wide(self.after(x)))
        return logits


TASKS: Mapping[str, Callable[[int], Task]] = MappingProxyType(
    {"MLP": Perceptron, "CNN": Images, "transformer": Characters}
)


def _cosine(step: int, period: int) -> float:
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * (step % period) / period))


SCHEDULES: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "cosine": lambda step: _cosine(step, STEPS),
        "WSD": lambda step: min(1.0, 5.0 * (STEPS - step) / STEPS),
        "steps": lambda step: 0.3 ** (step // 700),
        "warm restarts": lambda step: _cosine(step, 700),
    }
)
"""Each after a warm-up of WARM_UP steps; a change by a fifth from one step to the next is marked."""
WARM_UP = 100
_OPTIMIZERS = ("AdamW", "SGD", "RMSprop")


@dataclass
class Training:
    """One training; its mistakes change what it holds."""

    task: Task
    optimizer_name: str
    schedule: Callable[[int], float]
    batch: int = 32
    times: float = 1.0
    """Of the learning rate."""
    sign: float = 1.0
    """Of the gradients."""
    half: float = 0.0
    """Loss scale with which gradients pass through float16; 0 for none."""
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.begin_optimizer()

    def begin_optimizer(self, betas: tuple[float, float] = (0.9, 0.95)) -> None:
        """An optimizer without a history."""
        parameters, rate = list(self.task.model.parameters()), self.task.rate
        match self.optimizer_name:
            case "SGD":
                self.rate = 50 * rate
                self.optimizer = torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)
            case "RMSprop":
                self.rate = 0.5 * rate
                self.optimizer = torch.optim.RMSprop(parameters, lr=self.rate)
            case _:
                self.rate = rate
                self.optimizer = torch.optim.AdamW(parameters, lr=rate, betas=betas, weight_decay=0.05)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step."""
        return self.rate * self.times * self.schedule(step) * min(1.0, (step + 1) / WARM_UP)

    def step(self, number: int) -> float:
        """Train for a step; returns its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate_at(number)
        loss = self.task.loss(self.batch)
        self.optimizer.zero_grad()
        loss.backward()
        if self.half or self.sign < 0:
            for parameter in self.task.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.sign)
                    if self.half:
                        parameter.grad = (parameter.grad * self.half).half().float() / self.half
        self.optimizer.step()
        return loss.item()


def _spoil_labels(training: Training) -> None:
    training.task.spoilt = True


def _scale_weights(training: Training) -> None:
    """Weights restored from bfloat16, half as large again."""
    for parameter in training.task.model.parameters():
        parameter.data = parameter.data.bfloat16().float() * 1.5


class Mistake(NamedTuple):
    """What goes wrong at FAULT_STEP."""

    changes: Mapping[str, float]
    """Of the training's fields."""
    also: Callable[[Training], None] | None = None
    told: RelearnReason | None = None
    """What the agent is told: another rate, a restart, or nothing."""


MISTAKES: Mapping[str, Mistake] = MappingProxyType(
    {
        "rate x 10": Mistake({"times": 10.0}, told=RelearnReason.LEARNING_RATE),
        "rate x 100": Mistake({"times": 100.0}, told=RelearnReason.LEARNING_RATE),
        "sign flip": Mistake({"sign": -1.0}),
        "bad data shard": Mistake({}, _spoil_labels),
        # Gradients in float16 with a loss scale far too large: infinite, and nobody looks.
        "float16 overflow": Mistake({"half": 2.0**22}),
        "weights scaled in bfloat16": Mistake({"times": 4.0}, _scale_weights, RelearnReason.RESTART),
        # A resume without the optimizer's history, and with a rate that nobody meant.
        "lost optimizer state, rate x 8": Mistake(
            {"times": 8.0}, Training.begin_optimizer, RelearnReason.RESTART
        ),
        "beta2 of 0.1, rate x 3": Mistake(
            {"times": 3.0}, lambda training: training.begin_optimizer(betas=(0.0, 0.1))
        ),
    }
)


def healthy_run(task: str, optimizer: str, schedule: str, seed: int) -> Curve:
    """A training as it should be, with a restart 150 steps back or a batch that doubles."""
    training = Training(TASKS[task](seed), optimizer, SCHEDULES[schedule])
    steps, losses, marks = list[int](), list[float](), dict[int, RelearnReason]()
    saved: dict[str, object] = {}
    step = 0
    restarts = seed % 2 == 0
    while step < STEPS:
        if step == 900 and not saved:
            saved = {name: value.clone() for name, value in training.task.model.state_dict().items()}
        if restarts and step == 1050:
            training.task.model.load_state_dict(saved)
            marks[len(losses)], step, restarts = RelearnReason.RESTART, 900, False
        if seed % 2 and step in (700, 1400):
            training.batch *= 2
            marks[len(losses)] = RelearnReason.BATCH_SIZE
        if step > WARM_UP and not 0.8 < training.rate_at(step) / training.rate_at(step - 1) < 1.25:
            marks[len(losses)] = RelearnReason.LEARNING_RATE
        steps.append(step)
        losses.append(training.step(step))
        step += 1
    return Curve("trained", tuple(steps), tuple(losses), marks=marks)


def faulty_run(task: str, optimizer: str, mistake: str, seed: int) -> Curve | None:
    """A training with a mistake from FAULT_STEP on; None where the mistake does no harm."""
    training = Training(TASKS[task](seed), optimizer, SCHEDULES["WSD"])
    changes, also, told = MISTAKES[mistake]
    losses = []
    for step in range(STEPS):
        if step == FAULT_STEP:
            for name, value in changes.items():
                setattr(training, name, value)
            if also is not None:
                also(training)
        losses.append(training.step(step))
        if not math.isfinite(losses[-1]) and step > FAULT_STEP + LASTING_STEPS:
            break
    onset = _onset(losses)
    marks = {} if told is None else {FAULT_STEP: told}
    if onset is None:
        return None
    return Curve(mistake, tuple(range(len(losses))), tuple(losses), onset, FAULT_STEP, marks=marks)


def _onset(losses: list[float]) -> int | None:
    before = torch.tensor(losses[FAULT_STEP - 200 : FAULT_STEP])
    level, sigma = before.mean().item(), before.std().item()
    after = losses[FAULT_STEP:]
    harmful = level + max(0.1 * level, 2.0 * sigma)
    visible = level + max(VISIBLE_RISE * level, sigma)
    windows = range(LASTING_STEPS, len(after) + 1, 10)
    if all(sum(after[end - LASTING_STEPS : end]) < harmful * LASTING_STEPS for end in windows):
        return None
    whole = losses[FAULT_STEP - VISIBLE_STEPS + 1 :]
    for step in range(len(after)):
        if not sum(whole[step : step + VISIBLE_STEPS]) < visible * VISIBLE_STEPS:
            return FAULT_STEP + step
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread: small models are no slower, and sums are the same each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def trained(seed: int, *, quick: bool = False) -> Iterator[tuple[str, Curve]]:
    """All trainings, one after the other: two to three minutes; quick: of one model only."""
    tasks = tuple(TASKS)[:1] if quick else tuple(TASKS)
    for number, (task, optimizer, schedule) in enumerate(product(tasks, _OPTIMIZERS, SCHEDULES)):
        with one_thread():
            curve = healthy_run(task, optimizer, schedule, seed + number)
        yield "trained, healthy", curve
    for number, (task, optimizer, mistake) in enumerate(product(tasks, _OPTIMIZERS[:2], MISTAKES)):
        with one_thread():
            harmed = faulty_run(task, optimizer, mistake, seed + 500 + number)
        if harmed is not None:
            yield f"trained, {mistake}", harmed
