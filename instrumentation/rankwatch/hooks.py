"""What a run installs in its process: what ends with it, and what stands beside its black box."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwatch import lifecycle, variables
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.compiling import keep_out_of_graphs
from rankwatch.conventions import environment
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.errors import warn
from rankwatch.identity import Identity
from rankwatch.lifecycle import announce, print_at_exit
from rankwatch.logs import json_lines, lines
from rankwatch.logs.capture import keep_lines
from rankwatch.rank_gpu import AllocatorMemory, RankGpu
from rankwatch.run import Run
from rankwatch.trackers.watching import watch_trackers

if TYPE_CHECKING:
    from rankwatch.device.cuda import Gpu
    from rankwatch.device.timeline import DeviceTimeline

SAMPLE_SECONDS = 1.0
"""Shortest time between two samples. One reads a small file of the kernel's."""


def install_hooks(run: Run, writer: Writer, *, collectives: bool, recorder: bool, gpu: str | None) -> None:
    """Install what must be there before the first process group, whatever the rank."""
    # before the next: the card is to show the end that it records
    _install(run, "prepare the card", lambda: print_at_exit(lambda: _directory_of_rank_0(writer), os.environ))
    _install(run, "watch for the end of the process", lambda: _watch_end(run, writer))
    _install(run, "record the rank's GPU", lambda: _record_gpu(run, writer, gpu))
    _install(run, "watch for lack of CPUs", lambda: _watch_run_queue(run, writer))
    _install(run, "wait for requests to profile", lambda: _profile_on_slow(run, writer))
    if "torch" not in sys.modules:
        return
    _install(run, "stay out of compiled graphs", lambda: run.when_ended(keep_out_of_graphs(run.phase)))
    _install(run, "record fingerprints", lambda: _record_fingerprints(run, writer))
    if collectives:
        _install(run, "record collectives", lambda: _record_collectives(run, writer))
    elif run.device is not None:
        run.device.sees_no_waits()
        writer.set_capability(Capability.WAITS, Unseen.OFF)
    if recorder:
        _install(run, "prepare the flight recorder", lambda: _prepare_flight_recorder(run))


def install_beside_box(run: Run, writer: Writer, recorder: bool, identity: Identity, ending: bool) -> None:
    """Install what stands beside the box, once the box has its place."""
    run.identity = identity
    _install(run, "name the run in log lines", lambda: json_lines.follow(identity, run._steps))
    if ending:
        return
    run.checkpoint_log.note_paths()
    if writer.plenty and variables.is_on(environment.LOG_LINES, os.environ):
        beside = writer.beside(lines.SUFFIX)
        _install(run, "keep the newest lines", lambda: keep_lines(*beside, copied=writer.copied))
    if identity.rank == 0:
        _install(run, "announce the run", lambda: announce(writer.path.parent, os.environ))
        _install(run, "look for experiment trackers", lambda: watch_trackers(run, writer, os.environ))
    terminated, crashed = (
        writer.beside(each) for each in (lifecycle.TERMINATED_SUFFIX, lifecycle.CRASHED_SUFFIX)
    )
    _install(run, "write stacks on SIGTERM", lambda: _write(run, lifecycle.StacksOnSigterm(*terminated)))
    _install(run, "write stacks at a crash", lambda: _write(run, lifecycle.StacksOnCrash(*crashed)))
    folder, killed = writer.beside(lifecycle.KILLED_SUFFIX)
    _install(run, "forget how the process before ended", lambda: folder.remove(killed))
    error_file = writer.beside(lifecycle.ERROR_FILE_SUFFIX)
    _install(run, "note torchrun's error file", lambda: lifecycle.note_error_file(*error_file, os.environ))
    if recorder and "torch" in sys.modules:
        _install(run, "serve the flight recorder", lambda: _serve_flight_recorder(run, writer))


def _install(run: Run, what: str, action: Callable[[], object]) -> None:
    """Install a hook. One that fails does not affect the others."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - torch's private interfaces may do anything
        run._failures.note(what, error)


def _directory_of_rank_0(writer: Writer) -> Path | None:
    return writer.path.parent if writer.identity is not None and writer.identity.rank == 0 else None


def _watch_end(run: Run, writer: Writer) -> None:
    run.when_ended(lifecycle.on_exit(run.exited))
    lifecycle.on_fork(run.silence)
    run.when_ended(writer.unlock)


def _write(run: Run, stacks: lifecycle.StacksOnSigterm | lifecycle.StacksOnCrash) -> None:
    """Have the stacks written while the run goes on, in this process alone."""
    lifecycle.on_fork(stacks.release)
    run.when_ended(stacks.close)


def _watch_run_queue(run: Run, writer: Writer) -> None:
    try:
        wait = RunQueueWait(writer)
    except (OSError, ValueError, IndexError):
        return  # not every kernel measures it
    run.after_steps(wait.resolve)


def _record_gpu(run: Run, writer: Writer, gpu: str | None) -> None:
    timeline = run.device
    if timeline is None:
        if gpu is not None:
            writer.set_gpu(gpu)
        return
    torch = sys.modules["torch"]
    shown = _watch_gpu(run, writer, timeline, torch)
    lifecycle.on_fork(timeline.forget)
    run.after_steps(RankGpu(writer, torch.cuda, uuid=gpu, found=shown.use).resolve)
    memory = AllocatorMemory(writer, torch.cuda, device=lambda: shown.device)
    run.after_steps(memory.resolve)
    run.when_ended(memory.sample)  # out of memory may be why it ends
    run.after_steps(timeline.resolve)


def _watch_gpu(run: Run, writer: Writer, timeline: DeviceTimeline, torch: Any) -> Gpu:
    from rankwatch.device.cuda import Captures, Gpu

    def replays() -> None:
        timeline.spoil()
        writer.set_capability(Capability.WAITS, Unseen.CUDA_GRAPH)

    captures = Captures(writer, torch, replays)
    if captures.partly_visible:
        _sees_no_waits(run, Unseen.TOO_OLD)
    run.when_ended(captures.remove)
    run.when_ended(timeline.forget)
    run.gpu = Gpu(timeline, captures, torch)
    return run.gpu


def _profile_on_slow(run: Run, writer: Writer) -> None:
    if "torch" not in sys.modules or not (count := variables.profile_on_slow(os.environ)):
        return
    if not writer.plenty:
        warn("rankwatch profiles no step: the file system of %s is small", writer.directory)
        return
    from rankwatch.profiler import SlowStepProfiler

    others = os.environ.get(environment.PROFILE_REQUESTS_FROM, "").split(",")
    trusted = [os.geteuid(), 0, writer.boxes.owner, *map(int, filter(str.strip, others))]
    profiler = SlowStepProfiler(writer, run._steps, run._failures, count=count, trusted=trusted)
    run.after_steps(profiler.step_ended)
    run.when_ended(profiler.close)


def _record_fingerprints(run: Run, writer: Writer) -> None:
    from rankwatch.fingerprints.recorder import Fingerprints

    every = variables.fingerprint_steps(os.environ)
    run.fingerprints = Fingerprints(writer, lambda: run.identity, lambda: run.current_step, every)
    run.after_steps(run.fingerprints.resolve)


def _record_collectives(run: Run, writer: Writer) -> None:
    import torch.distributed as dist

    if dist.is_available():
        from rankwatch.collectives import CollectiveHook

        try:
            hook = CollectiveHook(writer, run._failures, run.gpu)
        except BaseException:
            _sees_no_waits(run, Unseen.HOOK_FAILED)
            raise
        if not hook.sees_waits:
            _sees_no_waits(run, Unseen.TOO_OLD)
        lifecycle.on_fork(hook.forget)
        run.when_ended(hook.remove)


def _sees_no_waits(run: Run, why: Unseen) -> None:
    if run.device is not None:
        run.device.sees_no_waits()
        run.cannot_see(Capability.WAITS, why)


def _prepare_flight_recorder(run: Run) -> None:
    import torch.distributed as dist

    if dist.is_available():
        from rankwatch import flight_recorder

        flight_recorder.reserve_entries(os.environ, of_all_backends=flight_recorder.records_all_backends())
        if run.device is not None:
            flight_recorder.enable_nccl_timing(os.environ)


def _serve_flight_recorder(run: Run, writer: Writer) -> None:
    import torch.distributed as dist

    if dist.is_available():
        from rankwatch.flight_recorder import FlightRecorderServer

        writer.expect_questions()
        run.when_ended(FlightRecorderServer(*writer.beside(layout.SOCKET_SUFFIX)).close)
        run.when_ended(writer.end_questions)


class RunQueueWait:
    """Samples the wait of the thread that makes this object.

    Raises OSError, ValueError or IndexError where the kernel does not measure it.

    procfs: where /proc is mounted.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        procfs: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._floats = writer.floats
        self._file = procfs / str(os.getpid()) / "task" / str(threading.get_native_id()) / "schedstat"
        self._clock = clock
        self._waited_before = self._waited()
        self._began = clock()
        self._next = self._began + SAMPLE_SECONDS

    def resolve(self) -> None:
        """Take a sample if the last one is old enough."""
        if self._clock() >= self._next:
            self.sample()

    def sample(self) -> None:
        """Take a sample; nothing once the thread has ended."""
        moment = self._clock()
        try:
            waited = self._waited() - self._waited_before
        except OSError:
            self._next = math.inf
            return
        self._next = moment + SAMPLE_SECONDS
        self._floats[Now.CPU_WAITED] = waited
        self._floats[Now.CPU_WATCHED] = moment - self._began

    def _waited(self) -> float:
        """Return the second number of the file: nanoseconds on a run queue."""
        return int(self._file.read_bytes().split()[1]) / 1e9
