"""The command line: flags to configuration, errors to one sentence and an exit status."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

import rankwatch
from rankwatch_trainer.config import TrainerConfig, parse_config
from rankwatch_trainer.data import read_corpus, standard_library
from rankwatch_trainer.errors import TrainerError, UsageError
from rankwatch_trainer.faults import FaultFile, ScheduledFault, parse_fault
from rankwatch_trainer.injection import Injection
from rankwatch_trainer.report import RunReport
from rankwatch_trainer.training import train
from rankwatch_trainer.world import World, process_group, watch_for_preemption

_SILENT_RANK_WAITS_SECONDS = 5.0
"""Ranks started together import torch one after the other in less time than this."""


def main(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Train as the arguments ask. Exit status 0, 1 if training failed, 2 for a mistake of the user.

    A mistake in the arguments is the same on every rank, so only rank 0 reports it.
    """
    try:
        world = World.from_environment(environment)
    except UsageError as error:
        return _report(error, status=2)
    try:
        config = parse_config(sys.argv[1:] if arguments is None else arguments)
        injection = _injection(config, world)
        world.device(config.device)
        if world.rank == 0:
            require_writable_outputs(config)
    except UsageError as error:
        return _refuse(error, world, sleep)
    logging.basicConfig(level=logging.INFO, format=f"[rank {world.rank}] %(message)s", stream=sys.stderr)
    try:
        _run(config, world, injection)
    except UsageError as error:
        return _refuse(error, world, sleep)
    except TrainerError as error:
        return _report(error, status=1)
    return 0


def _run(config: TrainerConfig, world: World, injection: Injection) -> None:
    if config.device != "cuda":
        torch.set_num_threads(1)  # the ranks of a machine share its cores
    corpus = read_corpus(standard_library(), config.corpus_bytes)
    device = world.device(config.device)
    coordinates = {"dp": (world.rank, world.size)}
    with (
        RunReport(
            is_writer=world.rank == 0,
            steps=config.steps,
            log_every=config.log_every,
            history=config.history,
            output=sys.stdout,
        ) as report,
        # before rankwatch.start, whose own handler of SIGTERM calls the one it finds
        watch_for_preemption(config.preempt_on_sigterm) as preemption,
        rankwatch.start(target_steps=config.steps, coordinates=coordinates) as run,
        process_group(world, device, config.collective_timeout_seconds),
    ):
        train(config, world, corpus, run, injection, preemption, report)


def _injection(config: TrainerConfig, world: World) -> Injection:
    """Return the faults of the command line, counted from the run's first step, and of the fault file."""
    faults = [parse_fault(text, present_step=1, world_size=world.size) for text in config.fault]
    require_checkpoints_for(faults, config)
    watched = config.fault_file
    file = None if watched is None else FaultFile(watched, world.size, reports_errors=world.rank == 0)
    return Injection(world.rank, faults, file)


def _refuse(error: UsageError, world: World, sleep: Callable[[float], None]) -> int:
    if world.rank == 0:
        return _report(error, status=2)
    # torchrun ends all ranks as soon as one exits, and would silence a rank 0 that starts later. Once rank 0
    # has exited, torchrun ends this rank too, so nobody waits for the whole time.
    sleep(_SILENT_RANK_WAITS_SECONDS)
    return 2


def _report(error: TrainerError, *, status: int) -> int:
    print(f"rankwatch_trainer: {error}", file=sys.stderr)
    return status


def require_writable_outputs(config: TrainerConfig) -> None:
    """Create the checkpoint directory and try the history file. For rank 0, which writes both.

    Raises UsageError that names the path which cannot be written.
    """
    if config.checkpoint_dir is not None:
        _require_writable_directory(config.checkpoint_dir)
    if config.history is not None:
        _require_writable_file(config.history)


def require_checkpoints_for(faults: Sequence[ScheduledFault], config: TrainerConfig) -> None:
    """Raise UsageError for a fault that strikes checkpoints in a run that writes none."""
    for scheduled in faults:
        if scheduled.fault.name.startswith("checkpoint-") and config.checkpoint_dir is None:
            raise UsageError(
                "checkpoint_dir is None, expected a directory, "
                f"because fault {scheduled.fault.name} strikes checkpoints"
            )


def _require_writable_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise UsageError(f"could not create checkpoint_dir {path}: {cause.strerror}") from cause
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"could not write to checkpoint_dir {path}: it is not writable")


def _require_writable_file(path: Path) -> None:
    """Open the file as the end of the run does, but leave it as it was."""
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as cause:
        raise UsageError(f"could not write history {path}: {cause.strerror}") from cause
    if not existed:
        path.unlink()  # an empty file would look like the history of a run that was killed
