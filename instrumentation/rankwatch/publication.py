"""The moment at which a black box gets its place: as soon as its rank and the name of its run are known.

Until then a thread looks. It also asks torch's store, so that the training thread does nothing on the
network. Where no store has to be asked, the box has its place before the first step: the process may end at
any moment after it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import warn
from rankwatch.identity import Identity

_PAUSE_SECONDS = 0.05
_LATER_PAUSE_SECONDS = 0.25
_SOON_SECONDS = 10.0
_START_SECONDS = 2.0
"""Longest time that `start` waits for the ranks of an initialised job to agree on a name."""
_END_SECONDS = 2.0
"""The same at the end of a run that is shorter than that."""

Identify = Callable[[bool, bool], Identity | None]
"""Called with `last` and `ask`, as `rankwatch.identification.identify`."""


class Publication:
    """The publication of one box.

    publish: gives the box its place, and returns the identity that it has there. It is called once, and may
        look at the boxes beside it: as soon as its own is among them, opening and closing it would drop its
        lock.
    published: called once with the identity, and True if the run ends at this moment.
    """

    def __init__(
        self,
        writer: Writer,
        identify: Identify,
        publish: Callable[[Identity], Identity],
        published: Callable[[Identity, bool], None],
    ) -> None:
        self._writer = writer
        self._identify = identify
        self._publish = publish
        self._published = published
        self._decided = threading.Event()
        self._deciding = threading.Lock()
        self._ending = False
        self._looking: threading.Thread | None = None

    def begin(self) -> bool:
        """Publish the box if its identity is known; True if it is. Raises RankwatchError."""
        return self._attempt(last=False, ask=False)

    def expect(self, *, wait: bool) -> None:
        """Publish the box as soon as its identity is known.

        wait: the ranks can agree on a name at once; give them a moment.
        """
        self._looking = threading.Thread(target=self._look, name="rankwatch-start", daemon=True)
        self._looking.start()
        if wait:
            self._decided.wait(_START_SECONDS)

    def training_begins(self, *, alone: bool) -> None:
        """Publish the box if that needs no network. Waits for nobody.

        alone: no store knows more about this process than is known by now.
        """
        if not self._decided.is_set():
            self._guarded(alone, False, wait=False)

    def conclude(self, *, discard: bool) -> None:
        """Decide by what is known now, at the end of the run.

        discard: the process did nothing that a rank does. If it is not known to be one, its box is removed.
        """
        if self._decided.is_set():
            return
        self._ending = True
        if discard:
            with self._deciding:
                self._discard()
        else:
            # A thread, because the store may not answer any more. While the interpreter exits it may be too
            # late for one.
            with contextlib.suppress(RuntimeError):
                last = threading.Thread(target=self._guarded, args=(True, True), daemon=True)
                last.start()
                last.join(_END_SECONDS)
            self._guarded(True, False)
        if self._looking is not None:
            self._looking.join(_END_SECONDS)

    def _look(self) -> None:
        began = time.monotonic()
        pause = 0.0
        while not self._decided.wait(pause) and not self._guarded(self._in_training(), True):
            pause = _PAUSE_SECONDS if time.monotonic() < began + _SOON_SECONDS else _LATER_PAUSE_SECONDS

    def _in_training(self) -> bool:
        """Return True once the first step has begun: by then every rank of a job is in its process group."""
        return bool(self._writer.floats[Now.STEP_BEGAN] or self._writer.integers[Now.STEPS_COMPLETED])

    def _guarded(self, last: bool, ask: bool, *, wait: bool = True) -> bool:
        try:
            return self._attempt(last=last, ask=ask, wait=wait)
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the training
            with self._deciding:
                if not self._decided.is_set():
                    warn("rankwatch records nothing: %s", error)
                    self._discard()
            return True

    def _attempt(self, *, last: bool, ask: bool, wait: bool = True) -> bool:
        if self._decided.is_set():
            return True
        identity = self._identify(last, ask)
        if identity is None:
            return False
        if not self._deciding.acquire(blocking=wait):
            return True  # another thread decides at this moment
        try:
            if not self._decided.is_set():
                found = self._publish(identity)
                if found.run != identity.run:
                    warn(
                        "rankwatch records run %r as %r: in %s, the directory of that name is another user's",
                        identity.run,
                        found.run,
                        self._writer.directory,
                    )
                self._published(found, self._ending)
                self._decided.set()
        finally:
            self._deciding.release()
        return True

    def _discard(self) -> None:
        if not self._decided.is_set():
            self._decided.set()
            self._writer.discard()
