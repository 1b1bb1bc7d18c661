"""Writes a black box. A write takes no lock, makes no system call and does not allocate growing memory."""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rankwatch.blackbox import capturing, layout
from rankwatch.blackbox.copied import CopiedFile
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.place import create_hidden, is_shared_by_tenants, open_directory, own_run, take
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.errors import BlackBoxError, warn
from rankwatch.identity import Identity
from rankwatch.processes import own_start
from rankwatch.untrusted.folders import Folder

_pack_head = layout.HEAD.pack_into
_pack_collective = layout.COLLECTIVE.pack_into
_PAYLOAD = layout.PAYLOAD_OFFSET
_PART_BYTES = 4096
"""Of a box that is copied: as many records as readers do not trust in front of the newest."""
_CAPABILITIES = tuple(Capability)
_REASONS = tuple(Unseen)


class Writer:
    """The black box of this process.

    The file is created under a hidden name, and its pages are reserved, so that a full file system is an
    error now and not a SIGBUS later. Then it is locked. The lock is a POSIX record lock: the kernel drops it
    when the process dies, a forked child does not inherit it, and a reader in any PID namespace can query it.
    The file gets its final name by `publish`, at once if the identity is given.

    copied: the file is not mapped, but memory is copied into it (see `copied`); by default that is so where
    other tenants share the directory.
    plenty: False where the file system is small: the box that this one replaces is not kept.

    Raises BlackBoxError if the file cannot be created, or if a living process has the place of the rank.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity | None,
        *,
        phases: Iterable[str],
        target_steps: int | None = None,
        run_class: str = "",
        contact: str = "",
        checkpoint_interval_seconds: float = 0.0,
        traceparent: str = "",
        deadline: float = 0.0,
        started_before: tuple[int, int] = (0, 0),
        nvrx_job: str = "",
        capacity: int = layout.DEFAULT_CAPACITY,
        copied: bool | None = None,
        plenty: bool = True,
    ) -> None:
        self.directory = directory
        self.plenty = plenty
        self.identity: Identity | None = None
        """None before the box is published."""
        self._size = layout.RING_OFFSET + capacity * layout.RECORD_SIZE
        self._pid = os.getpid()
        self._started = (time.monotonic(), time.time())
        self._capacity, self._target_steps = capacity, target_steps
        self._declared = (run_class, checkpoint_interval_seconds)
        self._contact = contact
        self._traceparent = traceparent
        self._nvrx_job = nvrx_job
        self._plan = (deadline, own_start() or 0.0, *started_before)
        try:
            self.boxes = open_directory(directory)
            self.copied = is_shared_by_tenants(self.boxes) if copied is None else copied
            self._file, hidden, self._map, self._copies = _create(self.boxes, self._size, self.copied)
        except OSError as error:
            raise BlackBoxError(f"could not create black box in {directory}: {error.strerror}") from error
        self._questions = -1
        """The file whose lock keeps questions and captures apart, once there can be questions."""
        self.folder, self._name = self.boxes, hidden
        self.path = directory / hidden
        self._ids: dict[str, int] = {}
        self._next_name = itertools.count(1).__next__
        self._said_full = False
        self.attach(self._map)
        offsets = range(layout.RING_OFFSET, self._size, layout.RECORD_SIZE)
        self.next_slot = enumerate(itertools.cycle(offsets)).__next__
        """Returns the next (sequence number, offset). The call is atomic, so threads need no lock."""
        for count, name in enumerate(phases, start=1):
            self.name_number(name)
            self.integers[Now.PHASES] = count
        if identity is not None:
            try:
                self.publish(identity)
            except BaseException:
                self.discard()
                raise

    def publish(self, identity: Identity) -> Identity:
        """Give the box its place and its readers the identity of the rank.

        Returns the identity, with another name of the run if the directory of its name is another user's.
        """
        try:
            run = own_run(self.boxes, identity.run)
            identity = identity._replace(run=run.path.name)
            header = self._header(identity)
            self._map[: len(header)] = header
            if self._copies is not None:
                self._copies.copy()
            self.folder = take(self.boxes, self._name, run, identity.rank, keeps_old=self.plenty)
        except OSError as error:
            raise BlackBoxError(f"could not create black box of run {identity.run!r}: {error}") from error
        self._name = f"{identity.rank}{layout.SUFFIX}"
        self.path, self.identity = self.directory / identity.run / self._name, identity
        return identity

    def beside(self, suffix: str) -> tuple[Folder, str]:
        """Return the folder of the run, and the name that a file of the rank with this suffix has in it."""
        return self.folder, f"{self.path.stem}{suffix}"

    def discard(self) -> None:
        """Remove the box. Writing stays possible."""
        self.folder.remove(self._name)
        self.unlock()

    def attach(self, target: mmap.mmap) -> None:
        """Write into `target` from now on."""
        self.target = target
        words = memoryview(target)[layout.NOW_OFFSET : layout.NAMES_OFFSET]
        self.integers = words.cast("q")
        self.floats = words.cast("d")

    def detach(self) -> None:
        """Write into private memory from now on. A forked child must call this."""
        self._copies = None
        self.attach(mmap.mmap(-1, self._size))

    def name_number(self, name: str) -> int:
        """Return the number of a name. Its first use enters it into the table; 0 once the table is full."""
        number = self._ids.get(name)
        if number is None:
            number = self.new_name(name)
            if number:
                self._ids[name] = number
        return number

    def new_name(self, name: str) -> int:
        """Enter a name even if the table holds the same text; return its number, 0 once the table is full."""
        raw = name.encode("utf-8", "replace")
        number = self._next_name()  # after `encode`: a value that is not text must not use up the table
        if number >= layout.NAME_COUNT:
            self.integers[Now.NAMES_REFUSED] += 1
            if not self._said_full:
                self._said_full = True
                warn(
                    "rankwatch has no place for the name %.100r: a black box holds %d names, "
                    "and values under further names are dropped (said once)",
                    name,
                    layout.NAME_COUNT - 1,
                )
            return 0
        self._put_name(number, raw)
        self.integers[Now.NAMES] = number
        return number

    def fill_name(self, number: int, name: str) -> None:
        """Put a text under a number that was reserved by `new_name("")`. It is filled once."""
        self._put_name(number, name.encode("utf-8", "replace"))

    def _put_name(self, number: int, raw: bytes) -> None:
        raw = raw[: layout.NAME_SIZE - 1]
        at = layout.NAMES_OFFSET + number * layout.NAME_SIZE
        self.target[at + 1 : at + 1 + len(raw)] = raw
        self.target[at] = len(raw)

    def set_gpu(self, uuid: str) -> None:
        """Record the UUID of the rank's GPU. It stays unknown if the table of names is full."""
        self.integers[Now.GPU] = self.name_number(uuid)

    def set_capability(self, capability: Capability, unseen: Unseen | None) -> None:
        """Record that a capability is visible (None), or why it is not."""
        word = layout.SEEN if unseen is None else layout.UNSEEN + _REASONS.index(unseen)
        self.integers[Now.CAPABILITIES + _CAPABILITIES.index(capability)] = word

    def append(
        self,
        kind: RecordKind,
        name: int,
        start: float,
        end: float,
        payload: struct.Struct,
        *values: float,
    ) -> None:
        """Write one record. Times are seconds on CLOCK_MONOTONIC."""
        number, at = self.next_slot()
        try:
            payload.pack_into(self.target, at + layout.PAYLOAD_OFFSET, *values)
        except BaseException:
            # The slot is reserved. If it stayed empty, every reader would wait for it.
            _pack_head(self.target, at, 0, 0.0, 0.0, number)
            raise
        _pack_head(self.target, at, (kind << layout.NAME_BITS) | name, start, end, number)

    def pair(
        self, tag: int, start: float, end: float, pack: Callable[..., None], first: float, second: float
    ) -> None:
        """Write one record with a payload of two numbers. Faster than `append`, for records of each step.

        tag: see `layout.tag`. pack: `pack_into` of the payload.
        """
        number, at = self.next_slot()
        target = self.target
        try:
            pack(target, at + _PAYLOAD, first, second)
        except BaseException:
            _pack_head(target, at, 0, 0.0, 0.0, number)  # as above
            raise
        _pack_head(target, at, tag, start, end, number)

    def collective(
        self, tag: int, start: float, end: float, size: int, count: int, group: int, flags: int, waited: float
    ) -> None:
        """Write the record of a collective. The last five arguments are the fields of `layout.COLLECTIVE`."""
        number, at = self.next_slot()
        target = self.target
        try:
            _pack_collective(target, at + _PAYLOAD, size, count, group, flags, waited)
        except BaseException:
            _pack_head(target, at, 0, 0.0, 0.0, number)  # as above
            raise
        _pack_head(target, at, tag, start, end, number)

    def expect_questions(self) -> None:
        """Prepare for questions for the flight recorder of this rank, which is served afterwards, beside its
        published box. Raises OSError."""
        self._questions = capturing.create(*self.beside(capturing.SUFFIX))

    def end_questions(self) -> None:
        """Remove what `expect_questions` has made, once the recorder is served no more. Raises OSError."""
        folder, name = self.beside(capturing.SUFFIX)
        folder.remove(name)

    def wait_for_questions(self) -> bool:
        """Wait until nobody asks for the flight recorder of this rank, which has announced a capture. Returns
        False if somebody does so for longer than an answer takes."""
        if self._copies is not None:
            with contextlib.suppress(OSError):
                self._copies.copy()  # the announcement must be there before the question
        return self._questions < 0 or capturing.wait_for_answer(self._questions)

    def unlock(self) -> None:
        """Close the descriptor, which releases the lock. Writing stays possible."""
        copies, self._copies = self._copies, None
        if copies is not None:
            copies.close()
        (file, questions), self._file, self._questions = (self._file, self._questions), -1, -1
        for each in (file, questions):
            if each >= 0:
                os.close(each)

    def _header(self, identity: Identity) -> bytes:
        fixed = layout.FIXED.pack(
            layout.MAGIC,
            layout.VERSION,
            layout.HEADER_SIZE,
            layout.RECORD_SIZE,
            layout.NAME_COUNT,
            self._capacity,
            layout.NOW_OFFSET,
            layout.NAMES_OFFSET,
            layout.RING_OFFSET,
            self._size,
            identity.rank,
            identity.world_size,
            identity.local_rank,
            self._pid,
            *self._started,
            math.nan if self._target_steps is None else float(self._target_steps),
            identity.run.encode(),
            identity.host.encode("utf-8", "replace")[:64],
            len(identity.coordinates),
        )
        coordinates = b"".join(
            layout.COORDINATE.pack(name.encode()[:16], index, size)
            for name, (index, size) in list(identity.coordinates.items())[: layout.MAX_COORDINATES]
        )
        run_class, interval = self._declared
        declared = layout.DECLARED.pack(
            run_class.encode(), interval, identity.short_name.encode("utf-8", "replace")[:64]
        )
        started_by = layout.STARTED_BY.pack(
            identity.attempt, self._traceparent.encode(), identity.most_attempts
        )
        head = (fixed + coordinates).ljust(layout.DECLARED_OFFSET, b"\0") + declared
        head = head.ljust(layout.STARTED_BY_OFFSET, b"\0") + started_by
        head = head.ljust(layout.PLAN_OFFSET, b"\0") + layout.PLAN.pack(*self._plan)
        head = head.ljust(layout.LAUNCHER_OFFSET, b"\0") + layout.LAUNCHER.pack(self._nvrx_job.encode())
        head = head.ljust(layout.CONTACT_OFFSET, b"\0") + layout.CONTACT.pack(self._contact.encode())
        lag = layout.LAG_SECONDS if self.copied else 0.0
        return head.ljust(layout.LAG_OFFSET, b"\0") + layout.LAG.pack(lag)


def _create(boxes: Folder, size: int, copied: bool) -> tuple[int, str, mmap.mmap, CopiedFile | None]:
    file, name = create_hidden(boxes)
    try:
        os.posix_fallocate(file, 0, size)
        copies = None
        if copied:
            copies = CopiedFile(file, size, part_bytes=_PART_BYTES, ring_offset=layout.RING_OFFSET)
        target = mmap.mmap(file, size) if copies is None else copies.memory
        # 0 is a valid sequence number, so an empty slot 0 must hold another one.
        layout.HEAD.pack_into(target, layout.RING_OFFSET, 0, 0.0, 0.0, 2**64 - 1)
    except BaseException:
        boxes.remove(name)
        os.close(file)
        raise
    return file, name, target, copies
