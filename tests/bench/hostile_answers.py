"""What two unprivileged users do to an agent with sockets, locks and signals; see `hostile_attacks`.

The first argument of each program is the agent's address on loopback, the second that of its probes, the
third the run it is after, the fourth a private folder of that run's user.
"""

from __future__ import annotations

COMMON = """
agent, probes, victim, private = arguments
host, port = agent.rsplit(":", 1)
probe_port = probes.rsplit(":", 1)[1]
print("done", flush=True)
"""

CONNECTIONS = (
    COMMON
    + """
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
"""
)

SOCKETS = (
    COMMON
    + """
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
"""
)

ANSWERS = (
    COMMON
    + """
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
"""
)

HELD_UP = (
    COMMON
    + """
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
"""
)
