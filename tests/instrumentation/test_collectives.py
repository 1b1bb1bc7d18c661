"""Collectives of a real gloo job, as the hook records them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from support.jobs.torchrun import torchrun
from support.paths import SUPPORT
from support.training.blackbox import of_kind

pytestmark = pytest.mark.e2e

pytest.importorskip("torch")
LOOP = str(SUPPORT / "jobs" / "ddp_loop.py")
STEPS = 4


def test_ddp_job(tmp_path: Path) -> None:
    """Every collective is recorded once, with its group, its size and if the caller blocks. This includes
    the collectives of DDP's C++ reducer."""
    done = torchrun(LOOP, ranks=2, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rankwatch" not in done.stderr, done.stderr
    for rank in range(2):
        path = tmp_path / "job" / f"{rank}.blackbox"
        seen = Counter(_collectives(path))
        assert seen["all_reduce", "default_pg", 8 * 9 * 4, False] == STEPS  # DDP: weights and bias
        assert seen["all_reduce", "pairs", 40, _has_async_argument("allreduce_")] == STEPS
        assert seen["broadcast", "default_pg", 40, True] == STEPS
        assert seen["all_gather", "default_pg", 20, _has_async_argument("allgather_")] == STEPS
        assert seen["all_reduce", "default_pg", 12, False] == STEPS
        assert sum(count for (name, *_), count in seen.items() if name == "barrier") == 1
        reader = Reader(path)
        assert reader.now().errors == 0
        reader.close()


def _has_async_argument(operator: str) -> bool:
    """True if the operator's arguments show if the caller blocks. Before torch 2.8 few operators do."""
    import torch

    arguments = getattr(torch.ops.c10d, operator).default._schema.arguments
    return bool({"async_op", "asyncOp"} & {each.name for each in arguments})


def test_killed_rank(tmp_path: Path) -> None:
    """Its peers end by an exception of gloo or by torchrun's SIGTERM, never by a crash of rankwatch."""
    done = torchrun(LOOP, "kill", ranks=2, directory=tmp_path)
    assert done.returncode == 1
    assert "exitcode  : -9" in done.stderr
    assert "exitcode  : -6" not in done.stderr
    assert "exitcode  : -11" not in done.stderr
    assert "terminate called" not in done.stderr


def _collectives(path: Path) -> list[tuple[str, str, int, bool]]:
    reader = Reader(path)
    found = []
    for each in of_kind(path, RecordKind.COLLECTIVE):
        size, _, group, flags, _ = (int(value) for value in each.payload)
        assert each.start <= each.end
        assert not flags & layout.FAILED
        found.append((each.name, reader.name(group), size, bool(flags & layout.BLOCKING)))
    reader.close()
    return found


def test_exit_with_collective_in_flight(tmp_path: Path) -> None:
    """The exit status does not change. If the collective failed after the interpreter's end, its callback
    would abort the process."""
    done = torchrun(LOOP, "exit", ranks=2, directory=tmp_path)
    assert "exitcode  : 3 " in done.stderr
    assert "exitcode  : -6" not in done.stderr
    assert "terminate called" not in done.stderr


def test_compiled_model(tmp_path: Path) -> None:
    """torch.compile neither compiles the hook nor warns about it. A sparse tensor is no error either."""
    code = """
import logging, os, sys, torch, torch.distributed as dist, rankwatch
from rankwatch.blackbox.layout import Now
run = rankwatch.start(run="r", flight_recorder=False)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def reduce(x):
    dist.all_reduce(x, async_op=True).wait()
    return x + 1
compiled = torch.compile(reduce, backend="eager")
compiled(torch.ones(3)), compiled(torch.ones(4))
from torch.distributed import _functional_collectives as functional
def gather(x):
    return functional.all_reduce(x, "sum", dist.group.WORLD) + 1
torch.compile(gather, backend="eager", fullgraph=True)(torch.ones(5))
dist.all_reduce(torch.sparse_coo_tensor([[0, 2]], torch.ones(2), (4,)))
assert run._writer.integers[Now.ERRORS] == 0
sys.stderr.flush()
os._exit(0)  # past the interpreter's end, where threads of torch's gloo sometimes abort, without us too
"""
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path), "TORCH_LOGS": "graph_breaks"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "async_op" in done.stderr
    assert "rankwatch/collectives/" not in done.stderr
    assert len(of_kind(tmp_path / "r" / "0.blackbox", RecordKind.COLLECTIVE)) == 4
