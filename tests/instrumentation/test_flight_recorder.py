"""The worker server of a real torch: it answers, and it never keeps a trainer from leaving."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch.flight_recorder import ask_for_timing, records_all_backends, reserve_entries
from rankwatch_agent.training.flight_recorder.ask import FlightRecorderClient
from rankwatch_agent.training.flight_recorder.parse import Dump
from support.agent.process import until
from support.jobs.torch_release import NO_GLOO_RECORDER, serves_gloo_recorder

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "decided",
    [
        {"TORCH_NCCL_ENABLE_TIMING": "0"},
        {"NCCL_ENABLE_TIMING": "0"},
        {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        {"RANKWATCH_NCCL_TIMING": "0"},
        {"RANKWATCH_NCCL_TIMING": "False"},
    ],
)
def test_timing_is_not_asked_for_where_it_hurts_or_is_not_wanted(decided: dict[str, str]) -> None:
    """One hardware queue, or a word of the user's."""
    env = dict(decided)
    ask_for_timing(env)
    assert env == decided


@pytest.mark.parametrize("found", [{}, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, {"RANKWATCH_NCCL_TIMING": "1"}])
def test_timing_is_asked_for_elsewhere(found: dict[str, str]) -> None:
    """By PyTorch's own variable; stacks are left alone."""
    env = dict(found)
    ask_for_timing(env)
    assert env == {**found, "TORCH_NCCL_ENABLE_TIMING": "1"}


@pytest.mark.e2e
def test_without_a_gpu_nothing_is_asked_of_nccl(tmp_path: Path) -> None:
    """The environment of a trainer on CPU stays as it was."""
    code = (
        "import os, torch, rankwatch\n"
        "torch.cuda.is_available = lambda: False\n"
        "rankwatch.start(run='r').finish()\nprint('TORCH_NCCL_ENABLE_TIMING' in os.environ)\n"
    )
    done = python(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\n")


def python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RANKWATCH_DIR": str(directory), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.e2e
def test_a_run_that_ends_at_once_leaves_at_once(tmp_path: Path) -> None:
    """torch loses a shutdown that comes before its server accepts; twenty in a row all end."""
    code = (
        "import torch, rankwatch\n"
        "for each in range(20): rankwatch.start(run=f'r{each}', collectives=False).finish()\n"
    )
    done = python(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("*/*.sock"))


@pytest.mark.e2e
def test_a_forked_child_that_leaves_in_order_does_not_abort(tmp_path: Path) -> None:
    """The server's thread is not in the child; its destructor would end the process."""
    code = (
        "import os, sys, torch, rankwatch\n"
        "run = rankwatch.start(run='r')\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(7)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "run.finish()\nprint(status)\n"
    )
    done = python(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "7\n")


def pull_when_complete(client: FlightRecorderClient) -> Dump:
    """What gloo's recorder says once its last collective is complete: the backend notes that after the caller
    goes on. A torch built with CUDA serves NCCL's recorder too, empty here."""
    replies: dict[str, Dump] = {}

    def complete() -> bool:
        replies.update({name: client.parse(body) for name, body in client.ask().items()})
        (status,) = replies["fr_trace_json"].pg_status.values()
        return (status.last_enqueued_collective, status.last_completed_collective) == (5, 5)

    until(complete, "five collectives are complete")
    return replies["fr_trace_json"]


@pytest.mark.parametrize(
    ("of_all_backends", "variable"), [(True, "TORCH_FR_BUFFER_SIZE"), (False, "TORCH_NCCL_TRACE_BUFFER_SIZE")]
)
def test_a_ring_is_asked_for_by_the_name_that_this_torch_reads(of_all_backends: bool, variable: str) -> None:
    """Unless somebody has asked, by either name."""
    env: dict[str, str] = {}
    reserve_entries(env, of_all_backends=of_all_backends)
    assert env == {variable: "2000"}
    for asked in ({variable: "7"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}):
        env = dict(asked)
        reserve_entries(env, of_all_backends=of_all_backends)
        assert env == asked


def test_the_name_of_the_ring_is_one_that_the_library_of_this_torch_holds() -> None:
    """A variable that torch does not read would leave a recorder without entries, and nobody told."""
    env: dict[str, str] = {}
    reserve_entries(env, of_all_backends=records_all_backends())
    (variable,) = env
    libraries = Path(torch.__file__).with_name("lib").glob("libtorch_c*.so")
    assert any(_holds(each, variable.encode()) for each in libraries)


def _holds(library: Path, text: bytes) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0


@pytest.mark.e2e
@pytest.mark.skipif(not serves_gloo_recorder(), reason=NO_GLOO_RECORDER)
def test_the_flight_recorder_of_a_real_rank_is_read(tmp_path: Path) -> None:
    """Last enqueued and completed of a gloo group, by its name."""
    code = (
        "import os, sys, torch, torch.distributed as dist, rankwatch\n"
        "os.environ |= {'RANK': '0', 'WORLD_SIZE': '1', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '0'}\n"
        "run = rankwatch.start(run='r')\n"
        "store = dist.HashStore()\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "for _ in range(5): dist.all_reduce(torch.ones(4))\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "dist.destroy_process_group()\n"
    )
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "ready\n" in iter(process.stdout.readline, "")  # gloo of torch 2.8 says something before it
        client = FlightRecorderClient(tmp_path / "r" / "0.sock")
        reply = pull_when_complete(client)
    assert {entry.process_group for entry in reply.entries} == {("0", "default_pg")}
