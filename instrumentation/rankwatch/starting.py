"""`rankwatch.start`: identifies the rank, creates its black box and installs the hooks."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from rankwatch import lifecycle
from rankwatch.blackbox import layout
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import PHASES, environment
from rankwatch.device import cuda_event_factory
from rankwatch.disabled import DisabledRun
from rankwatch.errors import BlackBoxError, IdentityError, UsageError
from rankwatch.exit_summary import announce
from rankwatch.flight_recorder import SUFFIX as SOCKET_SUFFIX
from rankwatch.flight_recorder import (
    FlightRecorderServer,
    enable_nccl_timing,
    records_all_backends,
    reserve_entries,
)
from rankwatch.identity import as_run_class, find_identity
from rankwatch.rank_gpu import RankGpu, is_gpu_uuid
from rankwatch.run import Run
from rankwatch.sweep import sweep

_log = logging.getLogger("rankwatch")


def start(
    *,
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    host: str | None = None,
    coordinates: Mapping[str, tuple[int, int]] | None = None,
    target_steps: int | None = None,
    run_class: str | None = None,
    checkpoint_interval_seconds: float | None = None,
    gpu: str | None = None,
    phases: Iterable[str] = (),
    directory: str | os.PathLike[str] | None = None,
    collectives: bool = True,
    flight_recorder: bool = True,
    capacity: int = layout.DEFAULT_CAPACITY,
) -> Run | DisabledRun:
    """Begin to record this rank. Call it once, after `import torch` and before `init_process_group`.

    run, rank, world_size, local_rank, host: the defaults come from the environment of torchrun or SLURM.
        Without a distributed job the process is rank 0 of 1.
    coordinates: the rank's position in each parallel dimension, `{"dp": (index, size), "pp": (index, size)}`.
    target_steps: the number of steps the run is to reach, for progress and time to completion.
    run_class: such as "production"; the settings of the alerts say from how many ranks on a class may page.
        Default `$RANKWATCH_RUN_CLASS`.
    checkpoint_interval_seconds: longest time between two checkpoints that the run intends; with it, an alert
        is raised for a run that never saves. Default `$RANKWATCH_CHECKPOINT_INTERVAL_SECONDS`.
    gpu: UUID of the rank's GPU, as `nvidia-smi -L` prints it. By default torch reports it.
    phases: names of phases beyond `rankwatch.conventions.PHASES`.
    directory: of the black boxes; default `$RANKWATCH_DIR`, then /dev/shm/rankwatch.
    collectives: record collectives (needs torch; gloo on CPU, arrivals on CUDA).
    flight_recorder: serve PyTorch's flight recorder to the agent on a unix socket.
    capacity: number of records in the ring, 64 bytes each.

    Raises UsageError for invalid arguments. Any other obstacle (a full disk, a read-only directory, an
    invalid environment) is logged once, and the returned run object records nothing.
    """
    if isinstance(phases, str):
        raise UsageError(f"phases is the text {phases!r}, expected names: phases=({phases!r},)")
    _check(phases := tuple(phases), capacity, gpu)
    if checkpoint_interval_seconds is not None and not 0 < checkpoint_interval_seconds < math.inf:
        raise UsageError(
            f"checkpoint_interval_seconds is {checkpoint_interval_seconds}, expected more than 0"
        )
    if os.environ.get(environment.DISABLE, "").lower() not in environment.OFF:
        return DisabledRun()
    find = partial(
        find_identity,
        run=run,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        host=host,
        coordinates=coordinates,
    )
    try:
        find({})
    except IdentityError as error:  # the arguments are wrong, whatever the environment holds
        raise UsageError(str(error)) from error
    try:
        base = Path(directory or os.environ.get(environment.DIRECTORY) or environment.DEFAULT_DIRECTORY)
        identity = find(os.environ)
        if identity.local_rank == 0:
            sweep(base)
        names = dict.fromkeys((*PHASES, *phases))
        writer = Writer(
            base,
            identity,
            phases=names,
            target_steps=target_steps,
            run_class=as_run_class(run_class or os.environ.get(environment.RUN_CLASS, "")),
            checkpoint_interval_seconds=checkpoint_interval_seconds or _checkpoint_interval(os.environ),
            capacity=capacity,
        )
        started = Run(identity, writer, names, cuda_event_factory())
    except (IdentityError, BlackBoxError) as error:
        _log.warning("rankwatch records nothing: %s", error)
        return DisabledRun()
    except Exception as error:  # noqa: BLE001 - no environment may end the training
        _log.warning("rankwatch records nothing: %s: %s", type(error).__name__, error)
        return DisabledRun()
    _hook(started, writer, collectives=collectives, recorder=flight_recorder, gpu=gpu)
    return started


def _check(phases: tuple[str, ...], capacity: int, gpu: str | None) -> None:
    most = layout.MAX_PHASES - 1 - len(PHASES)
    if len(phases) > most:
        raise UsageError(f"phases holds {len(phases)} phases of your own, at most {most} are possible")
    if not 256 <= capacity <= layout.MAX_CAPACITY:
        raise UsageError(f"capacity is {capacity}, expected 256 to {layout.MAX_CAPACITY}")
    if gpu is not None and not is_gpu_uuid(gpu):
        raise UsageError(f"gpu is {gpu!r:.100}, expected a UUID as `nvidia-smi -L` prints it: GPU-...")


def _checkpoint_interval(env: Mapping[str, str]) -> float:
    """The declared interval; 0 where there is none, and, with a warning, where it is no time."""
    text = env.get(environment.CHECKPOINT_INTERVAL, "")
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds < math.inf:
        return seconds
    _log.warning("%s is %.100r, expected seconds: it is ignored", environment.CHECKPOINT_INTERVAL, text)
    return 0.0


def _hook(run: Run, writer: Writer, *, collectives: bool, recorder: bool, gpu: str | None) -> None:
    """Install the hooks independently, so that one that fails does not affect the others."""

    def install(what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - torch's private interfaces may do anything
            run._failures.note(what, error)

    if run.identity.rank == 0:  # before the next: the card is to show the end that it records
        install("announce the run", lambda: announce(writer.path.parent, os.environ))
    install("watch for the end of the process", lambda: _watch_end(run, writer))
    install("record the rank's GPU", lambda: _record_gpu(run, writer, gpu))
    if "torch" not in sys.modules:
        return
    if collectives:
        install("record collectives", lambda: _record_collectives(run, writer))
    if recorder:
        install("serve the flight recorder", lambda: _serve_flight_recorder(run, writer))


def _watch_end(run: Run, writer: Writer) -> None:
    run.when_ended(lifecycle.on_exit(run.exited))
    lifecycle.on_fork(run.silence)
    run.when_ended(writer.unlock)
    stacks = lifecycle.StacksOnSigterm(writer.path.with_suffix(lifecycle.TERMINATED_SUFFIX))
    lifecycle.on_fork(stacks.release)
    run.when_ended(stacks.close)


def _record_gpu(run: Run, writer: Writer, gpu: str | None) -> None:
    if gpu is not None:
        writer.set_gpu(gpu)
    elif run.device is not None:
        run.after_steps(RankGpu(writer, sys.modules["torch"].cuda).resolve)


def _record_collectives(run: Run, writer: Writer) -> None:
    import torch.distributed as dist

    if dist.is_available():
        from rankwatch.collectives import CollectiveHook

        arrive = run.device.arrive if run.device else None
        hook = CollectiveHook(writer, run._failures, arrive)
        lifecycle.on_fork(hook.forget)
        run.when_ended(hook.remove)


def _serve_flight_recorder(run: Run, writer: Writer) -> None:
    import torch.distributed as dist

    if dist.is_available():
        reserve_entries(os.environ, of_all_backends=records_all_backends())
        if run.device is not None:
            enable_nccl_timing(os.environ)
        run.when_ended(FlightRecorderServer(writer.path.with_suffix(SOCKET_SUFFIX)).close)
