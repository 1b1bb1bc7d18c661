"""A small byte-level GPT: pre-norm transformer blocks, learned positions, cross-entropy loss.

Its layers take the time that device and faults ask for: asleep on an emulated device, longer than they need
on a straggler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.faults import Conditions

VOCABULARY = 256
"""One token per byte value."""


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each after a layer norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Take and return (batch, context, width)."""
        x = x + self._attend(self.attention_norm(x))
        return x + self.feed_forward(x)  # type: ignore[no-any-return]

    def _attend(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        split = self.query_key_value(x).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.attention_out(attended.transpose(1, 2).reshape(batch, context, width))
        return out


class GPT(nn.Module):
    """Predicts the next byte of a text, through blocks that map (batch, context, width) to the same."""

    def __init__(self, blocks: Iterable[nn.Module], *, width: int, context: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))
        self.apply(_initialise)

    def forward(self, text: Tensor) -> Tensor:
        """Mean cross-entropy in nats per byte; text is (batch, context + 1) byte values."""
        tokens, targets = text[:, :-1], text[:, 1:]
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def _initialise(module: nn.Module) -> None:
    """Set normal weights of deviation 0.02 and zero biases, as GPT-2 does."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


_CALIBRATION_CYCLES = 20_000_000
"""About 10 ms on present GPUs: long against the cost of a launch."""


def paced_model(config: TrainerConfig, conditions: Conditions) -> GPT:
    """Return a model whose layers take the time that the device and the conditions ask for.

    On a real device only runs with faults have hooks on their layers, because hooks cost a little.
    """
    if config.device == "emulated":
        return _emulated(config, conditions)
    blocks = [Block(config.width, config.heads) for _ in range(config.layers)]
    model = GPT(blocks, width=config.width, context=config.context)
    if config.fault or config.fault_file is not None:
        slow_layers = slow_layers_on_cpu if config.device == "cpu" else slow_layers_on_cuda
        slow_layers([*model.blocks, model.head], conditions)
    return model


def _emulated(config: TrainerConfig, conditions: Conditions) -> GPT:
    blocks = [
        EmulatedBlock(
            config.width,
            conditions,
            context=config.context,
            forward_seconds=config.layer_forward_seconds,
            backward_seconds=config.layer_backward_seconds,
        )
        for _ in range(config.layers)
    ]
    return GPT(blocks, width=config.width, context=config.context)


class EmulatedBlock(nn.Module):
    """A layer with weights, gradients and next to no arithmetic, which sleeps for a given time.

    The backward sleeps before its own gradients are ready, so the gradients of the layers above can be
    reduced meanwhile, as on a real device. Both times are for sequences of `context` bytes. Shorter
    sequences take less in proportion, and `compute_factor` multiplies the time.
    """

    def __init__(
        self,
        width: int,
        conditions: Conditions,
        *,
        context: int,
        forward_seconds: float,
        backward_seconds: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self._conditions = conditions
        self._context = context
        self._forward_seconds = forward_seconds
        self._backward_seconds = backward_seconds
        self._sleep = sleep

    def forward(self, x: Tensor) -> Tensor:
        """Take and return (batch, length, width)."""
        out: Tensor = _Pause.apply(  # type: ignore[no-untyped-call]
            x + self.linear(x), self._pause_forward, self._pause_backward
        )
        return out

    def _pause_forward(self, length: int) -> None:
        self._pause(self._forward_seconds, length)

    def _pause_backward(self, length: int) -> None:
        self._pause(self._backward_seconds, length)

    def _pause(self, seconds: float, length: int) -> None:
        self._sleep(seconds * length / self._context * self._conditions.compute_factor)


class _Pause(torch.autograd.Function):
    """The identity, with a pause in each direction; a pause is given the length of the sequences."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forward: Callable[[int], None], backward: Callable[[int], None]
    ) -> Tensor:
        ctx.pause = backward
        forward(x.shape[1])
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.pause(gradients[0].shape[1])
        return gradients[0], None, None


def slow_layers_on_cuda(layers: Iterable[nn.Module], conditions: Conditions) -> None:
    """Stretch forward and backward of each layer to `compute_factor` times their measured GPU time.

    CUDA events measure a layer and are read once the GPU has passed them, so nothing here waits for the GPU.
    After the layer its stream spins for as long as the latest finished execution asks for.
    """
    cycles_per_ms = _spin_cycles_per_ms()
    _stretch(layers, lambda: _SpinStretch(conditions, cycles_per_ms))


class _SpinStretch:
    """Measures one direction of one layer, and lets its stream spin for the rest of its stretched time."""

    def __init__(self, conditions: Conditions, cycles_per_ms: float) -> None:
        self._conditions = conditions
        self._cycles_per_ms = cycles_per_ms
        self._began, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._measuring = False
        self._pending = False
        self._layer_ms = 0.0

    def begin(self, *_: Any) -> None:
        if self._pending and self._ended.query():
            self._layer_ms = self._began.elapsed_time(self._ended)
            self._pending = False
        self._measuring = not self._pending and self._conditions.compute_factor > 1.0
        if self._measuring:
            self._began.record()

    def end(self, *_: Any) -> None:
        if self._measuring:
            self._ended.record()
            self._pending = True
        spin_ms = (self._conditions.compute_factor - 1.0) * self._layer_ms
        if spin_ms > 0:
            torch.cuda._sleep(int(spin_ms * self._cycles_per_ms))


def _spin_cycles_per_ms() -> float:
    """Measure the speed of the spinning kernel, once before training, where waiting for the GPU is free."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_CALIBRATION_CYCLES)  # the first launch loads the kernel
    began.record()
    torch.cuda._sleep(_CALIBRATION_CYCLES)
    ended.record()
    ended.synchronize()
    elapsed_ms: float = began.elapsed_time(ended)
    return _CALIBRATION_CYCLES / elapsed_ms


def slow_layers_on_cpu(
    layers: Iterable[nn.Module],
    conditions: Conditions,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Stretch forward and backward of each layer to `compute_factor` times their measured time."""
    _stretch(layers, lambda: _SleepStretch(conditions, clock, sleep))


def _stretch(layers: Iterable[nn.Module], measure: Callable[[], _SleepStretch | _SpinStretch]) -> None:
    """Put a measure of its own around the forward and the backward of each layer."""
    for layer in layers:
        forward, backward = measure(), measure()
        layer.register_forward_pre_hook(forward.begin)
        layer.register_forward_hook(forward.end)
        layer.register_full_backward_pre_hook(backward.begin)
        layer.register_full_backward_hook(backward.end)


class _SleepStretch:
    """Measures one direction of one layer and sleeps for the rest of its stretched time."""

    def __init__(
        self, conditions: Conditions, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._conditions = conditions
        self._clock = clock
        self._sleep = sleep
        self._began = 0.0

    def begin(self, *_: Any) -> None:
        self._began = self._clock()

    def end(self, *_: Any) -> None:
        factor = self._conditions.compute_factor
        if factor > 1.0:
            self._sleep((factor - 1.0) * (self._clock() - self._began))
