"""Rank 0's side of trackers: writes down which there are, and tells them at the exit how the run went."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import environment
from rankwatch.conventions.vocabulary import TrackerKind
from rankwatch.errors import TrackerError
from rankwatch.trackers.finding import (
    SUFFIX,
    Found,
    Tracker,
    current_trackio_run,
    find,
    tensorboard_writers,
    write_note,
)
from rankwatch.untrusted.folders import Folder
from rankwatch.variables import is_on

if TYPE_CHECKING:
    from rankwatch.run import Run
    from rankwatch.trackers.telling import Facts


EXIT_SECONDS = 5.0
"""Longest time that all trackers together may delay the exit of the process."""
_MODULES = ("mlflow", "wandb", "trackio", "tensorboardX", "torch.utils.tensorboard")
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two looks: a tracker usually comes soon after the start."""


class TrackerWatch:
    """Looks for trackers in a thread of its own, and writes the note of this name when it finds some.

    facts: returns what trackers are told at the exit. failed: takes what went wrong, once each.
    """

    def __init__(
        self,
        folder: Folder,
        name: str,
        facts: Callable[[], Facts],
        failed: Callable[[str, BaseException], None],
        *,
        exit_seconds: float = EXIT_SECONDS,
    ) -> None:
        self._folder, self._name = folder, name
        self._facts = facts
        self._failed = failed
        self._exit_seconds = exit_seconds
        self._pid = os.getpid()
        self._noted: tuple[Tracker, ...] = ()
        self._trackio_run: Any = None
        self._steps = 0
        self._loaded: list[str] = []
        self._ending = threading.Event()
        self._exiting: list[Found] | None = None
        self._done = threading.Event()
        folder.remove(name)  # of an earlier attempt
        self._register()
        threading.Thread(target=self._look, name="rankwatch-trackers", daemon=True).start()

    def peek(self) -> None:
        """Call after each step, on the training thread. It looks after 1, 2, 4, 8, ... steps only.

        trackio's run is visible to that thread alone. Trackers close their runs at exit, and the handler that
        was registered last is called first: ours comes before theirs.
        """
        self._steps += 1
        if self._steps & (self._steps - 1):
            return
        loaded = [name for name in _MODULES if name in sys.modules]
        if loaded != self._loaded:
            self._loaded = loaded
            self._register()
        if "trackio.context_vars" in sys.modules:
            self._trackio_run = current_trackio_run(sys.modules)

    def _register(self) -> None:
        atexit.unregister(self._exit)
        atexit.register(self._exit)

    def stop(self) -> None:
        """Tell no tracker anything: another run has begun in this process."""
        atexit.unregister(self._exit)
        self._ending.set()

    def _look(self) -> None:
        pause = _FIRST_PAUSE
        while not self._ending.wait(pause):
            with suppress(Exception):  # code of others, and an odd directory: the training goes on
                self._note(find(sys.modules, os.environ, self._trackio_run))
            pause = min(2.0 * pause, _LONGEST_PAUSE)
        if self._exiting is not None:
            self._tell(self._exiting)
        self._done.set()

    def _note(self, found: list[Found]) -> None:
        trackers = tuple(each.tracker for each in found)
        if not trackers or trackers == self._noted:
            return  # a tracker that has finished stays in the note: the link to it is still good
        self._noted = trackers
        self._register()
        write_note(self._folder, self._name, trackers)

    def _exit(self) -> None:
        """Tell the trackers that are still there how the run went. At most `exit_seconds` are waited for."""
        if os.getpid() != self._pid:
            return  # a forked child is not the rank
        try:
            run = current_trackio_run(sys.modules)
            found = [*find(sys.modules, os.environ, run), *tensorboard_writers(sys.modules)]
            self._exiting = found
            self._note([each for each in found if each.tracker.kind is not TrackerKind.TENSORBOARD])
            self._ending.set()
            if found and not self._done.wait(self._exit_seconds):
                raise TrackerError(f"gave up after {self._exit_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - the process exits, with trackers told or not
            self._failed("tell the experiment trackers", error)

    def _tell(self, found: list[Found]) -> None:
        from rankwatch.trackers.telling import tell  # with an HTTP client, which no training needs before

        facts = self._facts()
        for each in found:
            try:
                tell(each, facts, os.environ, timeout_seconds=self._exit_seconds)
            except Exception as error:  # noqa: BLE001 - code of others
                self._failed(f"tell {each.tracker.kind.value}", error)


_watch: TrackerWatch | None = None
"""Of the run that this process started last."""


def watch_trackers(run: Run, writer: Writer, env: Mapping[str, str]) -> None:
    """Look for trackers from now on, unless that is turned off. Raises OSError."""
    global _watch
    if _watch is not None:
        _watch.stop()
        _watch = None
    if not is_on(environment.TRACKERS, env):
        return
    grafana = env.get(environment.DASHBOARD_URL, "")
    began = time.monotonic()

    def facts() -> Facts:
        return _facts(run, writer, grafana, time.monotonic() - began)

    _watch = TrackerWatch(*writer.beside(SUFFIX), facts, run._failures.note)
    run.after_steps(_watch.peek)


def _facts(run: Run, writer: Writer, grafana: str, seconds: float) -> Facts:
    from rankwatch.trackers.telling import Facts, run_tags, step_metrics

    name, completed, in_steps = run.identity.run, writer.integers[Now.STEPS_COMPLETED], run._steps.seconds
    if not completed or seconds <= 0.0:
        return Facts(run_tags(name, grafana, None), {}, -1)
    goodput = min(1.0, in_steps / seconds)
    metrics = step_metrics(goodput, completed, in_steps, seconds)
    return Facts(run_tags(name, grafana, goodput), metrics, run._steps.current)
