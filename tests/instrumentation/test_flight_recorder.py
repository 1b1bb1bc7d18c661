"""The worker server of a real torch: it answers, and it never keeps a trainer from exiting."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from rankwatch.flight_recorder import enable_nccl_timing, records_all_backends, reserve_entries
from rankwatch_agent.training.flight_recorder.ask import FlightRecorderClient
from rankwatch_agent.training.flight_recorder.parse import Dump
from support.agent.process import until
from support.jobs.forked_ranks import shared_ranks
from support.jobs.torchrun import NO_GLOO_RECORDER, serves_gloo_recorder
from support.processes.python import python

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("found", "enabled"),
    [
        ({"TORCH_NCCL_ENABLE_TIMING": "0"}, False),
        ({"NCCL_ENABLE_TIMING": "0"}, False),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, False),
        ({"RANKWATCH_NCCL_TIMING": "0"}, False),
        ({"RANKWATCH_NCCL_TIMING": "False"}, False),
        ({}, True),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, True),
        ({"RANKWATCH_NCCL_TIMING": "1"}, True),
    ],
)
def test_timing(found: dict[str, str], enabled: bool) -> None:
    """PyTorch's own variable enables timing, unless there is a single hardware queue or the user has decided.
    No other variable changes."""
    env = dict(found)
    enable_nccl_timing(env)
    assert env == {**found, **({"TORCH_NCCL_ENABLE_TIMING": "1"} if enabled else {})}


@pytest.mark.process
def test_no_timing_without_gpu(tmp_path: Path) -> None:
    """NCCL's variable stays unset in a trainer on CPUs."""
    code = (
        "import os, torch, rankwatch\n"
        "torch.cuda.is_available = lambda: False\n"
        "rankwatch.start(run='r', rank=0).finish()\nprint('TORCH_NCCL_ENABLE_TIMING' in os.environ)\n"
    )
    environ = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    assert shared_ranks().run_alone(["-c", code], environ, log=tmp_path / "log") == "False\n"


@pytest.mark.process
def test_run_that_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty short runs in a row all end, although torch loses a shutdown before its server accepts. torch's
    lines about its server are not printed."""
    code = (
        "import torch, rankwatch\n"
        "for each in range(20): rankwatch.start(run=f'r{each}', rank=0, collectives=False).finish()\n"
    )
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    done = python(code, directory=tmp_path, PYTHONWARNINGS="error")
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("*/*.sock"))


@pytest.mark.process
def test_exit_of_forked_child(tmp_path: Path) -> None:
    """A forked child exits normally. It has no server thread, and the server's destructor would abort it."""
    code = (
        "import os, sys, torch, rankwatch\n"
        "run = rankwatch.start(run='r', rank=0)\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(7)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "run.finish()\nprint(status)\n"
    )
    environ = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    assert shared_ranks().run_alone(["-c", code], environ, log=tmp_path / "log") == "7\n"


def pull_when_complete(client: FlightRecorderClient, count: int) -> Dump:
    """The dump of gloo's recorder once `count` collectives are complete.

    The backend records a completion after the caller continues. A torch built with CUDA also serves NCCL's
    recorder, which is empty here.
    """
    replies: dict[str, Dump] = {}

    def complete() -> bool:
        replies.update({name: client.parse(body) for name, body in client.ask().items()})
        states = replies["fr_trace_json"].pg_status.values()
        seen = [(each.last_enqueued_collective, each.last_completed_collective) for each in states]
        return seen == [(count, count)]

    until(complete, f"{count} collectives are complete")
    return replies["fr_trace_json"]


@pytest.mark.parametrize(
    ("of_all_backends", "variable"), [(True, "TORCH_FR_BUFFER_SIZE"), (False, "TORCH_NCCL_TRACE_BUFFER_SIZE")]
)
def test_ring_size(of_all_backends: bool, variable: str) -> None:
    """The size is set by the name that this torch reads, unless the user has set it by either name."""
    env: dict[str, str] = {}
    reserve_entries(env, of_all_backends=of_all_backends)
    assert env == {variable: "2000"}
    for given in ({variable: "7"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}):
        env = dict(given)
        reserve_entries(env, of_all_backends=of_all_backends)
        assert env == given


def test_ring_variable_of_this_torch() -> None:
    """Torch's library contains the variable's name. An unread variable would silently leave an empty
    recorder."""
    env: dict[str, str] = {}
    reserve_entries(env, of_all_backends=records_all_backends())
    (variable,) = env
    libraries = Path(torch.__file__).with_name("lib").glob("libtorch_c*.so")
    assert any(_holds(each, variable.encode()) for each in libraries)


def _holds(library: Path, text: bytes) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0


@pytest.mark.process
@pytest.mark.skipif(not serves_gloo_recorder(), reason=NO_GLOO_RECORDER)
def test_real_rank(tmp_path: Path) -> None:
    """The agent's client reads the last enqueued and completed collective of a gloo group, and its name."""
    code = (
        "import os, sys, torch, torch.distributed as dist, rankwatch\n"
        "os.environ |= {'RANK': '0', 'WORLD_SIZE': '1', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '0'}\n"
        "run = rankwatch.start(run='r', rank=0)\n"
        "store = dist.HashStore()\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "for _ in open(sys.argv[1]): dist.all_reduce(torch.ones(4))\n"
        "dist.destroy_process_group()\n"
    )
    asked = tmp_path / "asked"
    os.mkfifo(asked)
    environ = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    shared_ranks().fork(["-c", code, str(asked)], environ, log=tmp_path / "log")
    client = FlightRecorderClient(tmp_path / "r" / "0.sock", os.geteuid())
    with asked.open("w") as asking:
        for count in range(1, 6):  # one by one: gloo's threads may record two completions in the wrong order
            print(file=asking, flush=True)
            dump = pull_when_complete(client, count)
    assert {entry.process_group for entry in dump.entries} == {("0", "default_pg")}


@pytest.mark.process
def test_log_lines(tmp_path: Path) -> None:
    """torch's lines about its worker server are printed if the user asks for its log."""
    code = "import torch, rankwatch\nrankwatch.start(run='r', rank=0).finish()\n"
    done = python(code, directory=tmp_path, check=True, TORCH_CPP_LOG_LEVEL="INFO")
    assert done.stderr.count("WorkerServer.cpp") == 3


@pytest.mark.process
@pytest.mark.skipif(not serves_gloo_recorder(), reason=NO_GLOO_RECORDER)
def test_beside_the_debug_server(tmp_path: Path) -> None:
    """`torch.distributed.debug` starts a worker server of its own: both answer, and ours outlives it."""
    code = (
        "import sys, urllib.request as web, torch, torch.distributed as dist\n"
        "from pathlib import Path\n"
        "from torch._C._distributed_c10d import _WorkerServer\n"
        "from rankwatch.flight_recorder import FlightRecorderServer\n"
        "from rankwatch.untrusted.folders import Folder\n"
        "from rankwatch_agent.training.flight_recorder.ask import FlightRecorderClient\n"
        "path = Path(sys.argv[1])\n"
        "dist.init_process_group('gloo', init_method=f'file://{path}/store', rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(3))\n"
        "ours, theirs = FlightRecorderServer(Folder.open(path), '0.sock'), _WorkerServer('::', 0)\n"
        "asked = web.Request(f'http://localhost:{theirs.port}/handler/fr_trace_json', method='POST')\n"
        "import os\n"
        "client = FlightRecorderClient(path / '0.sock', os.geteuid())\n"
        "replies = [web.urlopen(asked).read(), client.ask()['fr_trace_json']]\n"
        "theirs.shutdown()\n"
        "replies.append(client.ask()['fr_trace_json'])\n"
        "print([reply.count(b'gloo:all_reduce') for reply in replies])\n"
        "ours.close()\n"
        "dist.destroy_process_group()\n"
    )
    done = python(code, str(tmp_path), TORCH_FR_BUFFER_SIZE="50", no_proxy="localhost")
    assert (done.returncode, done.stdout) == (0, "[1, 1, 1]\n"), done.stderr
