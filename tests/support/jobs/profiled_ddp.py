"""A DDP job under PyTorch's profiler, with the arguments `DIRECTORY SLOW_RANK`.

It trains four times, each with a trace per rank in a folder of its own: `healthy`, `compute` (the slow rank's
layers take longer), `loading` (its batches do) and `unshaped` (as `compute`, without shapes and steps).
Layers sleep, so that ranks on few cores do not slow each other down.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, IterableDataset

_LAYER_SECONDS = 0.04
_BATCH_SECONDS = 0.005
_SLOW_FACTOR = 1.6
_SLOW_BATCH_SECONDS = 0.06
_STEPS = 9
_WIDTH = 64


@torch.library.custom_op(
    "rankwatch_test::layer", mutates_args=(), schema="(Tensor values, float seconds) -> Tensor"
)  # type: ignore[misc]
def layer(values: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return values.clone()


@layer.register_fake
def _(values: torch.Tensor, seconds: float) -> torch.Tensor:
    return torch.empty_like(values)


def _keep(ctx: object, inputs: tuple[torch.Tensor, float], output: torch.Tensor) -> None:
    ctx.seconds = inputs[1]  # type: ignore[attr-defined]


def _backward(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return layer(gradient, 1.5 * context.seconds), None  # type: ignore[attr-defined]


layer.register_autograd(_backward, setup_context=_keep)


class Model(torch.nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._parts = torch.nn.ModuleList(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(2))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for part in self._parts:
            values = layer(part(values), self._seconds)
        return values


class Batches(IterableDataset[torch.Tensor]):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(_STEPS):
            time.sleep(self._seconds)
            yield torch.randn(8, _WIDTH)


def train(directory: Path, *, slow_layers: bool, slow_batches: bool, annotated: bool) -> None:
    """Train for some steps, of which all but the first two are traced."""
    model = DistributedDataParallel(Model(_LAYER_SECONDS * (_SLOW_FACTOR if slow_layers else 1.0)))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = DataLoader(Batches(_SLOW_BATCH_SECONDS if slow_batches else _BATCH_SECONDS), batch_size=None)
    handler = tensorboard_trace_handler(str(directory))
    plan = schedule(wait=1, warmup=1, active=_STEPS - 2, repeat=1) if annotated else None
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=handler,
        record_shapes=annotated,
        acc_events=True,
    ) as profiler:
        for batch in batches:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if annotated:
                profiler.step()


def main(directory: Path, slow_rank: int) -> None:
    """All four trainings, in one process group."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    slow = dist.get_rank() == slow_rank
    train(directory / "healthy", slow_layers=False, slow_batches=False, annotated=True)
    train(directory / "compute", slow_layers=slow, slow_batches=False, annotated=True)
    train(directory / "loading", slow_layers=False, slow_batches=slow, annotated=True)
    train(directory / "unshaped", slow_layers=slow, slow_batches=False, annotated=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
