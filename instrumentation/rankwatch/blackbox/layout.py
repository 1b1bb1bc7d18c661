"""The byte layout of a black box, format version 1. All numbers are little-endian.

    offset  size   what
    0       4096   header: identity and clocks, written once before the file gets its name
    4096    4096   now: 512 words of 8 bytes; each word is written whole, so a reader never sees half of one
    8192    32768  names: 512 entries of 64 bytes, length byte then UTF-8; number 0 means "no name"
    40960   64 x n ring of n records

A record is 64 bytes; the sequence number is stored after tag, start and end (and, where there is a
payload, after the payload), so a record is complete once its slot shows the number expected there. A
reader sees the number first and copies the record then: one copy may hold the number and yet the old rest.

    0   u64  tag: kind x 65536 + number of a name
    8   f64  start, seconds on CLOCK_MONOTONIC
    16  f64  end, likewise; for moments the same as start
    24  u64  sequence number n, counted from 0; the record lies in slot n mod capacity
    32       payload of 32 bytes, by kind

Sequence numbers are handed out by one atomic step and records written by several threads, so a slot
may be filled a little later than its successor: the reader waits for it, then counts it as missed.

Times are those of CLOCK_MONOTONIC, which all processes of a machine share; the header holds the pair
(monotonic, wall clock) taken at the start.
"""

from __future__ import annotations

import struct
from enum import IntEnum

MAGIC = b"RANKWBOX"
VERSION = 1
SUFFIX = ".blackbox"

HEADER_SIZE = 4096
NOW_OFFSET = 4096
NOW_WORDS = 512
NAMES_OFFSET = 8192
NAME_SIZE = 64
NAME_COUNT = 512
RING_OFFSET = NAMES_OFFSET + NAME_SIZE * NAME_COUNT
RECORD_SIZE = 64
DEFAULT_CAPACITY = 16384
MAX_CAPACITY = 1 << 22
"""256 MiB of records; a reader refuses more."""

FIXED = struct.Struct("<8sIIIIQQQQQiiiiddd128s64sI")
"""Header: magic, version, header size, record size, name count, capacity, offsets of now, names and
ring, file size, rank, world size, local rank, pid, start (monotonic, wall), target steps (NaN: none),
run, host (both NUL-padded UTF-8), number of coordinates."""
COORDINATE = struct.Struct("<16sii")
"""Name (NUL-padded), index, size; up to MAX_COORDINATES of them follow the fixed part."""
MAX_COORDINATES = 8

HEAD = struct.Struct("<QddQ")
NAME_BITS = 16
PAYLOAD_OFFSET = 32

STEP = struct.Struct("<qq")
"""Step number, 1 where an exception ended it."""
COLLECTIVE = struct.Struct("<QQIId")
"""Bytes of input, number in its group from 0 (sends and receives are counted apart), group's name, flags,
moment at which a thread began to wait for it. That is 0 where the caller blocks, where no wait was seen
before its end, and in boxes that were written before this field had a meaning."""
SCALAR = struct.Struct("<dq")
"""Value, step."""
WORK = struct.Struct("<dq")
"""Amount, step."""
CHECKPOINT = struct.Struct("<QqII")
"""Bytes, step, stage's name (0: the whole operation), 1 where it failed."""
LIFECYCLE = struct.Struct("<qI")
"""Step, name of a detail (type of an exception)."""
DEVICE = struct.Struct("<ddq")
"""Seconds on the GPU, of these before the last collective was enqueued, step."""

BLOCKING = 1
"""Flag of a collective: the caller blocks from its start to its end."""
FAILED = 2
POINT_TO_POINT = 4
"""A send or a receive. It starts where the thread began to wait for it, not where it was enqueued: what lies
between is the rank's own work. A collective without this flag starts where it was enqueued."""
UNTIMED = 8
"""Its end was not seen, because nobody was seen to wait for it: it has no duration. Start and end are one
moment, that of the enqueue."""


class RecordKind(IntEnum):
    """What a record tells."""

    PHASE = 1
    STEP = 2
    COLLECTIVE = 3
    SCALAR = 4
    WORK = 5
    CHECKPOINT = 6
    LIFECYCLE = 7
    DEVICE_PHASE = 8


class Now(IntEnum):
    """Words of the now block. Moments (seconds on CLOCK_MONOTONIC) and the loss are f64, the others i64."""

    STEP = 0
    """Number of the step that is open, or of the last one."""
    STEP_BEGAN = 1
    """Start of the open step; 0 while none is open."""
    STEP_ENDED = 2
    STEPS_COMPLETED = 3
    ERRORS = 4
    """Errors inside rankwatch, swallowed."""
    LOSS = 5
    CHECKPOINT_STEP = 6
    CHECKPOINT_ENDED = 7
    NAMES = 8
    """Number of names in use."""
    PHASES = 9
    """Number of phases; their names are numbers 1 to this."""
    GPU = 10
    """Number of the name that is the UUID of the rank's GPU; 0 while it is not known, and in boxes that
    were written before this word had a meaning."""
    GROUPS = 11
    """Number of process groups in the tables below; 0 in boxes that were written before there were any."""
    PHASE_BEGAN = 64
    """First of a table: word PHASE_BEGAN + p holds when phase p last began. A phase is open while the
    ring holds no record of it with that start."""
    GROUP_NAME = 128
    """First of a table, as the following ones: number of the name of process group g."""
    GROUP_MEMBERS = 192
    """Number of the name that lists its global ranks (see `rankwatch.members`)."""
    GROUP_SIZE = 256
    """Number of its ranks."""
    GROUP_ENQUEUED = 320
    """Collectives enqueued in it, sends and receives left out: these differ between its ranks."""
    GROUP_OLDEST = 384
    """Enqueue of its oldest operation that is not complete; 0 for none. A send or receive counts from where
    a thread began to wait for it, as long as it waits. Only where completions are seen (gloo)."""
    GROUP_OPERATION = 448
    """Number of the name of its operation that was enqueued last, sends and receives included."""


MAX_PHASES = 64
MAX_GROUPS = 64


def tag(kind: RecordKind, name: int) -> int:
    """The tag of a record of this kind with this name."""
    return (kind << NAME_BITS) | name
