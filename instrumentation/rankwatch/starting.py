"""`rankwatch.start`: checks what it is given, creates the black box of the rank and begins its run."""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rankwatch import variables
from rankwatch.blackbox import layout
from rankwatch.blackbox.earlier_attempts import next_attempt
from rankwatch.blackbox.place import REMEDY, Room, distrust, open_directory, own_run, room_in
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import environment
from rankwatch.conventions.vocabulary import BASELINE, FLOPS_PER_TOKEN, PHASES
from rankwatch.disabled import DisabledRun
from rankwatch.errors import BlackBoxError, IdentityError, UsageError, shown, warn
from rankwatch.failures import error_text
from rankwatch.hooks import install_beside_box, install_hooks
from rankwatch.identification import Given, has_store, identify, place_in_torch
from rankwatch.identity import Identity, as_contact, as_run_class, as_traceparent
from rankwatch.launchers import is_first_here, nvrx_job_by, ranks_here, started_before_by
from rankwatch.processes import fill_standard_streams, is_helper, script_name
from rankwatch.publication import Publication
from rankwatch.rank_gpu import has_cuda, is_gpu_uuid
from rankwatch.run import Run
from rankwatch.scalars import as_amount
from rankwatch.sweep import sweep

if TYPE_CHECKING:
    from datetime import datetime


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
    contact: str | None = None,
    checkpoint_interval_seconds: float | None = None,
    deadline: float | str | datetime | None = None,
    flops_per_token: float | None = None,
    baseline_tokens_per_second: float | None = None,
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
    contact: channel or mail address of whoever is told of the run, such as "#my-team" or "me@example.com",
        where the settings of the alerts allow it. Default `$RANKWATCH_CONTACT`.
    checkpoint_interval_seconds: longest time between two checkpoints that the run intends; with it, an alert
        is raised for a run that never saves. Default `$RANKWATCH_CHECKPOINT_INTERVAL_SECONDS`.
    deadline: when the run is to be done, as Unix time or with its time zone; with `target_steps`, the agent
        shows how far ahead of this plan or behind it the run is. Default `$RANKWATCH_DEADLINE`.
    flops_per_token: FLOPs of the model for a token, forward and backward, such as 6 for each parameter; with
        tokens as work, rules show which share of their peak the GPUs compute (MFU).
        Default `$RANKWATCH_FLOPS_PER_TOKEN`.
    baseline_tokens_per_second: what one rank alone makes, for the efficiency of scaling.
        Default `$RANKWATCH_BASELINE_TOKENS_PER_SECOND`.
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
    try:
        names = _names(phases)
        _check(capacity, gpu, checkpoint_interval_seconds, contact)
        done_by = _deadline(deadline)
        stated = _stated(flops_per_token, baseline_tokens_per_second)
        given = Given(
            run=run,
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            host=host,
            coordinates=dict(coordinates or {}),
        )
        recorder = bool(flight_recorder) and variables.is_on(environment.FLIGHT_RECORDER, os.environ)
        collectives = bool(collectives) and variables.is_on(environment.COLLECTIVES, os.environ)
        disabled = variables.is_disabled(os.environ)
        if not disabled:
            given.check()
    except (UsageError, IdentityError) as error:  # the arguments are wrong, whatever the environment holds
        raise UsageError(str(error)) from None
    except Exception as error:
        raise UsageError(f"an argument of start cannot be used: {error_text(error)}") from error
    if disabled or is_helper():
        return DisabledRun()
    global _by_hand
    _by_hand = True
    hooks = partial(install_hooks, collectives=collectives, recorder=recorder, gpu=gpu)
    try:
        _end_previous()
        fill_standard_streams()
        base = Path(directory or os.environ.get(environment.DIRECTORY) or environment.DEFAULT_DIRECTORY)
        room = _prepare(base, capacity)
        writer = Writer(
            base,
            None,
            phases=names,
            target_steps=target_steps or variables.target_steps(os.environ),
            run_class=as_run_class(run_class or os.environ.get(environment.RUN_CLASS, "")),
            contact=contact or variables.contact(os.environ),
            checkpoint_interval_seconds=checkpoint_interval_seconds
            or variables.amount(environment.CHECKPOINT_INTERVAL, os.environ, "seconds"),
            traceparent=as_traceparent(os.environ.get(environment.TRACEPARENT, "")),
            deadline=done_by or variables.deadline(os.environ),
            started_before=started_before_by(os.environ),
            nvrx_job=nvrx_job_by(os.environ),
            capacity=room.capacity,
            copied=variables.boxes_are_copied(os.environ),
            plenty=room.plenty,
        )
        found = _start(writer, given, names, hooks, recorder)
        for name, amount in stated.items():
            found.stated.state(name, amount)
        return found
    except (IdentityError, BlackBoxError) as error:
        warn("rankwatch records nothing: %s", error)
    except Exception as error:  # noqa: BLE001 - no environment may end the training
        warn("rankwatch records nothing: %s: %s", type(error).__name__, error)
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


def run_of_script() -> Run | None:
    """Return the run that the script itself has started, while it goes on."""
    run = _current() if _by_hand and _current is not None else None
    return None if run is None or run._ended else run


def _end_previous() -> None:
    global _runs
    previous = _current() if _current is not None else None
    if previous is None:
        return
    automatic = _automatic is not None and _automatic() is previous
    if not previous.replaced():
        return
    if automatic:
        warn("the script calls rankwatch.start itself: zero-code recording stands down")
        if previous.unused:
            previous.remove_box()
            _runs = itertools.count(1).__next__
    else:
        warn("rankwatch.start was called again: run %r ends here", previous.identity.run)


def _start(
    writer: Writer,
    given: Given,
    names: Iterable[str],
    hooks: Callable[[Run, Writer], None],
    recorder: bool,
) -> Run:
    global _current
    counted = given._replace(number=_runs())
    try:
        run = Run(Identity(run=given.run or script_name()), writer, names, on_gpu=has_cuda())
        publication = Publication(
            writer,
            lambda last, ask: identify(counted, os.environ, last=last, ask=ask),
            partial(_publish, writer),
            partial(install_beside_box, run, writer, recorder),
        )
        known = publication.begin()
    except BaseException:
        writer.discard()
        raise
    run.when_ending(publication.conclude)
    hooks(run, writer)
    if not known:
        run._steps.before_first = lambda: publication.training_begins(alone=not has_store())
        publication.expect(wait=place_in_torch() is not None)
    _current = weakref.ref(run)
    return run


def _publish(writer: Writer, identity: Identity) -> Identity:
    with own_run(writer.boxes, identity.run) as run:
        attempt = next_attempt(run, identity.attempt)
        identity = identity._replace(run=run.path.name, attempt=attempt)
    return writer.publish(identity)


def _prepare(directory: Path, capacity: int) -> Room:
    """Look at the directory of the black boxes; the first rank of a node removes old ones, and says what is
    wrong. Raises BlackBoxError if there is no room."""
    try:
        with open_directory(directory) as boxes:
            first = is_first_here(os.environ)
            if first and (why := distrust(boxes)):
                warn("rankwatch records in %s, but %s, %s", directory, why, _TRUSTED)
            room = room_in(boxes, ranks_here(os.environ), capacity)
            if first and not room.plenty:
                warn(
                    "rankwatch keeps %d records of each rank, and neither log lines nor boxes of earlier "
                    "attempts: the file system of %s is small; to keep all, %s",
                    room.capacity, directory, REMEDY,
                )  # fmt: skip
            if first:
                sweep(boxes, most_bytes=room.most_bytes)
            return room
    except OSError as error:
        raise BlackBoxError(f"could not create black box in {directory}: {error.strerror}") from error


_TRUSTED = (
    "so other users could remove or replace black boxes; have root create it for all users with "
    "mode 1777, as `d /dev/shm/rankwatch 1777 root root` in /etc/tmpfiles.d does at each boot, or set "
    "RANKWATCH_DIR to a directory of your own"
)


def _names(phases: Iterable[str]) -> dict[str, None]:
    """Return all phases of the run: those that every run has, and its own."""
    if isinstance(phases, str):
        raise UsageError(f"phases is the text {shown(phases)}, expected names: phases=({shown(phases)},)")
    own = tuple(phases)
    most = layout.MAX_PHASES - 1 - len(PHASES)
    if len(own) > most:
        raise UsageError(f"phases holds {len(own)} phases of your own, at most {most} are possible")
    return dict.fromkeys((*PHASES, *own))


def _stated(flops_per_token: float | None, baseline: float | None) -> dict[str, float]:
    """Return the values of scalars that stay the same; 0 where there is none. Raises UsageError."""
    return {
        name: variables.amount(variable, os.environ) if given is None else as_amount(argument, given)
        for name, argument, given, variable in (
            (FLOPS_PER_TOKEN, "flops_per_token", flops_per_token, environment.FLOPS_PER_TOKEN),
            (BASELINE, "baseline_tokens_per_second", baseline, environment.BASELINE_TOKENS_PER_SECOND),
        )
    }


def _deadline(given: float | str | datetime | None) -> float:
    try:
        return 0.0 if given is None else variables.unix_time(given)
    except ValueError as error:
        raise UsageError(f"deadline is {shown(given)}, {error}") from None


def _check(capacity: int, gpu: str | None, interval: float | None, contact: str | None) -> None:
    if contact and not as_contact(contact):
        raise UsageError(f"contact is {shown(contact)}, expected #channel or name@example.com")
    if not 256 <= capacity <= layout.MAX_CAPACITY:
        raise UsageError(f"capacity is {shown(capacity)}, expected 256 to {layout.MAX_CAPACITY}")
    if gpu is not None and not is_gpu_uuid(gpu):
        raise UsageError(f"gpu is {shown(gpu)}, expected a UUID as `nvidia-smi -L` prints it: GPU-...")
    if interval is not None and not 0 < interval < math.inf:
        raise UsageError(f"checkpoint_interval_seconds is {shown(interval)}, expected more than 0")
