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
from support.jobs.forked_ranks import shared_ranks
from support.paths import SUPPORT
from support.servers.prometheus import reserved_port
from support.training.blackbox import name_of, now, of_kind

pytestmark = pytest.mark.process

pytest.importorskip("torch")
LOOP = str(SUPPORT / "jobs" / "ddp_loop.py")
STEPS = 4


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "RANKWATCH_DIR": str(tmp_path), "RANKWATCH_RUN": "job"}


def test_ddp_job(tmp_path: Path, environ: dict[str, str]) -> None:
    """Every collective is recorded once, with its group, its size and if the caller blocks. This includes
    the collectives of DDP's C++ reducer."""
    log = tmp_path / "log"
    assert shared_ranks().run([LOOP], environ, ranks=2, log=log) == [0, 0], log.read_text()
    assert "rankwatch" not in log.read_text(), log.read_text()
    for rank in range(2):
        path = tmp_path / "job" / f"{rank}.blackbox"
        seen = Counter(_collectives(path))
        assert seen["all_reduce", "default_pg", 8 * 9 * 4, False] == STEPS  # DDP: weights and bias
        assert seen["all_reduce", "pairs", 40, _has_async_argument("allreduce_")] == STEPS
        assert seen["broadcast", "default_pg", 40, True] == STEPS
        assert seen["all_gather", "default_pg", 20, _has_async_argument("allgather_")] == STEPS
        assert seen["all_reduce", "default_pg", 12, False] == STEPS
        assert sum(count for (name, *_), count in seen.items() if name == "barrier") == 1
        assert now(path).errors == 0


def _has_async_argument(operator: str) -> bool:
    """True if the operator's arguments show if the caller blocks. Before torch 2.8 few operators do."""
    import torch

    arguments = getattr(torch.ops.c10d, operator).default._schema.arguments
    return bool({"async_op", "asyncOp"} & {each.name for each in arguments})


def test_killed_rank(tmp_path: Path, environ: dict[str, str]) -> None:
    """Its peer ends by an exception of gloo, never by a crash of rankwatch."""
    log = tmp_path / "log"
    assert shared_ranks().run([LOOP, "kill"], environ, ranks=2, log=log) == [1, -9], log.read_text()
    assert "terminate called" not in log.read_text()


def _collectives(path: Path) -> list[tuple[str, str, int, bool]]:
    found = []
    for each in of_kind(path, RecordKind.COLLECTIVE):
        size, _, group, flags, _ = map(int, each.payload)
        assert each.start <= each.end
        assert not flags & layout.FAILED
        found.append((each.name, name_of(path, group), size, bool(flags & layout.BLOCKING)))
    return found


def test_exit_with_collective_in_flight(tmp_path: Path, environ: dict[str, str]) -> None:
    """The exit status does not change. If the collective failed after the interpreter's end, its callback
    would abort the process."""
    with reserved_port() as port:
        job = {**environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        peer = [*shared_ranks().start_some([LOOP, "exit"], job, ranks=range(1, 2), log=tmp_path / "log")]
        done = subprocess.run(
            [sys.executable, LOOP, "exit"],
            env={**job, "RANK": "0", "LOCAL_RANK": "0"},
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        shared_ranks().kill(peer)
    assert done.returncode == 3, done.stderr
    assert "terminate called" not in done.stderr


def test_compiled_model(tmp_path: Path, environ: dict[str, str]) -> None:
    """torch.compile neither compiles the hook nor warns about it. A sparse tensor is no error either."""
    code = """
import torch, torch.distributed as dist, rankwatch
from rankwatch.blackbox.layout import Now
torch._logging.set_logs(graph_breaks=True)
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
"""
    log = tmp_path / "log"
    assert shared_ranks().run(["-c", code], environ, ranks=1, log=log) == [0], log.read_text()
    assert "async_op" in log.read_text()
    assert "rankwatch/collectives/" not in log.read_text()
    assert len(of_kind(tmp_path / "r" / "0.blackbox", RecordKind.COLLECTIVE)) == 4
