"""The byte layout of a black box, format version 1. All numbers are little-endian.

    offset  size   what
    0       4096   header: identity and clocks, written once before the file gets its name
    4096    4096   now: 512 words of 8 bytes, each written whole, so a reader never sees half a word
    8192    32768  names: 512 entries of 64 bytes, a length byte and then UTF-8; number 0 means "no name"
    40960   64 x n ring of n records

A record is 64 bytes. The writer stores the sequence number last, so a record is complete once its slot shows
the expected number. A reader checks the number first and copies the record afterwards, because a single copy
may hold the new number and an old rest.

    0   u64  tag: kind x 65536 + number of a name
    8   f64  start, seconds on CLOCK_MONOTONIC
    16  f64  end, seconds on CLOCK_MONOTONIC; equal to start for moments
    24  u64  sequence number n, counted from 0; the record is in slot n mod capacity
    32       payload of 32 bytes, by kind

Several threads write records, and one atomic step gives each record its sequence number. So a slot may be
filled a little later than the next one. The reader waits for it and finally counts it as missed.

Times are on CLOCK_MONOTONIC, which all processes of a machine share. The header holds a pair
(monotonic, wall clock) taken at the start.
"""

from __future__ import annotations

import struct
from enum import IntEnum

MAGIC = b"RANKWBOX"
VERSION = 1
SUFFIX = ".blackbox"
SOCKET_SUFFIX = ".sock"
"""Of the socket beside the box on which the rank serves its flight recorder."""

HEADER_SIZE = 4096
NOW_OFFSET = 4096
NOW_WORDS = 512
NAMES_OFFSET = 8192
NAME_SIZE = 64
NAME_COUNT = 512
RING_OFFSET = NAMES_OFFSET + NAME_SIZE * NAME_COUNT
RECORD_SIZE = 64
DEFAULT_CAPACITY = 16384
MAX_CAPACITY = 1 << 17
"""8 MiB of records, eight times the default. A reader refuses more, so that nobody's box costs it much."""

FIXED = struct.Struct("<8sIIIIQQQQQiiiiddd128s64sI")
"""Header: magic, version, header size, record size, name count, capacity, offsets of now, names and
ring, file size, rank, world size, local rank, pid, start (monotonic, wall), target steps (NaN: none),
run, host (both NUL-padded UTF-8), number of coordinates."""
COORDINATE = struct.Struct("<16sii")
"""Name (NUL-padded), index, size. At most MAX_COORDINATES of them follow the fixed part."""
MAX_COORDINATES = 8
DECLARED_OFFSET = 2048
DECLARED = struct.Struct("<32sd64s")
"""In the header, at DECLARED_OFFSET: class of the run (NUL-padded UTF-8), longest time between checkpoints
that it intends in seconds, short name (as the class). Empty and 0 where the run declares none, and in boxes
older than these fields."""
STARTED_BY_OFFSET = 2304
STARTED_BY = struct.Struct("<I64sI")
"""In the header, at STARTED_BY_OFFSET: number of the attempt, the TRACEPARENT of whoever started it
(NUL-padded ASCII), and how many attempts there may be. 0 and empty where there is none, and in boxes older
than these fields."""
PLAN_OFFSET = 2560
PLAN = struct.Struct("<ddII")
"""In the header, at PLAN_OFFSET: Unix time by which the run is to be done, Unix time at which the process
started, how often the scheduler has started the job before, how often the launcher has started the ranks
since. 0 where nothing is known, and in boxes older than these fields."""
LAUNCHER_OFFSET = 2816
LAUNCHER = struct.Struct("<128s")
"""In the header, at LAUNCHER_OFFSET: the job by which NVRx's launcher reports its restart cycles (NUL-padded
UTF-8). Empty below other launchers, and in boxes older than this field."""
CONTACT_OFFSET = 3072
CONTACT = struct.Struct("<64s")
"""In the header, at CONTACT_OFFSET: channel or mail address of the run (NUL-padded ASCII). Empty where it
declares none, and in boxes older than this field."""

LAG_OFFSET = 3328
LAG = struct.Struct("<d")
"""In the header, at LAG_OFFSET: seconds by which the file may lag behind the process, which copies its memory
into it. 0 where the process has mapped the file, and in boxes older than this field."""
LAG_SECONDS = 1.0
"""By how much such a file lags at most, on a machine that has no CPU left for the thread that copies."""

HEAD = struct.Struct("<QddQ")
NAME_BITS = 16
PAYLOAD_OFFSET = 32

NO_PAYLOAD = struct.Struct("")
"""Of a phase."""
STEP = struct.Struct("<qq")
"""Step number, flags."""
STEP_FAILED = 1
"""Flag of a step: an exception ended it."""
STEP_ON_DEVICE = 2
"""Flag of a step: records of its time on the device follow, up to its DEVICE_STEP. Never set on CPU, and in
boxes that are older than this flag."""
STEP_PLACE_BITS = 8
"""Flags of a step are these low bits. Above them is its place among the steps of its process, from 1 on; 0 in
older boxes. Numbers may begin again, as with each epoch, and places do not."""
COLLECTIVE = struct.Struct("<QQIId")
"""Bytes of input, number in its group from 0 (sends and receives have their own numbers), group's name,
flags, moment when a thread began to wait for it. The moment is 0 if the caller blocks, if no wait was seen
before the end, and in boxes that are older than this field."""
SCALAR = struct.Struct("<dq")
"""Value, step."""
WORK = struct.Struct("<dq")
"""Amount, step."""
CHECKPOINT = struct.Struct("<QqIId")
"""Bytes, step, stage's name (0: the whole operation), outcome (see below), seconds for which it blocked the
training thread. The rest of its time went by beside training."""
SUCCEEDED = 0
FAILED_BLOCKING = 1
FAILED_BESIDE = 2
"""Outcomes of a checkpoint operation. The last one: it failed after training had gone on."""
CHECKPOINT_BEGAN = struct.Struct("<qI")
"""Step, 1 if a save was still under way that began earlier, or training has just waited for one. The record
of the operation's end has the same start."""
FINGERPRINT = struct.Struct("<qQQII")
"""Step, weighted sum of the bits, `torch.hash_tensor` of them (0 without it), name of the first parameter of
the group, number of the group from 1. For all parameters this number is 0, and the one before it holds the
steps between two fingerprints. The record has the name of the ranks that must be equal."""
LIFECYCLE = struct.Struct("<qI")
"""Step, name of a detail (type of an exception)."""
ENDING = struct.Struct("<qI4I")
"""Payload of the lifecycle event that ends a run. It begins as LIFECYCLE, then come the names that together
hold the message of the exception (0: none). Only `failed` has them."""
MESSAGE_NAMES = 4
DEVICE = struct.Struct("<dq")
"""Own seconds of the compute stream in a phase, without waits for other ranks and phases inside it; step."""
DEVICE_WAIT = struct.Struct("<dqHHHHBxHBxH")
"""Seconds for which the compute stream waited for other ranks in one phase, step, number of waits, message,
group's name, message, number of the phase (0: none), message, flags of the operation, as of a collective, and
message. The record has its name.

A wait for a batch of sends and receives, outside of phases, shows the messages of the batch, and its record
starts when the batch was enqueued. A message is the peer's rank in the group plus 1, or 0 for none and in
boxes that are older than messages."""
DEVICE_MESSAGES = 4
"""Most messages of a wait. A larger batch shows none."""
MESSAGE_RECEIVED = 1 << 15
"""Flag of a message: the rank receives it."""
DEVICE_STEP = struct.Struct("<qdI")
"""Step, seconds of waits, flags. Start and end are those of the step on the compute stream. It is the last
record of a step's time on the device."""
UNKNOWN_WAITS = 1
"""Flag of DEVICE_STEP: own time and waits could not be told apart, as in a CUDA graph with collectives."""
UNTIMED_PHASES = 2
"""Flag of DEVICE_STEP: of the phases that began inside it only those of NOT_COMPUTE were timed, as in most
short steps."""

BLOCKING = 1
"""Flag of a collective: the caller blocks from its start to its end."""
FAILED = 2
POINT_TO_POINT = 4
"""A send or a receive. It starts when the thread began to wait for it, because the time between enqueue and
wait is the rank's own work. A collective without this flag starts when it was enqueued."""
UNTIMED = 8
"""It has no duration, because no thread waited for it and its end was not seen. Start and end are both the
moment of the enqueue."""


class RecordKind(IntEnum):
    """Kinds of records."""

    PHASE = 1
    STEP = 2
    COLLECTIVE = 3
    SCALAR = 4
    WORK = 5
    CHECKPOINT = 6
    LIFECYCLE = 7
    DEVICE_PHASE = 8
    CHECKPOINT_BEGAN = 9
    FINGERPRINT = 10
    DEVICE_WAIT = 11
    DEVICE_STEP = 12


class Now(IntEnum):
    """Words of the now block. Moments (seconds on CLOCK_MONOTONIC) and the loss are f64, the others i64."""

    STEP = 0
    """Number of the open step, else of the last one."""
    STEP_BEGAN = 1
    """Start of the open step; 0 while none is open."""
    STEP_ENDED = 2
    STEPS_COMPLETED = 3
    ERRORS = 4
    """Errors inside rankwatch that were kept from training."""
    LOSS = 5
    CHECKPOINT_STEP = 6
    CHECKPOINT_ENDED = 7
    NAMES = 8
    """Number of names in use."""
    PHASES = 9
    """Number of phases. Their names have the numbers from 1 to this."""
    GPU = 10
    """Number of the name that is the UUID of the rank's GPU; 0 while it is unknown, and in boxes that are
    older than this word."""
    GROUPS = 11
    """Number of process groups in the tables below; 0 in boxes that are older than the tables."""
    NAMES_REFUSED = 12
    """Times that a name found the table of names full."""
    ENDED_BY = 13
    """Number of the name of the lifecycle event that ended the run; 0 until then."""
    TARGET_STEPS = 14
    """Steps that the run is to reach, where it has learned them after its start; 0: as in the header."""
    CPU_WATCHED = 15
    """Seconds for which the wait of the training thread was watched; 0: not at all, and in older boxes."""
    ALLOCATOR_SAMPLED = 16
    """When the following five were sampled from torch's allocator of GPU memory, a moment; 0 until then."""
    ALLOCATOR_ALLOCATED = 17
    """Bytes that tensors hold now."""
    ALLOCATOR_RESERVED = 18
    """Bytes that the allocator holds of the GPU."""
    ALLOCATOR_PEAK = 19
    """Most bytes that tensors have held."""
    ALLOCATOR_RETRIES = 20
    """Times that the allocator gave back all cached memory and tried again."""
    ALLOCATOR_OUT_OF_MEMORY = 21
    """Times that even this did not suffice."""
    CPU_WAITED = 22
    """Seconds of CPU_WATCHED in which the thread was ready to run and had no CPU."""
    CAPTURING = 23
    """Number of CUDA graphs that the process captures at the moment: no thread may query an event then."""
    CAPABILITIES = 24
    """First word of a table: word CAPABILITIES + c is what is known of the capability at position c of its
    enumeration. 0: unknown yet, 1: visible, UNSEEN + r: not visible for the reason at position r of `Unseen`.
    All 0 in boxes that are older than the table."""
    DEVICE_MARKS_DROPPED = 48
    """Events on the compute stream that were dropped, because the device did not keep up or a step did not
    end."""
    PHASE_BEGAN = 64
    """First word of a table: word PHASE_BEGAN + p holds when phase p last began. A phase is open while the
    ring holds no record of it with that start."""
    GROUP_NAME = 128
    """First word of a table, like the following: number of the name of process group g."""
    GROUP_MEMBERS = 192
    """Number of the name that lists its global ranks (see `rankwatch.members`)."""
    GROUP_SIZE = 256
    """Number of its ranks."""
    GROUP_ENQUEUED = 320
    """Collectives enqueued in it, without sends and receives, which differ between its ranks."""
    GROUP_OLDEST = 384
    """Enqueue of its oldest operation that is not complete; 0 for none. A send or receive counts from the
    beginning of the wait for it until its end. Only backends whose completions are seen (gloo) have it."""
    GROUP_OPERATION = 448
    """Number of the name of the operation enqueued last, including sends and receives."""


MAX_PHASES = 64
MAX_GROUPS = 64
MAX_CAPABILITIES = 24
SEEN = 1
UNSEEN = 2


def tag(kind: RecordKind, name: int) -> int:
    """Return the tag of a record of this kind with this name."""
    return (kind << NAME_BITS) | name


def place(flags: int) -> int:
    """Return the place of a step in its process by its flags, from 0 on; -1 in older boxes."""
    return (flags >> STEP_PLACE_BITS) - 1


def message(peer: int, *, received: bool) -> int:
    """Return a message to or from this rank of the group, as in a DEVICE_WAIT; 0 if it does not fit."""
    if not 0 <= peer < MESSAGE_RECEIVED - 1:
        return 0
    return (peer + 1) | (MESSAGE_RECEIVED if received else 0)
