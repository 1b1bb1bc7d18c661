"""Which processes of a real job are recorded: its ranks, and none of those that work for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankwatch.automatic.launching import recording_environment
from rankwatch_diagnosis.run.engine import diagnose_run
from support.jobs.forked_ranks import shared_ranks
from support.jobs.torchrun import torchrun
from support.servers.prometheus import poll
from support.training.blackbox import header

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
import os, subprocess, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", os.environ["BEFORE"]], check=True)
    assert not os.path.exists(os.environ["RANKWATCH_DIR"])
    dist.init_process_group("gloo")
    loader = DataLoader(list(range(4)), num_workers=1, multiprocessing_context="spawn")
    assert sum(int(batch) for batch in loader) == 6
    subprocess.run([sys.executable, "-c", "import torch, os"], cwd=os.environ["EMPTY_TORCH"], check=True)
    dist.destroy_process_group()
"""
BEFORE = """
import torch
class Update(torch.optim.Optimizer):
    add_param_group = torch.optim.Optimizer.add_param_group.__wrapped__  # loads no compiler
    def step(self): pass
Update([torch.ones(1, requires_grad=True)], {}).step()
"""
SPAWNED = """
import glob, os, time, torch, torch.distributed as dist, torch.multiprocessing as mp
def rank(number, port):
    store = dist.TCPStore("127.0.0.1", port, 2, number == 0)
    dist.init_process_group("gloo", store=store, rank=number, world_size=2)
    deadline = time.monotonic() + 60  # a process that ends before its first step leaves no file
    run = os.environ["RANKWATCH_DIR"] + "/" + os.environ["RANKWATCH_RUN"]
    while len(glob.glob(run + "/*.blackbox")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    import socket
    with socket.socket() as held:  # nobody else gets its port, and a store can listen on it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        for method in ("spawn", "fork", "forkserver"):
            os.environ["RANKWATCH_RUN"] = method
            mp.start_processes(rank, args=(held.getsockname()[1],), nprocs=2, start_method=method)
"""


def boxes(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.blackbox"))


def test_torchrun(tmp_path: Path) -> None:
    """A rank; not torchrun, the spawned worker of a loader, resource trackers, or what a rank starts.
    What it starts before it trains itself may be a rank, but only by joining a process group."""
    for folder, module, text in (("own", "sitecustomize", WITNESS), ("empty", "torch", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{module}.py").write_text(text)
    script, witness = tmp_path / "train.py", tmp_path / "witness"
    script.write_text(RANK)
    variables = {"WITNESS": str(witness), "BEFORE": BEFORE, "EMPTY_TORCH": str(tmp_path / "empty")}
    environ = recording_environment({"PYTHONPATH": str(tmp_path / "own"), **variables})
    ended = torchrun(str(script), ranks=1, directory=tmp_path / "boxes", **environ)
    assert ended.returncode == 0, ended.stderr
    assert boxes(tmp_path) == ["boxes/job/0.blackbox"]
    witnessed = witness.read_text().splitlines()
    awake = sorted(line.removeprefix("True ") for line in witnessed if line.startswith("True"))
    assert awake == [repr(f"-c {BEFORE}"), repr(f"-u {script}")]
    others = "".join(line for line in witnessed if line.startswith("False"))
    assert "-m torch.distributed.run" in others and "-c import torch, os" in others


def forked(arguments: Sequence[str], directory: Path, **variables: str) -> str:
    """Run a process that has imported torch below zero-code recording to its end. Returns what it printed."""
    environ = recording_environment({**os.environ, "RANKWATCH_DIR": str(directory), **variables})
    return shared_ranks(recorded=True).run_alone(arguments, environ, log=directory / "log")


def test_ranks_without_a_launcher(tmp_path: Path) -> None:
    """A script that starts its ranks itself: they are recorded, the script is not."""
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    forked([str(script)], tmp_path)
    methods = ("fork", "forkserver", "spawn")
    assert boxes(tmp_path) == [f"{method}/{rank}.blackbox" for method in methods for rank in (0, 1)]
    for method in methods:
        assert header(tmp_path / method / "1.blackbox").identity.world_size == 2


@pytest.mark.parametrize("first", ["start", "group"])
def test_explicit_hooks_win(first: str, tmp_path: Path) -> None:
    """A script that calls `rankwatch.start` is recorded as it asks, before or after its process group."""
    calls = [f"dist.init_process_group('gloo', init_method='file://{tmp_path}/store', rank=0, world_size=1)"]
    calls.insert(first == "group", "run = rankwatch.start(run='own')")
    code = "import torch, torch.distributed as dist, rankwatch\n" + "\n".join(calls)
    code += "\nwith run:\n    with run.step(): run.scalar('loss', 1.0)\n"
    printed = forked(["-c", code], tmp_path)
    assert boxes(tmp_path) == ["own/0.blackbox"]
    assert printed.count("zero-code recording stands down") == (first == "group")


def test_helper_script(tmp_path: Path) -> None:
    """A rank that imports torch and trains nothing leaves no file."""
    code = "import sys, torch; torch.nn.Linear(2, 2)(torch.ones(2)); print(*sys.modules)"
    assert "rankwatch.automatic.installing" in forked(["-c", code], tmp_path, RANK="0", WORLD_SIZE="1")
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


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
    poll(lambda: server.status(ranks[1]) is not None, 100.0, "end of rank 1")
    os.kill(ranks[0], signal.SIGTERM)
    poll(lambda: server.status(ranks[0]) is not None, 100.0, "end of rank 0")
    verdict = diagnose_run(tmp_path / "job")
    assert verdict.why.startswith(why), verdict.why
    assert {each["rank"]: each["state"] for each in verdict.ranks_seen}[0] == "terminated"
