"""What two unprivileged users do to an agent, all at once: code for `support.processes.users.program_of`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .hostile_answers import ANSWERS, COMMON, CONNECTIONS, HELD_UP, SOCKETS

BOXES = (
    COMMON
    + """
# 1,100 sparse boxes of two users, of runs that all claim to be new, and as many empty directories.
for n in range(550):
    box(f"sparse{uid}-{n // 10}", n % 10)
for n in range(1000):
    (directory / f"empty{uid}-{n}").mkdir(exist_ok=True)
while True:
    for n in range(55):
        os.utime(directory / f"sparse{uid}-{n}")
    time.sleep(0.5)
"""
)

ENDED_RUNS = (
    COMMON
    + """
# A job that crashes in a loop, and lost runs without end.
n = 0
while True:
    box(f"lost{uid}-{n}", 0, capacity=256)
    if n >= 300:
        old = directory / f"lost{uid}-{n - 300}"
        for path in old.iterdir():
            path.unlink()
        old.rmdir()
    n += 1
    time.sleep(0.1)
"""
)

LARGE_RINGS = (
    COMMON
    + """
# Living boxes: huge ones, and full ones that go on with names of collectives without end.
held = []
for n in range(4):
    path = box(f"huge{uid}", n, capacity=1 << 22)
maps = []
for n in range(24):
    file = open(box(f"full{uid}", n, capacity=layout.MAX_CAPACITY if n < 2 else 4096), "r+b")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.append(file)
    maps.append(mmap.mmap(file.fileno(), 0))
for each in maps:
    for number in range(1, layout.NAME_COUNT):
        name = f"name-{number}-{'x' * 40}".encode()[:63]
        at = layout.NAMES_OFFSET + number * layout.NAME_SIZE
        each[at] = len(name)
        each[at + 1 : at + 1 + len(name)] = name
capacity = 4096
number = 0
while True:
    now = time.monotonic()
    records = bytearray(layout.RECORD_SIZE * 512)
    for slot in range(512):
        at = slot * layout.RECORD_SIZE
        kind = 3 if slot % 4 else 1 + slot // 4 % 8
        at_number = number + slot
        tag = kind << 16 | 1 + at_number % 511
        layout.HEAD.pack_into(records, at, tag, now, now + 0.001, at_number)
        group = 1 + at_number // 7 % 511
        layout.COLLECTIVE.pack_into(records, at + layout.PAYLOAD_OFFSET, 1 << 20, at_number, group, 0, 0.0)
    at = layout.RING_OFFSET + number % capacity * layout.RECORD_SIZE
    for each in maps:
        each[at : at + len(records)] = records
    number += 512
    time.sleep(0.2)
"""
)

FORGERIES = (
    COMMON
    + """
# Boxes and directories in the name of the run of somebody else.
for name in (f"{victim}-uid{uid}", f"{victim}-uid64003", f"{victim}-uid64003-2", f"{victim}2"):
    try:
        box(victim, 0, folder=name)
        box(name, 1)
    except OSError:
        pass
while True:
    try:
        box(victim, 7)
    except OSError:
        pass
    time.sleep(1)
"""
)

CHOSEN_PATHS = (
    COMMON
    + """
# Lost ranks whose error files are a device, a FIFO, a huge file, and files of others.
pathlib.Path(f"/dev/shm/rankwatch-fifo-{uid}").unlink(missing_ok=True)
fifo = f"/dev/shm/rankwatch-fifo-{uid}"
os.mkfifo(fifo)
targets = ["/dev/zero", "/dev/random", fifo, "/proc/kmsg", "/etc/shadow", "/proc/kcore"]
targets += [f"{private}/secret.json"]
try:
    for n in range(10**9):
        run = f"chosen{uid}-{n % 40}"
        for rank, target in enumerate(targets):
            path = box(run, rank, capacity=256)
            path.with_suffix(".error_file").write_text(target)
        time.sleep(0.2)
finally:
    os.unlink(fifo)
"""
)

EXCHANGES = (
    COMMON
    + """
# Runs that ended an hour ago. Every other moment their directory is a link to a folder of another user.
libc = ctypes.CDLL(None, use_errno=True)
runs = []
for n in range(8):
    path = box(f"swapped{uid}-{n}", 0, capacity=256, age=4000.0)
    (path.parent / "earlier").mkdir(exist_ok=True)
    link = directory / f".link{uid}-{n}"
    link.symlink_to(private)
    runs.append((os.fsencode(path.parent), os.fsencode(link)))
end = time.monotonic()
while True:
    for here, there in runs:
        libc.renameat2(-100, here, -100, there, 2)
    if time.monotonic() > end:
        end = time.monotonic() + 5
        for n in range(8):
            try:
                box(f"swapped{uid}-{n}", 0, capacity=256, age=4000.0)
            except OSError:
                pass
    time.sleep(0.0005)
"""
)

CHECKPOINTS = (
    COMMON
    + """
# Living ranks that have saved a sparse file of 15 TB, links to a private folder, FIFOs, and endless metadata.
import json
folder = directory / f"checkpoints{uid}"
folder.mkdir()
sparse = folder / "sparse.pt"
with open(sparse, "wb") as file:
    file.write(b"PK")
    file.truncate(15 << 40)
os.mkfifo(folder / "fifo")
(folder / "iter_0000007").symlink_to(private)
(folder / "latest_checkpointed_iteration.txt").write_text("7")
deep = folder / "deep"
deep.mkdir()
(deep / "rng_state_99999999999.pth").write_bytes(b"x")
place = deep
for n in range(300):
    place = place / "x"
    place.mkdir()
sharded = folder / "sharded"
sharded.mkdir()
(sharded / ".metadata").write_bytes(b"\\x80\\x02]" + b"(" * (1 << 20))
saved = [sparse, folder, folder / "fifo", deep, sharded, private]
held = []
for n, path in enumerate(saved):
    at = box(f"saves{uid}-{n}", 0, capacity=256)
    file = open(at, "r+b")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.append(file)
step = 0
while True:
    step += 1
    for n, path in enumerate(saved):
        entry = {"operation": "save", "step": step, "path": str(path), "failed": False}
        entry["ended"] = time.time() - 30
        note = directory / f"saves{uid}-{n}" / "0.checkpoints"
        note.write_text(json.dumps({"checkpoints": [entry]}))
    time.sleep(20)
"""
)

CLAIMS = (
    COMMON
    + """
# Boxes of next month, of 102 attempts of one run, of 100 classes, and with amounts whose sum is no number.
held = []
def claim(path, *, attempt=0, run_class=b""):
    file = open(path, "r+b")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.append(file)
    whole = mmap.mmap(file.fileno(), 0)
    layout.DECLARED.pack_into(whole, layout.DECLARED_OFFSET, run_class, 0.0, b"")
    layout.STARTED_BY.pack_into(whole, layout.STARTED_BY_OFFSET, attempt, b"", 0)
    at = layout.NAMES_OFFSET + layout.NAME_SIZE
    whole[at : at + 7] = bytes([6]) + b"tokens"
    struct.pack_into("<q", whole, layout.NOW_OFFSET + 8 * layout.Now.NAMES, 1)
    now = time.monotonic()
    kinds = layout.RecordKind
    work, step = layout.WORK.pack(1e308, 1), layout.STEP.pack(1, 1)
    for number, (kind, payload) in enumerate(((kinds.WORK, work), (kinds.STEP, step)) * 2):
        at = layout.RING_OFFSET + number * layout.RECORD_SIZE
        name = 1 if kind == kinds.WORK else 0
        whole[at + layout.PAYLOAD_OFFSET : at + layout.PAYLOAD_OFFSET + len(payload)] = payload
        layout.HEAD.pack_into(whole, at, kind << layout.NAME_BITS | name, now, now + 0.1, number)
for number in range(2):
    claim(box(f"!future{uid}", number, capacity=256, age=-30 * 86400.0))
for attempt in range(102):
    claim(box(f"!many{uid}", attempt, capacity=256), attempt=attempt, run_class=f"class-{attempt}".encode())
while True:
    time.sleep(1)
"""
)

ATTACKS: Mapping[str, str] = MappingProxyType(
    {
        "550 sparse boxes and 1,000 directories": BOXES,
        "ended and lost runs, ten a second": ENDED_RUNS,
        "huge, full and fast rings, 511 names": LARGE_RINGS,
        "150 silent, slow and unread connections": CONNECTIONS,
        "64 sockets without an answer or an end": SOCKETS,
        "forged boxes of another user's run": FORGERIES,
        "error files that are devices, FIFOs and others' files": CHOSEN_PATHS,
        "ended runs exchanged for links": EXCHANGES,
        "checkpoints that are sparse, endless and others'": CHECKPOINTS,
        "recorders and a NCCL RAS service with large and forged answers": ANSWERS,
        "locks, stopped children, shut folders, odd links": HELD_UP,
        "boxes of next month, 102 attempts, 100 classes, sums that are no number": CLAIMS,
    }
)
"""What each of both users does, and its code."""
