"""Files at paths that a user chose: anywhere, also on a file server that is gone, or a device.

They are opened by a child with the rights of that user and a deadline, and never by a process that serves
others. The child prints each file as it has read it, so that one that never answers costs itself alone.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rankwatch.untrusted.children import Limits, Owner, confined, memory_file
from rankwatch.untrusted.folders import open_path

SECONDS = 5.0
"""A file server that answers at all does so in less."""
_MEMORY_BYTES = 512 << 20
_MOST_BYTES = 4 << 20
_MOST_AT_ONCE = 64
"""Files of one child."""
_ENOUGH_BYTES = 6 << 20
"""A child that has printed as many ends; the next one reads on."""
_MOST_OUTPUT_BYTES = 2 * _ENOUGH_BYTES
"""Base64 takes a third more than the content."""
_MOST_ANSWER_BYTES = 16 << 20
"""Bytes that wait to be fetched."""
_BYTES_OF_ANSWER = 256
"""Of an answer without content, besides its path."""
_MOST_WAITING = 2048
"""Questions: two for each box that an agent opens, and as many again."""
_FORGOTTEN_SECONDS = 60.0
"""Then nobody asks for these answers any more."""
_REAP_SECONDS = 0.1
_MOST_STUCK = 2
"""Children of one user that wait in the kernel; while there are as many, nothing more is read for them."""


class Wanted(NamedTuple):
    """A file to read."""

    path: str
    most_bytes: int
    """At most 4 MiB. With 0 it is only asked whether there is anything at the path."""
    from_end: bool = False
    """The end of the file is wanted, not its beginning."""


class Found(NamedTuple):
    """What was read of a file."""

    content: bytes
    changed: float
    """Unix time of its last change."""


Answer = Found | None
"""None for a file that is not there, or is no regular file of the user."""
UNANSWERED = Found(b"", math.nan)
"""For a file that did not answer in time."""


def read(wanted: Wanted, owner: int) -> Answer:
    """Read a file that must be a regular one of this user, here. It may wait for a file server for ever."""
    try:
        if not wanted.most_bytes:
            return Found(b"", os.lstat(wanted.path).st_mtime)
        file = open_path(wanted.path, owner=owner)
    except (OSError, ValueError):  # ValueError: a zero byte
        return None
    try:
        status = os.fstat(file)
        most = min(wanted.most_bytes, _MOST_BYTES)
        at = max(0, status.st_size - most) if wanted.from_end else 0
        return Found(os.pread(file, most, at), status.st_mtime)
    except OSError:
        return None
    finally:
        os.close(file)


class PathReader:
    """Reads files for one user by one child at a time. No method waits."""

    def __init__(
        self, owner: Owner, *, seconds: float = SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.given_up = 0
        """Files that did not answer in time, or for which no process could be started."""
        self._owner = owner
        self._seconds = seconds
        self._monotonic = monotonic
        self._last_question = monotonic()
        self._waiting: dict[Wanted, None] = {}
        self._answers: dict[Wanted, Answer] = {}
        self._child: _Child | None = None
        self._stuck: list[_Child] = []
        """Children that wait in the kernel, where no signal reaches them."""

    def find(self, wanted: Sequence[Wanted]) -> list[Answer] | None:
        """Return the answers, then forgotten here; None while one of them is not known: ask again."""
        self._last_question = self._monotonic()
        if all(each in self._answers for each in wanted):
            return [self._answers.pop(each) for each in wanted]
        for each in wanted:
            if each not in self._answers and len(self._waiting) < _MOST_WAITING:
                self._waiting.setdefault(each)
        return None

    def advance(self) -> None:
        """Take what the child has read, end one that is late, and start the next."""
        self._stuck = [each for each in self._stuck if each.alive()]
        if self._monotonic() > self._last_question + _FORGOTTEN_SECONDS:
            self._waiting.clear()
            self._answers.clear()
        if self._child is not None:
            self._take(self._child)
        if self._child is None and self._waiting:
            asked = list(self._waiting)[:_MOST_AT_ONCE]
            if len(self._stuck) >= _MOST_STUCK:
                self._note(asked, [])
                return
            try:
                self._child = _Child(asked, self._owner, self._seconds, self._monotonic())
            except OSError:  # no process or descriptor is to be had
                self.given_up += len(asked)
                self._note(asked, [])

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.end()

    @property
    def idle(self) -> bool:
        """Nothing is asked for, and no child is left."""
        return self._child is None and not (self._waiting or self._answers or self._stuck)

    def _take(self, child: _Child) -> None:
        if child.alive():
            if self._monotonic() < child.began + self._seconds:
                return
            self.given_up += 1
        self._child = None
        answers = child.end()
        # The first without an answer is what held the child up. Those behind it get another child.
        self._note(child.asked[: len(answers) + (not child.succeeded)], answers)
        if child.alive():
            self._stuck.append(child)

    def _note(self, asked: Sequence[Wanted], answers: Sequence[Answer]) -> None:
        """Note the answers to the first of these files, and that the others did not answer."""
        for at, wanted in enumerate(asked):
            self._waiting.pop(wanted, None)
            self._answers[wanted] = answers[at] if at < len(answers) else UNANSWERED
        size = sum(map(_size, self._answers.items()))
        while size > _MOST_ANSWER_BYTES:  # nobody asks for it any more, or not soon
            oldest = next(iter(self._answers))
            size -= _size((oldest, self._answers.pop(oldest)))


def _size(answered: tuple[Wanted, Answer]) -> int:
    wanted, answer = answered
    return _BYTES_OF_ANSWER + len(wanted.path) + (len(answer.content) if answer else 0)


class _Child:
    def __init__(self, asked: Sequence[Wanted], owner: Owner, seconds: float, began: float) -> None:
        """Start it. Raises OSError."""
        self.asked = asked
        self.began = began
        limits = Limits(seconds, math.ceil(seconds), _MEMORY_BYTES, _MOST_OUTPUT_BYTES, background=False)
        self._output = memory_file()
        try:
            with memory_file() as questions:
                questions.write(json.dumps(asked).encode())
                questions.seek(0)
                self._process = subprocess.Popen(
                    confined(__name__, str(owner.uid), limits=limits, owner=owner),
                    stdin=questions,
                    stdout=self._output,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            self._output.close()
            raise

    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def succeeded(self) -> bool:
        """It ended by itself."""
        return self._process.returncode == 0

    def end(self) -> list[Answer]:
        """End it, and what it has read. A child that this process has no right to end ends itself."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_SECONDS)
        with self._output:
            self._output.seek(0)
            return list(_parse(self._output.read(_MOST_OUTPUT_BYTES)))


def _parse(output: bytes) -> Iterator[Answer]:
    for line in output.splitlines():
        try:
            found = json.loads(line)
            yield found and Found(base64.b64decode(found[0]), float(found[1]))
        except (ValueError, TypeError, LookupError, RecursionError):
            return  # the last line of a child that was ended


def main(as_owner: bool) -> None:
    """Answer for each file on standard input: JSON lines, in their order."""
    owner, printed = int(sys.argv[1]), 0
    for each in json.load(sys.stdin):
        answer = read(Wanted(*each), owner)
        line = None if answer is None else (base64.b64encode(answer.content).decode(), answer.changed)
        print(text := json.dumps(line), flush=True)
        printed += len(text)
        if printed > _ENOUGH_BYTES:
            return
