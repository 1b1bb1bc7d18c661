"""The worker server of a real torch: it answers, and it never keeps a trainer from leaving."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch_agent.flight_recorder.client import FlightRecorderClient

pytest.importorskip("torch")


def python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RANKWATCH_DIR": str(directory), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_run_that_ends_at_once_leaves_at_once(tmp_path: Path) -> None:
    """torch loses a shutdown that comes before its server accepts; twenty in a row all end."""
    code = (
        "import torch, rankwatch\n"
        "for each in range(20): rankwatch.start(run=f'r{each}', collectives=False).finish()\n"
    )
    done = python(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("*/*.sock"))


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
        assert process.stdout.readline() == "ready\n"
        reply = FlightRecorderClient(tmp_path / "r" / "0.sock").pull()
    (status,) = reply.pg_status.values()
    assert (status.last_enqueued_collective, status.last_completed_collective) == (5, 5)
    assert {entry.process_group for entry in reply.entries} == {("0", "default_pg")}
