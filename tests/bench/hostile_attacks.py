"""What two unprivileged users do to an agent, all at once: code for `support.processes.users.program_of`."""

from __future__ import annotations

_COMMON = """
agent, probes, victim, private = arguments
host, port = agent.rsplit(":", 1)
probe_port = probes.rsplit(":", 1)[1]
print("done", flush=True)
"""
"""The first argument of each program is the agent's address on loopback, the second that of its probes, the
third the run it is after, the fourth a private folder of that run's user."""
_ATTACKS = {
    "550 sparse boxes and 1,000 directories": """
# 1,100 sparse boxes of two users, of runs that all claim to be new, and as many empty directories.
for n in range(550):
    box(f"sparse{uid}-{n // 10}", n % 10)
for n in range(1000):
    (directory / f"empty{uid}-{n}").mkdir(exist_ok=True)
while True:
    for n in range(55):
        os.utime(directory / f"sparse{uid}-{n}")
    time.sleep(0.5)
""",
    "ended and lost runs, ten a second": """
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
""",
    "huge, full and fast rings, 511 names": """
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
""",
    "150 silent, slow and unread connections": """
# Silent and slow connections to both listeners, and readers that do not read.
opened = []
whole = b"GET /metrics HTTP/1.0\\r\\n\\r\\n"
def connect(to, words):
    try:
        made = socket.create_connection((host, int(to)), timeout=0.2)
        made.sendall(words)
        made.setblocking(False)
        opened.append((made, to, words))
    except OSError:
        time.sleep(0.01)
while True:
    for to, words, most in ((port, b"GET /metr", 70), (probe_port, b"", 70), (port, whole, 8)):
        while sum(1 for _, at, said in opened if (at, said) == (to, words)) < most:
            before = len(opened)
            connect(to, words)
            if len(opened) == before:
                break
    for each in list(opened):
        made, _, words = each
        try:
            if not words.endswith(b"\\r\\n\\r\\n"):
                made.sendall(b"x")
                if made.recv(1) == b"":
                    raise OSError
        except BlockingIOError:
            continue
        except OSError:
            made.close()
            opened.remove(each)
    if len(opened) > 120:
        for made, _, words in opened[:4]:
            if words.endswith(b"\\r\\n\\r\\n"):
                made.close()
                opened.remove((made, _, words))
    time.sleep(0.1)
""",
    "64 sockets without an answer or an end": """
# 64 sockets that come first by name: some never answer, some answer without end.
folder = directory / f"!a{uid}"
folder.mkdir()
os.chdir(folder)
def serve(listening):
    while True:
        connection, _ = listening.accept()
        try:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + b"[" * (30 << 20))
        except OSError:
            pass
        connection.close()
held = []
for n in range(64):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].bind(f"{n}.sock")
    held[-1].listen()
    if n % 8 == 0:
        threading.Thread(target=serve, args=(held[-1],), daemon=True).start()
while True:
    time.sleep(1)
""",
    "forged boxes of another user's run": """
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
""",
    "error files that are devices, FIFOs and others' files": """
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
""",
    "ended runs exchanged for links": """
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
""",
    "checkpoints that are sparse, endless and others'": """
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
""",
    "recorders and a NCCL RAS service with large and forged answers": """
# Flight recorders whose answers hold as much as one may, and a NCCL RAS service with a forged state of all.
import json
folder = directory / f"answers{uid}"
folder.mkdir()
entry = {"record_id": 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1,
    "profiling_name": "nccl:all_reduce", "state": "completed", "time_created_ns": 1, "duration_ms": 1.0,
    "input_sizes": [[1, 2]] * 2, "input_dtypes": ["Float"] * 4, "output_sizes": [[1]] * 2}
entries = [{**entry, "record_id": n, "collective_seq_id": n} for n in range(20_000)]
full = json.dumps({"version": "2.4", "pg_status": {}, "entries": entries}).encode()
values = b'{"entries": [{"record_id": 0, "input_dtypes": [' + b'"a",' * 900_000 + b'""]}]}'
groups = {f"{n}": {"name": f"{n}", "desc": "x", "ranks": [1, 2]} for n in range(60_000)}
configs = json.dumps({"version": "2.4", "pg_config": groups, "entries": []}).encode()
bodies = [full, values, configs]
os.chdir(folder)
def serve(listening, body):
    while True:
        connection, _ = listening.accept()
        try:
            asked = connection.recv(65536)
            answer = b'["fr_trace_json"]' if asked.startswith(b"GET") else body
            connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + answer)
        except OSError:
            pass
        connection.close()
held = []
for n in range(16):
    path = box(folder.name, n, capacity=256)
    held.append(open(path, "r+b"))
    fcntl.lockf(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{n}.sock")
    listening.listen()
    threading.Thread(target=serve, args=(listening, bodies[n % 3]), daemon=True).start()
def dead(n):
    status = {"init_state": 0, "async_error": 3, "abort_flag": True}
    counts = {"AllReduce": n % 32_000}
    return {"rank": n, "host": "h", "pid": 100_000 + n, "status": status, "collective_counts": counts}
comms = [{"hash": "0xdead", "size": 90_000, "ranks": [dead(n) for n in range(90_000)]}]
report = json.dumps({"nccl_version": "2.28.9", "communicators": comms}).encode()
ras = socket.socket()
ras.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
while True:
    try:
        ras.bind(("127.0.0.1", 28028))
        break
    except OSError:
        time.sleep(5)  # the other user has it
ras.listen()
while True:
    connection, _ = ras.accept()
    try:
        for line in connection.makefile("rb"):
            if line.startswith(b"STATUS"):
                connection.sendall(report)
                break
            connection.sendall(b"SERVER PROTOCOL 2\\n" if line.startswith(b"CLIENT") else b"OK\\n")
    except OSError:
        pass
    connection.close()
""",
    "locks, stopped children, shut folders, odd links": """
# Locks on all that can be opened, stops for all children that have become this user, folders that nobody may
# enter, and names and links that no box has.
mine = directory / f"shut{uid}"
box(mine.name, 0, capacity=256)
odd = directory / f"odd{uid}"
odd.mkdir()
(odd / "0.blackbox").symlink_to("/proc/self/fd/0" + "/x" * 1000)
(odd / f"{'9' * 200}.blackbox").touch()
(odd / "1.blackbox").symlink_to(private)
(directory / f"link{uid}").symlink_to("x" * 300)
held = {}
while True:
    for folder in (victim, victim + f"-uid{uid}"):
        try:
            names = list((directory / folder).iterdir())
        except OSError:
            continue
        for path in [directory / folder, *names]:
            try:
                if path not in held:
                    held[path] = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                fcntl.flock(held[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass
    mine.chmod(0o000 if mine.stat().st_mode & 0o700 else 0o700)
    for entry in os.scandir("/proc"):
        try:
            words = pathlib.Path(entry.path, "cmdline").read_bytes()
            if b"rankwatch." in words and b"-c" not in words.split(b"\\0") and entry.stat().st_uid == uid:
                os.kill(int(entry.name), signal.SIGSTOP)
        except (OSError, ValueError):
            pass
    time.sleep(0.2)
""",
    "boxes of next month, 102 attempts, 100 classes, sums that are no number": """
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
""",
}

ATTACKS = {what: _COMMON + code for what, code in _ATTACKS.items()}
"""What each of both users does, and its code."""
