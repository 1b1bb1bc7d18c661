"""The training loop."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from rankwatch import DisabledRun, Run
from rankwatch_trainer.checkpoints import Checkpointing
from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.data import Corpus, ShardedBatches
from rankwatch_trainer.injection import Injection
from rankwatch_trainer.report import RunReport
from rankwatch_trainer.state import fresh_state
from rankwatch_trainer.world import Preemption, World


def train(
    config: TrainerConfig,
    world: World,
    corpus: Corpus,
    run: Run | DisabledRun,
    injection: Injection,
    preemption: Preemption,
    report: RunReport,
) -> None:
    """Train from the newest checkpoint, or from the beginning, to the last step or the preemption."""
    device = world.device(config.device)
    state = fresh_state(config, world, device, corpus.training, injection.conditions)
    model, optimizer, schedule = state.model, state.optimizer, state.schedule
    evaluation = Evaluation(config, world, device, corpus.held_out)
    checkpointing = Checkpointing(config, world, run, injection.write_file)
    checkpointing.resume(state)
    parameters = list(model.parameters())
    samples = config.accumulation * config.batch_size

    report.begin()
    steps = injection.steps(state.step + 1, config.steps)
    for step, micro_batches in zip(steps, run.batches(injection.delayed(state.batches)), strict=False):
        with run.step(step):
            loss = torch.zeros((), device=device)
            tokens = 0
            for number, full in enumerate(micro_batches.to(device, non_blocking=True), start=1):
                text = injection.cut(full)
                tokens += text.numel() - len(text)  # the last byte of a sequence is only predicted
                # gradients of all micro-batches add up locally, and the last backward reduces them
                with injection.reduction(model, last=number == config.accumulation):
                    with run.phase("forward"):
                        micro_loss = injection.strike(model(text)) / config.accumulation
                    with run.phase("backward"):
                        micro_loss.backward()
                        injection.call_other(micro_loss)
                loss += micro_loss.detach()
            with run.phase("optimizer"):
                injection.enlarge(parameters)
                gradient_norm = clip_grad_norm_(parameters, config.clip_norm)
                injection.raise_learning_rate(optimizer)
                learning_rate = optimizer.param_groups[0]["lr"]
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            injection.flip_bit(parameters)
            run.fingerprint(model)
            run.scalar("loss", loss)
            run.scalar("gradient_norm", gradient_norm)
            run.scalar("learning_rate", learning_rate)
            run.work(samples=samples, tokens=tokens)
        state.step = step
        report.step(step, loss, learning_rate)

        if evaluation.due(step):
            with run.evaluation():
                report.evaluated(step, evaluation.loss(model.module))
        checkpointing.save_if_due(state)
        if preemption.agreed(device):
            checkpointing.save(state)
            run.preempted()
            report.outcome = "preempted"
            return


class Evaluation:
    """Mean loss of all ranks, each over the same few batches of its share of the held-out text."""

    def __init__(self, config: TrainerConfig, world: World, device: torch.device, held_out: Tensor) -> None:
        self._every = config.eval_every
        self._world_size = world.size
        self._batches: Tensor | None = None
        if self._every > 0:
            share = ShardedBatches(
                held_out,
                shape=(config.eval_batches, config.batch_size),
                context=config.context,
                rank=world.rank,
                world_size=world.size,
                seed=config.seed,
            )
            self._batches = next(share).to(device)

    def due(self, step: int) -> bool:
        """Return whether an evaluation follows this step."""
        return self._every > 0 and step % self._every == 0

    @torch.no_grad()
    def loss(self, model: nn.Module) -> Tensor:
        """Mean loss in nats per byte; a collective, so every rank calls it."""
        assert self._batches is not None, "asked for an evaluation that is never due"
        total = torch.stack([model(text) for text in self._batches]).mean()
        dist.all_reduce(total)
        return total / self._world_size
