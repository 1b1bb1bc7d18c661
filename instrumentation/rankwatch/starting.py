"""`rankwatch.start`: identifies the rank, creates its black box and installs the hooks."""

from __future__ import annotations

import itertools
import logging
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rankwatch import lifecycle
from rankwatch.allocator import AllocatorMemory
from rankwatch.attempts import as_traceparent
from rankwatch.blackbox import layout
from rankwatch.blackbox.earlier import next_attempt
from rankwatch.blackbox.place import own_run
from rankwatch.blackbox.writer import Writer
from rankwatch.compiling import keep_out_of_graphs
from rankwatch.conventions import PHASES, environment
from rankwatch.device import cuda_event_factory
from rankwatch.disabled import DisabledRun
from rankwatch.errors import BlackBoxError, IdentityError, UsageError
from rankwatch.exit_summary import announce, print_at_exit
from rankwatch.flight_recorder import SUFFIX as SOCKET_SUFFIX
from rankwatch.flight_recorder import (
    FlightRecorderServer,
    enable_nccl_timing,
    records_all_backends,
    reserve_entries,
)
from rankwatch.identification import Given, identify, is_first_here
from rankwatch.identity import Identity, as_run_class
from rankwatch.logs import context, lines
from rankwatch.logs.capture import keep_lines
from rankwatch.processes import is_helper, script_name
from rankwatch.publication import Publication
from rankwatch.rank_gpu import RankGpu, is_gpu_uuid
from rankwatch.run import Run
from rankwatch.sweep import sweep
from rankwatch.torch_world import place_in_torch
from rankwatch.trackers.rank_zero import watch_trackers

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

    run, rank, world_size, local_rank, host: by default rankwatch finds them, see `rankwatch.identification`.
        Without a distributed job the process is rank 0 of 1.
    coordinates: the rank's position in each parallel dimension, `{"dp": (index, size), "pp": (index, size)}`.
    target_steps: the number of steps the run is to reach, for progress and time to completion.
        Default `$RANKWATCH_TARGET_STEPS`.
    run_class: such as "production"; the settings of the alerts say from how many ranks on a class may page.
        Default `$RANKWATCH_RUN_CLASS`.
    checkpoint_interval_seconds: longest time between two checkpoints that the run intends; with it, an alert
        is raised for a run that never saves. Default `$RANKWATCH_CHECKPOINT_INTERVAL_SECONDS`.
    gpu: UUID of the rank's GPU, as `nvidia-smi -L` prints it. By default torch reports it.
    phases: names of phases beyond `rankwatch.conventions.PHASES`.
    directory: of the black boxes; default `$RANKWATCH_DIR`, then /dev/shm/rankwatch.
    collectives: record collectives (needs torch; gloo on CPU, arrivals on CUDA), unless
        `$RANKWATCH_COLLECTIVES` is 0.
    flight_recorder: serve PyTorch's flight recorder to the agent on a unix socket, unless
        `$RANKWATCH_FLIGHT_RECORDER` is 0.
    capacity: number of records in the ring, 64 bytes each.

    A run that this process has started before ends here. A process that only works for a rank, such as a
    worker of a data loader, records nothing.

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
    given = Given(
        run=run,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        host=host,
        coordinates=dict(coordinates or {}),
    )
    try:
        given.check()
    except IdentityError as error:  # the arguments are wrong, whatever the environment holds
        raise UsageError(str(error)) from error
    if is_helper():
        return DisabledRun()
    global _by_hand
    _by_hand = True
    collectives = collectives and _is_on(environment.COLLECTIVES, os.environ)
    flight_recorder = flight_recorder and _is_on(environment.FLIGHT_RECORDER, os.environ)
    hooks = partial(_hook, collectives=collectives, recorder=flight_recorder, gpu=gpu)
    try:
        _end_previous()
        base = Path(directory or os.environ.get(environment.DIRECTORY) or environment.DEFAULT_DIRECTORY)
        if is_first_here(os.environ):
            sweep(base)
        writer = Writer(
            base,
            None,
            phases=(names := dict.fromkeys((*PHASES, *phases))),
            target_steps=target_steps or _target_steps(os.environ),
            run_class=as_run_class(run_class or os.environ.get(environment.RUN_CLASS, "")),
            checkpoint_interval_seconds=checkpoint_interval_seconds or _checkpoint_interval(os.environ),
            traceparent=as_traceparent(os.environ.get(environment.TRACEPARENT, "")),
            capacity=capacity,
        )
        return _start(writer, given, names, hooks, flight_recorder)
    except (IdentityError, BlackBoxError) as error:
        _log.warning("rankwatch records nothing: %s", error)
    except Exception as error:  # noqa: BLE001 - no environment may end the training
        _log.warning("rankwatch records nothing: %s: %s", type(error).__name__, error)
    return DisabledRun()


_current: weakref.ref[Run] | None = None
"""The run that this process started last."""
_by_hand = False
"""True once the script itself has started a run."""
_automatic: weakref.ref[Run] | None = None
"""The run of zero-code recording."""
_runs = itertools.count(1).__next__
"""Numbers the runs of this process."""


def start_automatically() -> Run | DisabledRun:
    """Begin the run of zero-code recording, with the settings of the environment.

    A run that the script itself starts wins: after it, nothing is recorded automatically. A `start` that the
    script calls later ends the automatic run.
    """
    global _by_hand, _automatic
    if _by_hand:
        return DisabledRun()
    run = start()
    _by_hand = False
    _automatic = weakref.ref(run) if isinstance(run, Run) else None
    return run


def _end_previous() -> None:
    global _runs
    previous = _current() if _current is not None else None
    if previous is None:
        return
    automatic = _automatic is not None and _automatic() is previous
    if not previous.replaced():
        return
    if automatic:
        _log.warning("the script calls rankwatch.start itself: zero-code recording stands down")
        if previous.unused:
            previous.remove_box()
            _runs = itertools.count(1).__next__
    else:
        _log.warning("rankwatch.start was called again: run %r ends here", previous.identity.run)


def _start(
    writer: Writer,
    given: Given,
    names: Iterable[str],
    hooks: Callable[[Run, Writer], None],
    recorder: bool,
) -> Run:
    global _current
    counted = replace(given, number=_runs())
    try:
        run = Run(Identity(run=given.run or script_name()), writer, names, cuda_event_factory())
        publication = Publication(
            writer,
            lambda last, ask: _identify(counted, writer.directory, last=last, ask=ask),
            partial(_published, run, writer, recorder),
        )
        known = publication.begin()
    except BaseException:
        writer.discard()
        raise
    run.when_ending(publication.conclude)
    hooks(run, writer)
    if not known:
        publication.expect(wait=place_in_torch() is not None)
    _current = weakref.ref(run)
    return run


def _identify(given: Given, directory: Path, *, last: bool, ask: bool) -> Identity | None:
    identity = identify(given, os.environ, last=last, ask=ask)
    if identity is None:
        return None
    attempt = next_attempt(directory / own_run(directory, identity.run), identity.attempt)
    return replace(identity, attempt=attempt)


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


def _is_on(switch: str, env: Mapping[str, str]) -> bool:
    return env.get(switch, "1").lower() not in environment.OFF


def _target_steps(env: Mapping[str, str]) -> int | None:
    """The declared number of steps; None where there is none, and, with a warning, where it is no number."""
    text = env.get(environment.TARGET_STEPS, "")
    if not text or (text.isdecimal() and 0 < int(text) < 10**15):
        return int(text) if text else None
    _log.warning("%s is %.100r, expected a whole number: it is ignored", environment.TARGET_STEPS, text)
    return None


def _install(run: Run, what: str, action: Callable[[], None]) -> None:
    """Install a hook. One that fails does not affect the others."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - torch's private interfaces may do anything
        run._failures.note(what, error)


def _hook(run: Run, writer: Writer, *, collectives: bool, recorder: bool, gpu: str | None) -> None:
    """Install what must be there before the first process group, whatever the rank."""
    # before the next: the card is to show the end that it records
    _install(run, "prepare the card", lambda: print_at_exit(lambda: _directory_of_rank_0(writer), os.environ))
    _install(run, "watch for the end of the process", lambda: _watch_end(run, writer))
    _install(run, "record the rank's GPU", lambda: _record_gpu(run, writer, gpu))
    _install(run, "wait for requests to profile", lambda: _profile_on_slow(run, writer))
    if "torch" not in sys.modules:
        return
    _install(run, "stay out of compiled graphs", lambda: run.when_ended(keep_out_of_graphs(run.phase)))
    if collectives:
        _install(run, "record collectives", lambda: _record_collectives(run, writer))
    if recorder:
        _install(run, "prepare the flight recorder", lambda: _prepare_flight_recorder(run))


def _published(run: Run, writer: Writer, recorder: bool, identity: Identity, ending: bool) -> None:
    """Install what stands beside the box, once the box has its place."""
    run.identity = identity
    _install(run, "name the run in log lines", lambda: context.follow(identity, run._steps))
    if ending:
        return
    if os.environ.get(environment.LOG_LINES, "1").lower() not in environment.OFF:
        _install(run, "keep the newest lines", lambda: keep_lines(writer.path.with_suffix(lines.SUFFIX)))
    if identity.rank == 0:
        _install(run, "announce the run", lambda: announce(writer.path.parent, os.environ))
        _install(run, "look for experiment trackers", lambda: watch_trackers(run, writer, os.environ))
    _install(run, "write stacks on SIGTERM", lambda: _write_stacks(run, writer))
    _install(run, "write stacks at a crash", lambda: _write_crash(run, writer))
    error_file = writer.path.with_suffix(lifecycle.ERROR_FILE_SUFFIX)
    _install(run, "note torchrun's error file", lambda: lifecycle.note_error_file(error_file, os.environ))
    if recorder and "torch" in sys.modules:
        _install(run, "serve the flight recorder", lambda: _serve_flight_recorder(run, writer))


def _directory_of_rank_0(writer: Writer) -> Path | None:
    return writer.path.parent if writer.identity is not None and writer.identity.rank == 0 else None


def _watch_end(run: Run, writer: Writer) -> None:
    run.when_ended(lifecycle.on_exit(run.exited))
    lifecycle.on_fork(run.silence)
    run.when_ended(writer.unlock)


def _write_stacks(run: Run, writer: Writer) -> None:
    stacks = lifecycle.StacksOnSigterm(writer.path.with_suffix(lifecycle.TERMINATED_SUFFIX))
    lifecycle.on_fork(stacks.release)
    run.when_ended(stacks.close)


def _write_crash(run: Run, writer: Writer) -> None:
    stacks = lifecycle.StacksOnCrash(writer.path.with_suffix(lifecycle.CRASHED_SUFFIX))
    lifecycle.on_fork(stacks.release)
    run.when_ended(stacks.close)


def _record_gpu(run: Run, writer: Writer, gpu: str | None) -> None:
    if gpu is not None:
        writer.set_gpu(gpu)
    elif run.device is not None:
        run.after_steps(RankGpu(writer, sys.modules["torch"].cuda).resolve)
    if run.device is not None:
        memory = AllocatorMemory(writer, sys.modules["torch"].cuda)
        run.after_steps(memory.resolve)
        run.when_ended(memory.sample)  # out of memory may be why it ends


def _profile_on_slow(run: Run, writer: Writer) -> None:
    text = os.environ.get(environment.PROFILE_ON_SLOW, "")
    if text.lower() in environment.OFF or "torch" not in sys.modules:
        return
    from rankwatch.profiling import MOST_TRACES, SlowStepProfiler

    if not text.isdecimal() or not 1 <= int(text) <= MOST_TRACES:
        expected = f"expected 1 to {MOST_TRACES}"
        _log.warning("%s is %.60r, %s: no step is profiled", environment.PROFILE_ON_SLOW, text, expected)
        return
    others = os.environ.get(environment.PROFILE_REQUESTS_FROM, "").split(",")
    trusted = [os.geteuid(), 0, writer.directory.stat().st_uid, *map(int, filter(str.strip, others))]
    profiler = SlowStepProfiler(writer, run._steps, run._failures, count=int(text), trusted=trusted)
    run.after_steps(profiler.step_ended)
    run.when_ended(profiler.close)


def _record_collectives(run: Run, writer: Writer) -> None:
    import torch.distributed as dist

    if dist.is_available():
        from rankwatch.collectives import CollectiveHook

        arrive = run.device.arrive if run.device else None
        hook = CollectiveHook(writer, run._failures, arrive)
        lifecycle.on_fork(hook.forget)
        run.when_ended(hook.remove)


def _prepare_flight_recorder(run: Run) -> None:
    import torch.distributed as dist

    if dist.is_available():
        reserve_entries(os.environ, of_all_backends=records_all_backends())
        if run.device is not None:
            enable_nccl_timing(os.environ)


def _serve_flight_recorder(run: Run, writer: Writer) -> None:
    import torch.distributed as dist

    if dist.is_available():
        run.when_ended(FlightRecorderServer(writer.path.with_suffix(SOCKET_SUFFIX)).close)
