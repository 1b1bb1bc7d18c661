"""Where faults strike: the places in the training loop that a fault can reach."""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rankwatch_trainer.faults import Conditions, FaultFile, ScheduledFault

_BYTES = 256


class Injection:
    """The faults of this rank. Without any, each of its methods passes on what it is given."""

    def __init__(
        self,
        rank: int,
        faults: Sequence[ScheduledFault],
        file: FaultFile | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.conditions = Conditions()
        """What is wrong in the present step."""
        self._rank = rank
        self._faults = tuple(faults)
        self._file = file
        self._sleep = sleep
        self._draw = random.Random()

    def steps(self, first: int, last: int) -> Iterator[int]:
        """Yield the numbers first..last; each sets the conditions of its step before it is returned."""
        for step in range(first, last + 1):
            self.conditions.clear()
            self._draw.seed(f"rank {self._rank} step {step}")  # after a resume the same again
            from_file = self._file.faults(step) if self._file else ()
            for scheduled in (*self._faults, *from_file):
                if scheduled.strikes(self._rank, step):
                    scheduled.apply(self.conditions)
            if self._draw.random() * self.conditions.pause_every_steps >= 1.0:
                self.conditions.pause_seconds = 0.0  # another step is drawn
            yield step

    def delayed(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the batches, later where the data is slow."""
        for batch in batches:
            if self.conditions.batch_delay_seconds > 0:
                self._pause(self.conditions.batch_delay_seconds)
            yield batch

    def cut(self, text: Tensor) -> Tensor:
        """Return a micro-batch, (batch size, context + 1); its sequences shorter where lengths are unequal,
        and without a meaning where the data are foreign."""
        if self.conditions.data_are_foreign:
            text = torch.randint_like(text, _BYTES)
        if self.conditions.length_ratio <= 1.0:
            return text
        context = text.shape[1] - 1
        shortest = max(1, round(context / self.conditions.length_ratio))
        return text[:, : self._draw.randint(shortest, context) + 1]

    def strike(self, loss: Tensor) -> Tensor:
        """Return the loss of a forward; a rank dies, stalls, pauses or loses the value here."""
        if self.conditions.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        pause = self.conditions.stall_seconds + self.conditions.pause_seconds
        if pause > 0:
            self._pause(pause)
            # once per step, not once per micro-batch
            self.conditions.stall_seconds = self.conditions.pause_seconds = 0.0
        return loss * math.nan if self.conditions.loss_is_nan else loss

    def reduction(self, model: DistributedDataParallel, *, last: bool) -> AbstractContextManager[None]:
        """Wrap a micro-batch: the backward of the last one reduces the gradients, if this rank does."""
        return nullcontext() if last and self.conditions.gradients_are_reduced else model.no_sync()

    def call_other(self, loss: Tensor) -> None:
        """Wait after a backward, where the fault asks for it, for a broadcast that nobody sends."""
        if self.conditions.calls_broadcast:
            self.conditions.calls_broadcast = False  # once per step, not once per micro-batch
            dist.broadcast(loss.detach().clone(), src=(self._rank + 1) % dist.get_world_size())

    def enlarge(self, parameters: Sequence[Tensor]) -> None:
        """Multiply the gradients after the last backward, before they are clipped."""
        if self.conditions.gradient_factor != 1.0:
            for each in parameters:
                if each.grad is not None:
                    each.grad.mul_(self.conditions.gradient_factor)

    def raise_learning_rate(self, optimizer: Optimizer) -> None:
        """Scale the learning rate of this step; the schedule sets the next one afresh."""
        if self.conditions.learning_rate_factor != 1.0:
            for group in optimizer.param_groups:
                group["lr"] *= self.conditions.learning_rate_factor

    def flip_bit(self, parameters: Sequence[Tensor]) -> None:
        """Change a bit of a parameter after the update, as memory may: the lowest of the first element."""
        if self.conditions.parameter_is_flipped:
            parameters[0].detach().view(-1)[:1].view(torch.int32).bitwise_xor_(1)

    def write_file(self, path: Path, content: bytes) -> None:
        """Write a file of a checkpoint: on a full disk not at all, on a lying one not what was meant."""
        if self.conditions.checkpoint_write_fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if self.conditions.checkpoint_is_corrupted:
            middle = len(content) // 2
            flipped = bytes(byte ^ 0xFF for byte in content[middle : middle + 16])
            content = content[:middle] + flipped + content[middle + 16 :]
        path.write_bytes(content)

    def _pause(self, seconds: float) -> None:
        while math.isinf(seconds):
            self._sleep(3600)  # for ever: time.sleep refuses infinity
        self._sleep(seconds)
