"""Reads a black box while it is written.

The file is untrusted. Whatever it holds, a reader raises BlackBoxError or counts what it skips. It never
follows a link, never reads beyond its own bounds, and never maps the file, because truncating a mapped file
would kill the reader by SIGBUS.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.records import (
    EMPTY,
    END_OF_TIME,
    GUARD_RECORDS,
    SEQUENCE_OFFSET,
    AllocatorNow,
    Columns,
    GroupNow,
    NowBlock,
    columns_of,
    count_in_order,
    parse_header,
    sequence_numbers,
)
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.errors import BlackBoxError
from rankwatch.untrusted.folders import Folder, NotRegularError, look, open_regular
from rankwatch.untrusted.peers import lock_holder

_CHUNK_RECORDS = 256
_LOOK_AHEAD = 8
"""Slots behind an unwritten slot that are checked. If one is written, the writer has gone on."""
_HOLE_POLLS = 3
"""Polls during which a reader waits for a slot that was reserved and is not yet filled."""
_MOST_POLLS = 256
"""Most polls of one `read_to_end`. Each hole takes several."""
_MOST_ROUNDS = 2
"""Most rounds of the ring in one `read_to_end`, because a writer may be faster than its reader."""
_OVERTAKEN_SLOTS = 4
"""Slots that are checked for how far the writer is. Threads may have stalled in all but one of them."""
_CAPABILITIES = tuple(Capability)
_REASONS: tuple[Unseen | None, ...] = (None, *Unseen)


class Reader:
    """An open black box.

    follow_folder: its folder may be a link; whoever names it has put it there.
    folder: the folder, where it is open already.

    Raises BlackBoxError with a `reason` if this version cannot read the file as a black box.
    """

    def __init__(self, path: Path, *, follow_folder: bool = True, folder: Folder | None = None) -> None:
        self.path = path
        self._follow_folder = follow_folder
        self._file = open_box(path, follow_folder=follow_folder, folder=folder)
        try:
            status = os.fstat(self._file)
            self.inode = status.st_ino
            self.owner = status.st_uid
            """User id of the file's owner, whom the kernel vouches for; the header only claims."""
            self.changed_wall = status.st_ctime
            """Unix time of the last change of the file, other than through memory."""
            self.header = parse_header(path, os.pread(self._file, layout.HEADER_SIZE, 0), status.st_size)
        except BaseException:
            os.close(self._file)
            raise
        self.missed = 0
        """Records that were invalid, or were overwritten or torn before they were read."""
        self._next = 0
        self.at_end = False
        """True if the last poll reached the newest record."""
        self.writer_pid: int | None = None
        """The process that held the lock at the last look, in the reader's PID namespace; None where it is
        unknown there, or the lock is free."""
        self._hole = (-1, 0)
        self._names: dict[int, str] = {}

    def close(self) -> None:
        """Close the file. The reader cannot be used any more."""
        os.close(self._file)

    def writer_alive(self) -> bool:
        """Return True while the process that wrote the box holds its lock."""
        holder = lock_holder(self._file)
        self.writer_pid = holder or None
        return holder is not None

    def gone(self) -> bool:
        """Return True if nothing is at the path now, or nothing that can be seen."""
        return self._inode_there() is None

    def replaced(self) -> bool:
        """Return True if another file is at the path now."""
        return self._inode_there() not in (None, self.inode)

    def _inode_there(self) -> int | None:
        try:
            return look(self.path, follow_folder=self._follow_folder).st_ino
        except OSError:
            return None

    def now(self) -> NowBlock:
        """Read the now block."""
        raw = self._pread(layout.NOW_WORDS * 8, layout.NOW_OFFSET)
        view = memoryview(raw)
        integers, floats = view.cast("q"), view.cast("d")
        began = floats[Now.PHASE_BEGAN : Now.PHASE_BEGAN + layout.MAX_PHASES].tolist()
        return NowBlock(
            step=integers[Now.STEP],
            step_began=_finite(floats[Now.STEP_BEGAN]),
            step_ended=_finite(floats[Now.STEP_ENDED]),
            steps_completed=max(0, integers[Now.STEPS_COMPLETED]),
            errors=max(0, integers[Now.ERRORS]),
            loss=floats[Now.LOSS],
            checkpoint_step=integers[Now.CHECKPOINT_STEP],
            checkpoint_ended=_finite(floats[Now.CHECKPOINT_ENDED]),
            phases_began={
                number: began[number]
                for number in compress(range(layout.MAX_PHASES), began)  # most phases have never begun
                if number and 0.0 < began[number] < END_OF_TIME
            },
            gpu=self._printable_name(integers[Now.GPU]),
            allocator=_allocator(integers, floats),
            ended_by=self._printable_name(integers[Now.ENDED_BY]),
            target_steps=max(0, integers[Now.TARGET_STEPS]),
            device_marks_dropped=max(0, integers[Now.DEVICE_MARKS_DROPPED]),
            names_refused=max(0, integers[Now.NAMES_REFUSED]),
            capabilities=_capabilities(integers),
            cpu_wait_share=_cpu_wait_share(floats),
            groups=tuple(self._groups(integers, floats)),
        )

    def _groups(self, integers: memoryview[int], floats: memoryview[float]) -> Iterator[GroupNow]:
        for group in range(max(0, min(integers[Now.GROUPS], layout.MAX_GROUPS))):
            number = integers[Now.GROUP_NAME + group]
            name = self.name(number)
            if name:
                yield GroupNow(
                    number=number,
                    name=name,
                    members=self._printable_name(integers[Now.GROUP_MEMBERS + group]),
                    size=max(0, integers[Now.GROUP_SIZE + group]),
                    enqueued=max(0, integers[Now.GROUP_ENQUEUED + group]),
                    oldest=_finite(floats[Now.GROUP_OLDEST + group]),
                    operation=self.name(integers[Now.GROUP_OPERATION + group]),
                )

    def name(self, number: int) -> str:
        """Return the name with this number; empty for 0 and for unused numbers."""
        known = self._names.get(number)
        if known is not None:
            return known
        if not 0 < number < layout.NAME_COUNT:
            return ""
        raw = self._pread(layout.NAME_SIZE, layout.NAMES_OFFSET + number * layout.NAME_SIZE)
        text = raw[1 : 1 + min(raw[0], layout.NAME_SIZE - 1)].decode("utf-8", "replace")
        if text:
            self._names[number] = text
        return text

    def _printable_name(self, number: int) -> str:
        name = self.name(number)
        return name if name.isascii() and name.isprintable() else ""

    def poll(self, limit: int = 1 << 16) -> Columns:
        """Return the records written since the last poll, in order. May exceed `limit` by one chunk."""
        self.at_end = False
        first = self._next
        chunks = self._read_chunks(limit)
        if not chunks and self._next > first:
            # What was overwritten is skipped. By the next poll a fast writer would be too far again.
            first = self._next
            chunks = self._read_chunks(limit)
        if not chunks:
            return EMPTY
        raw = b"".join(chunks)
        count = len(raw) // layout.RECORD_SIZE
        limit_of_trust = first + self.header.capacity - GUARD_RECORDS
        if any(self._reached(limit_of_trust + ahead) for ahead in range(_OVERTAKEN_SLOTS)):
            # The writer may have overwritten the first of these records while they were read.
            raw = raw[max(0, self._oldest_safe(GUARD_RECORDS) - first) * layout.RECORD_SIZE :]
            if not raw:
                self.missed += count
                self._skip_to_head()
                return EMPTY
        columns = columns_of(raw)
        self.missed += count - len(columns.tags)
        return columns

    def read_to_end(self, most: int | None = None) -> Iterator[Columns]:
        """Yield the records since the last poll up to the newest, for a box that is read only once.

        A single poll may stop earlier: at a slot that is not filled yet, or after the writer has overtaken
        it.

        most: reading stops after this many records (see `at_end`); by default two rounds of the ring.
        """
        most = _MOST_ROUNDS * self.header.capacity if most is None else most
        count = 0
        for _ in range(_MOST_POLLS):
            columns = self.poll()
            if columns.tags:
                yield columns
            count += len(columns.tags)
            if self.at_end or count > most:
                return

    def _read_chunks(self, limit: int) -> list[bytes]:
        first = self._next
        chunks: list[bytes] = []
        while self._next - first < limit and self._read_chunk(chunks):
            pass
        return chunks

    def _read_chunk(self, chunks: list[bytes]) -> bool:
        """Read the next records into `chunks`; True if there may be more."""
        expected = self._next
        slots = min(_CHUNK_RECORDS, self._to_end(expected))
        raw = self._pread(slots * layout.RECORD_SIZE, self._offset(expected))
        numbers = sequence_numbers(raw)
        count = count_in_order(numbers, expected)
        if count:
            # Read again after the numbers were seen. If a slot was filled during the first copy, its number
            # may be new and the rest old.
            chunks.append(self._pread(count * layout.RECORD_SIZE, self._offset(expected)))
            self._next = expected + count
        if count == slots:
            return True
        self._stopped_at(expected + count, numbers[count : count + _LOOK_AHEAD + 1])
        return False

    def _stopped_at(self, expected: int, numbers: Sequence[int]) -> None:
        """Decide if the slot of record `expected` is not written yet, was overwritten, or stays a hole.

        numbers: the sequence numbers of this slot and of the slots behind it, as far as they were read.
        """
        capacity, number = self.header.capacity, numbers[0]
        if number > expected and (number - expected) % capacity == 0 and number < 1 << 62:
            self._skip_to_head()
            return
        written = any(expected + ahead <= each < 1 << 62 for ahead, each in enumerate(numbers) if ahead)
        beyond = range(len(numbers), _LOOK_AHEAD + 1)  # not read yet, perhaps at the beginning of the ring
        if not written and not any(self._reached(expected + ahead) for ahead in beyond):
            self.at_end = True
            return
        hole, polls = self._hole
        polls = polls + 1 if hole == expected else 1
        self._hole = (expected, polls)
        if polls >= _HOLE_POLLS:
            self.missed += 1
            self._next = expected + 1

    def _skip_to_head(self) -> None:
        """Continue at a record that stays safe while it is read, and count the skipped ones as missed."""
        target = max(self._next, self._oldest_safe(2 * GUARD_RECORDS))
        self.missed += target - self._next
        self._next = target

    def _oldest_safe(self, guard: int) -> int:
        """Return the number of the oldest record that is not overwritten while `guard` more are written."""
        return self._newest() + 1 - self.header.capacity + guard

    def _newest(self) -> int:
        """Return the number of the newest record, from some 14 slots of the ring.

        From slot 0 on, the slots hold the records of the present round and then those of the round before.
        A slot that is not filled yet may make the result a little too small.
        """
        first = self._number_in(0)
        if first % self.header.capacity or first >= 1 << 62:
            return 0
        low, high = 0, self.header.capacity
        while high - low > 1:
            middle = (low + high) // 2
            if first + middle <= self._number_in(middle) < 1 << 62:
                low = middle
            else:
                high = middle
        return first + low

    def _reached(self, number: int) -> bool:
        """Return True if the slot of this record holds it or a later one."""
        return number <= self._number_in(number % self.header.capacity) < 1 << 62

    def _number_in(self, slot: int) -> int:
        at = layout.RING_OFFSET + slot * layout.RECORD_SIZE + SEQUENCE_OFFSET
        return int.from_bytes(self._pread(8, at), "little")

    def _offset(self, number: int) -> int:
        return layout.RING_OFFSET + number % self.header.capacity * layout.RECORD_SIZE

    def _to_end(self, number: int) -> int:
        return self.header.capacity - number % self.header.capacity

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            raw = os.pread(self._file, size, offset)
        except OSError as error:
            raise BlackBoxError(f"could not read {self.path}: {error.strerror}") from error
        if len(raw) != size:
            raise BlackBoxError(f"{self.path} was cut short at byte {offset + len(raw)}", reason="truncated")
        return raw


def _allocator(integers: memoryview[int], floats: memoryview[float]) -> AllocatorNow | None:
    if not 0.0 < floats[Now.ALLOCATOR_SAMPLED] < END_OF_TIME:
        return None
    words = integers[Now.ALLOCATOR_ALLOCATED : Now.ALLOCATOR_OUT_OF_MEMORY + 1]
    return AllocatorNow(*(max(0, each) for each in words))


def _cpu_wait_share(floats: memoryview[float]) -> float | None:
    waited, watched = floats[Now.CPU_WAITED], floats[Now.CPU_WATCHED]
    return min(1.0, waited / watched) if 0.0 <= waited < END_OF_TIME and 0.0 < watched < END_OF_TIME else None


def _capabilities(integers: memoryview[int]) -> dict[Capability, Unseen | None]:
    """Return the capabilities; reasons of a newer writer, which this reader does not know, count as
    unknown."""
    words = integers[Now.CAPABILITIES : Now.CAPABILITIES + len(_CAPABILITIES)]
    if not any(words):
        return {}
    return {
        capability: _REASONS[word - layout.SEEN]
        for capability, word in zip(_CAPABILITIES, words, strict=True)
        if layout.SEEN <= word < layout.SEEN + len(_REASONS)
    }


def open_box(path: Path, *, follow_folder: bool = False, folder: Folder | None = None) -> int:
    """Open a regular file that may be a black box. Raises BlackBoxError."""
    try:
        if folder is not None:
            return folder.open_file(path.name)
        return open_regular(path, follow_folder=follow_folder)
    except OSError as error:
        raise BlackBoxError(
            f"could not open {path}: {error.strerror}", reason=_refused(path, error)
        ) from error


def _refused(path: Path, error: OSError) -> str:
    try:
        if stat.S_ISLNK(look(path).st_mode):
            return "symlink"
    except OSError:
        return "unreadable"
    return "not_a_file" if isinstance(error, NotRegularError) else "unreadable"


def _finite(value: float) -> float:
    return value if 0.0 <= value < END_OF_TIME else 0.0
