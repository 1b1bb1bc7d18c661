"""Which processes of a real job are recorded: its ranks, and none of those that work for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch.automatic.launching import recording_environment
from rankwatch.blackbox.reader import Reader
from rankwatch_diagnosis.run.engine import diagnose_run
from support.agent.process import until
from support.jobs.forked_ranks import shared_ranks
from support.jobs.torchrun import torchrun

pytest.importorskip("torch")
pytestmark = pytest.mark.process

WITNESS = """
import atexit, os, sys
def tell():
    with open(os.environ["WITNESS"], "a") as file:
        file.write(f"{'rankwatch.automatic.installing' in sys.modules} {' '.join(sys.orig_argv[1:3])!r}\\n")
atexit.register(tell)
"""
"""A user's own sitecustomize. It writes down which processes woke rankwatch."""
RANK = """
import glob, os, subprocess, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
if __name__ == "__main__":
    helper = "import torch; torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()"
    subprocess.run([sys.executable, "-c", helper], check=True)
    assert not glob.glob(f"{os.environ['RANKWATCH_DIR']}/*/{os.environ['RANK']}.blackbox")
    dist.init_process_group("gloo")
    loader = DataLoader(list(range(4)), num_workers=1, multiprocessing_context="spawn")
    assert sum(int(batch) for batch in loader) == 6
    subprocess.run([sys.executable, "-c", "import torch, sys; " + helper], check=True)
    dist.destroy_process_group()
"""
BEFORE = "import torch; torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()"
SPAWNED = """
import glob, os, time, torch, torch.distributed as dist, torch.multiprocessing as mp
def rank(number, port):
    store = dist.TCPStore("127.0.0.1", port, 2, number == 0)
    dist.init_process_group("gloo", store=store, rank=number, world_size=2)
    deadline = time.monotonic() + 60  # a process that ends before its first step leaves no file
    while len(glob.glob(os.environ["RANKWATCH_DIR"] + "/job/*.blackbox")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(rank, args=(port,), nprocs=2, start_method=os.environ["METHOD"])
"""


def environment(directory: Path, **variables: str) -> dict[str, str]:
    """That of `rankwatch run`, with a user's own sitecustomize."""
    own = directory / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(WITNESS)
    found = recording_environment({"PYTHONPATH": str(own)})
    return {**found, "WITNESS": str(directory / "witness"), "RANKWATCH_DIR": str(directory), **variables}


def awake(directory: Path) -> list[str]:
    """First words of the processes that woke rankwatch."""
    lines = (directory / "witness").read_text().splitlines()
    return sorted(line.removeprefix("True ") for line in lines if line.startswith("True"))


def boxes(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*/*.blackbox"))


def test_torchrun(tmp_path: Path) -> None:
    """A rank; not torchrun, the spawned worker of a loader, resource trackers, or what a rank starts.
    What it starts before it trains itself may be a rank, but only by joining a process group."""
    script = tmp_path / "train.py"
    script.write_text(RANK)
    ended = torchrun(str(script), ranks=1, directory=tmp_path, **environment(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert boxes(tmp_path) == ["0.blackbox"]
    assert awake(tmp_path) == [repr(f"-c {BEFORE}"), repr(f"-u {script}")]
    witnessed = (tmp_path / "witness").read_text()
    assert "-m torch.distributed.run" in witnessed and "-c import torch" in witnessed


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_without_a_launcher(method: str, tmp_path: Path) -> None:
    """A script that starts its ranks itself: they are recorded, the script is not."""
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    env = {**os.environ, **environment(tmp_path, METHOD=method, RANKWATCH_RUN="job")}
    ended = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert boxes(tmp_path) == ["0.blackbox", "1.blackbox"]
    reader = Reader(tmp_path / "job" / "1.blackbox")
    assert reader.header.identity.world_size == 2
    reader.close()


@pytest.mark.parametrize("first", ["start", "group"])
def test_explicit_hooks_win(first: str, tmp_path: Path) -> None:
    """A script that calls `rankwatch.start` is recorded as it asks, before or after its process group."""
    calls = [f"dist.init_process_group('gloo', init_method='file://{tmp_path}/store', rank=0, world_size=1)"]
    calls.insert(first == "group", "run = rankwatch.start(run='own')")
    code = "import torch, torch.distributed as dist, rankwatch\n" + "\n".join(calls)
    code += "\nwith run:\n    with run.step(): run.scalar('loss', 1.0)\n"
    log = tmp_path / "log"
    environ = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    assert shared_ranks(recorded=True).run(["-c", code], environ, ranks=1, log=log) == [0], log.read_text()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*.blackbox")] == ["own/0.blackbox"]
    assert log.read_text().count("zero-code recording stands down") == (first == "group")


def test_helper_script(tmp_path: Path) -> None:
    """A rank that imports torch and trains nothing leaves no file."""
    env = {**os.environ, **environment(tmp_path, RANK="0", WORLD_SIZE="1")}
    code = "import torch; torch.nn.Linear(2, 2)(torch.ones(2))"
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)
    assert awake(tmp_path) and not list(tmp_path.glob("*/*.blackbox"))
    assert not [each for each in tmp_path.iterdir() if each.name not in ("own", "witness")]


CRASHING = """
import os, signal, sys, time
import torch, torch.distributed as dist
from rankwatch.automatic import recording
dist.init_process_group("gloo")
run = recording.opened()
for _ in range(3):
    run.begin_step(); dist.barrier(); run.end_step()
if os.environ["RANK"] == "1":
    exec(os.environ["END"])
time.sleep(100)  # the test terminates it, as torchrun does
"""


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("os.abort()", "rank 1: it crashed by SIGABRT: Aborted"),
        ("raise torch.OutOfMemoryError('CUDA out of memory')", "rank 1: ended by lack of GPU memory"),
        ("sys.exit(5)", "rank 1: ended by exit status 5"),
    ],
)
def test_end_of_a_rank(end: str, why: str, tmp_path: Path) -> None:
    """The rank that ended first is named with how it ended; the other was terminated, as by torchrun."""
    (tmp_path / "train.py").write_text(CRASHING)
    server, environ = shared_ranks(recorded=True), {**os.environ, "END": end}
    environ |= {"RANKWATCH_DIR": str(tmp_path), "RANKWATCH_RUN": "job"}
    ranks = server.start([str(tmp_path / "train.py")], environ, ranks=2, log=tmp_path / "log")
    until(lambda: server.status(ranks[1]) is not None, "rank 1 has ended", seconds=100.0)
    os.kill(ranks[0], signal.SIGTERM)
    until(lambda: server.status(ranks[0]) is not None, "rank 0 was terminated", seconds=100.0)
    verdict = diagnose_run(tmp_path / "job")
    assert verdict.why.startswith(why), verdict.why
    assert {each["rank"]: each["state"] for each in verdict.ranks_seen}[0] == "terminated"
