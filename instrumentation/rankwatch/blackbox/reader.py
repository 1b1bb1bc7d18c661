"""Follows a black box. The file is untrusted: whatever it holds, a reader raises BlackBoxError or
counts, and never follows a link, maps the file (a truncated one would kill the reader by SIGBUS)
or reads more than its own bounds.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.records import GroupNow, Header, NowBlock, RawRecord
from rankwatch.errors import BlackBoxError, IdentityError
from rankwatch.identity import Identity

_CHUNK_RECORDS = 256
_GUARD_RECORDS = 64
"""Slots in front of the writer that a reader does not trust: they may be overwritten while read."""
_HOLE_POLLS = 3
"""Polls a reader waits for a slot that was handed out and not yet filled."""
_RECORD = struct.Struct("<QddQ32s")
_SEQUENCE_OFFSET = 24
_FLOCK = struct.Struct("hhqqi4x")
_new_record = tuple.__new__  # half the cost of a named tuple's own constructor, thousands of times a second
_END_OF_TIME = 1e10
"""Seconds. No clock of a machine says more (as Unix time: the year 2286), and no sum of them overflows."""
_KIND_LIMIT = max(layout.RecordKind) + 1


class Reader:
    """An open black box.

    Raises BlackBoxError, with a countable `reason`, where the file is no black box that this
    version can read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = os.fspath(path)
        self._file = _open(path)
        try:
            status = os.fstat(self._file)
            if not stat.S_ISREG(status.st_mode):
                raise BlackBoxError(f"{path} is not a regular file", reason="not_a_file")
            self.inode = status.st_ino
            self.header = _parse_header(path, os.pread(self._file, layout.HEADER_SIZE, 0), status.st_size)
        except BaseException:
            os.close(self._file)
            raise
        self.missed = 0
        """Records overwritten or torn before they were read, or that made no sense."""
        self._next = 0
        self._hole = (-1, 0)
        self._names: dict[int, str] = {}

    def close(self) -> None:
        """Give the file back; the reader is of no further use."""
        os.close(self._file)

    def writer_alive(self) -> bool:
        """Whether the process that wrote the box still holds its lock."""
        query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(self._file, fcntl.F_GETLK, query))
        return bool(answer[0] != fcntl.F_UNLCK)

    def replaced(self) -> bool:
        """Whether the path now names another file, or none."""
        try:
            return os.lstat(self._name).st_ino != self.inode
        except OSError:
            return True

    def now(self) -> NowBlock:
        """The now block as it stands."""
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
                number: at for number, at in enumerate(began) if number and 0.0 < at < _END_OF_TIME
            },
            gpu=self._printable_name(integers[Now.GPU]),
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
        """The name with this number; empty for 0 and for numbers that are not in use."""
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

    def poll(self, limit: int = 1 << 16) -> list[RawRecord]:
        """The records written since the last poll, in order, at most `limit`."""
        found: list[RawRecord] = []
        first = self._next
        while len(found) < limit and self._read_chunk(found):
            pass
        if found and self._reached(first + self.header.capacity - _GUARD_RECORDS):
            # The writer has nearly caught up with what was just read: none of it can be trusted.
            self.missed += len(found)
            self._skip_to_head()
            return []
        return found

    def _read_chunk(self, found: list[RawRecord]) -> bool:
        """Read on; whether there may be more behind it."""
        expected = self._next
        count = min(_CHUNK_RECORDS, self._to_end(expected))
        raw = self._pread(count * layout.RECORD_SIZE, self._offset(expected))
        for tag, start, end, number, payload in _RECORD.iter_unpack(raw):
            if number != expected:
                self._next = expected
                self._stopped_at(expected, number)
                return False
            expected += 1
            kind = tag >> layout.NAME_BITS
            if 0 < kind < _KIND_LIMIT and 0.0 <= start <= end < _END_OF_TIME:
                found.append(_new_record(RawRecord, (kind, tag & 0xFFFF, start, end, payload)))
            else:
                self.missed += 1
        self._next = expected
        return True

    def _stopped_at(self, expected: int, number: int) -> None:
        """Decide whether the slot is still to be written, was overwritten, or will stay a hole."""
        capacity = self.header.capacity
        if number > expected and (number - expected) % capacity == 0 and number < 1 << 62:
            self._skip_to_head()
            return
        if not any(self._reached(expected + ahead) for ahead in range(1, 9)):
            return  # the end of what is written
        hole, polls = self._hole
        polls = polls + 1 if hole == expected else 1
        self._hole = (expected, polls)
        if polls >= _HOLE_POLLS:
            self.missed += 1
            self._next = expected + 1

    def _skip_to_head(self) -> None:
        """Go on at the oldest record that is safe to read, and count what lies between as missed."""
        capacity = self.header.capacity
        raw = self._pread(capacity * layout.RECORD_SIZE, layout.RING_OFFSET)
        newest = max(
            (
                number
                for slot, (*_, number, _payload) in enumerate(_RECORD.iter_unpack(raw))
                if number % capacity == slot and number < 1 << 62
            ),
            default=0,
        )
        target = max(self._next, newest - capacity + 2 * _GUARD_RECORDS)
        self.missed += target - self._next
        self._next = target

    def _reached(self, number: int) -> bool:
        """Whether the writer has filled the slot of this record, with it or a later one."""
        raw = self._pread(8, self._offset(number) + _SEQUENCE_OFFSET)
        return number <= int.from_bytes(raw, "little") < 1 << 62

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


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "symlink" if path.is_symlink() else "unreadable"
        raise BlackBoxError(f"could not open {path}: {error.strerror}", reason=reason) from error


def _parse_header(path: Path, raw: bytes, actual_size: int) -> Header:
    def refuse(reason: str, why: str) -> BlackBoxError:
        return BlackBoxError(f"{path} is no usable black box: {why}", reason=reason)

    if len(raw) < layout.HEADER_SIZE:
        raise refuse("truncated", f"only {len(raw)} bytes")
    (magic, version, header, record, names, capacity, now, names_at, ring, size,
     rank, world, local, pid, monotonic, wall, target, run, host, count,
    ) = layout.FIXED.unpack_from(raw)  # fmt: skip
    if magic != layout.MAGIC:
        raise refuse("garbage", "wrong magic")
    if version != layout.VERSION:
        raise refuse("version", f"format version {version}, this reader knows {layout.VERSION}")
    expected = (layout.HEADER_SIZE, layout.RECORD_SIZE, layout.NAME_COUNT,
                layout.NOW_OFFSET, layout.NAMES_OFFSET, layout.RING_OFFSET)  # fmt: skip
    if (header, record, names, now, names_at, ring) != expected:
        raise refuse("garbage", "its sizes or offsets are not those of its version")
    if not 2 * _GUARD_RECORDS < capacity <= layout.MAX_CAPACITY:
        raise refuse("oversized", f"a ring of {capacity} records")
    if size != layout.RING_OFFSET + capacity * layout.RECORD_SIZE or actual_size < size:
        raise refuse("truncated", f"{actual_size} bytes, its header says {size}")
    if actual_size > size:
        raise refuse("oversized", f"{actual_size} bytes, its header says {size}")
    if not (0.0 <= monotonic < _END_OF_TIME and 0.0 <= wall < _END_OF_TIME):
        raise refuse("garbage", "clocks that cannot be")
    coordinates = {}
    for index in range(min(count, layout.MAX_COORDINATES)):
        at = layout.FIXED.size + index * layout.COORDINATE.size
        name, position, extent = layout.COORDINATE.unpack_from(raw, at)
        coordinates[_text(name)] = (position, extent)
    try:
        identity = Identity(
            run=_text(run),
            rank=rank,
            world_size=world,
            local_rank=local,
            host=_text(host),
            coordinates=coordinates,
        )
    except IdentityError as error:
        raise refuse("garbage", str(error)) from error
    if not identity.run:
        raise refuse("garbage", "no run id")
    return Header(
        identity=identity,
        pid=pid,
        started_monotonic=monotonic,
        started_wall=wall,
        target_steps=int(target) if 0 < target < 1e15 else None,
        capacity=capacity,
    )


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")


def _finite(value: float) -> float:
    return value if 0.0 <= value < _END_OF_TIME else 0.0
