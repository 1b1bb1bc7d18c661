"""The command line: flags to configuration, errors to one sentence and an exit status."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

import rankwatch
from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.corpus import read_corpus, standard_library
from rankwatch_trainer.errors import TrainerError, UsageError
from rankwatch_trainer.faults.file import FaultFile
from rankwatch_trainer.faults.injection import Injection
from rankwatch_trainer.faults.specification import parse_fault
from rankwatch_trainer.flags import parse_config
from rankwatch_trainer.outputs import require_checkpoints_for, require_writable_outputs
from rankwatch_trainer.preemption import watch_for_preemption
from rankwatch_trainer.progress import Progress
from rankwatch_trainer.training import train
from rankwatch_trainer.world import World, process_group

_SILENT_RANK_WAITS_SECONDS = 5.0
"""Longer than ranks that were started together need to import torch one after the other."""


def main(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Trains as the arguments say. Exit status 0; 1 where training failed; 2 for what cannot be asked for.

    A mistake in the arguments is the same on every rank, so rank 0 alone tells it.
    """
    try:
        world = World.from_environment(environment)
    except UsageError as error:
        return _tell(error, status=2)
    try:
        config = parse_config(sys.argv[1:] if arguments is None else arguments)
        injection = _injection(config, world)
        world.device(config.device)
        if world.rank == 0:
            require_writable_outputs(config)
    except UsageError as error:
        return _refuse(error, world, sleep)
    _configure_logging(world)
    try:
        _run(config, world, injection)
    except UsageError as error:
        return _refuse(error, world, sleep)
    except TrainerError as error:
        return _tell(error, status=1)
    return 0


def _run(config: TrainerConfig, world: World, injection: Injection) -> None:
    if config.device != "cuda":
        torch.set_num_threads(1)  # the ranks of a machine share its cores
    corpus = read_corpus(standard_library(), config.corpus_bytes)
    device = world.device(config.device)
    coordinates = {"dp": (world.rank, world.size)}
    with (
        Progress(
            speaks=world.rank == 0,
            steps=config.steps,
            log_every=config.log_every,
            history=config.history,
            output=sys.stdout,
        ) as progress,
        # before rankwatch.start, whose own watch for SIGTERM passes the signal on to what it finds
        watch_for_preemption(config.preempt_on_sigterm) as preemption,
        rankwatch.start(target_steps=config.steps, coordinates=coordinates) as run,
        process_group(world, device, config.collective_timeout_seconds),
    ):
        train(config, world, corpus, run, injection, preemption, progress)


def _injection(config: TrainerConfig, world: World) -> Injection:
    """The faults of the command line, whose steps count from the first of the run, and of the fault file."""
    faults = [parse_fault(text, present_step=1, world_size=world.size) for text in config.fault]
    require_checkpoints_for(faults, config)
    file = None
    if config.fault_file is not None:
        file = FaultFile(config.fault_file, world.size, tells=world.rank == 0)
    return Injection(world.rank, faults, file)


def _configure_logging(world: World) -> None:
    logging.basicConfig(level=logging.INFO, format=f"[rank {world.rank}] %(message)s", stream=sys.stderr)


def _refuse(error: UsageError, world: World, sleep: Callable[[float], None]) -> int:
    if world.rank == 0:
        return _tell(error, status=2)
    # torchrun ends all ranks as soon as one has exited, and would silence a rank 0 that starts later;
    # once rank 0 has exited it ends this one too, so nobody waits for all of this time
    sleep(_SILENT_RANK_WAITS_SECONDS)
    return 2


def _tell(error: TrainerError, *, status: int) -> int:
    print(f"rankwatch_trainer: {error}", file=sys.stderr)
    return status
