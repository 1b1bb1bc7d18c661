"""A real gloo job in which one rank sleeps: the agent keeps evidence, and the diagnosis names the rank."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch_agent.agent import Agent
from rankwatch_agent.collectors import build_collectors, build_shared
from rankwatch_agent.runtime.config import AgentConfig
from support.agent.process import page, until

pytestmark = pytest.mark.process

RANKS = 3
STANDS = 'rankwatch_incident_open{kind="stall",node="n1",run="job"} 1.0'
JOB = """
import os, sys, time, torch, torch.distributed as dist, rankwatch
asleep, ranks, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
print("ready", flush=True)
rank = next((rank for rank in range(ranks) if not os.fork()), None)
if rank is None:
    for _ in range(ranks):
        os.wait()
    sys.exit()
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
run = rankwatch.start(target_steps=1000)
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
with run:
    for step in range(1000):
        with run.step():
            with run.phase("data_wait"):
                time.sleep(1000.0 if step == 20 and rank == asleep else 0.01)
            with run.phase("communication"):
                dist.all_reduce(torch.ones(10))
"""
"""Its ranks are forked from one process that has imported PyTorch: that takes seconds."""


@contextmanager
def job(directory: Path, asleep: int) -> Iterator[None]:
    """A job of which one rank falls asleep; killed at the end."""
    run = {"RANKWATCH_DIR": str(directory), "RANKWATCH_RUN": "job", "OMP_NUM_THREADS": "1"}
    environ = {**os.environ, **run, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, "-c", JOB, f"{asleep}", f"{RANKS}", f"{directory.with_name('rendezvous')}"]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_hung_rank_is_named_with_its_phase(tmp_path: Path) -> None:
    """By the metrics and the verdict. Its flight recorder and those of its victims are kept."""
    asleep = random.randrange(RANKS)
    config = AgentConfig(
        listen="127.0.0.1:0",
        node="n1",
        directory=tmp_path / "boxes",
        collectors=("ranks", "incidents", "evidence"),
        evidence_directory=str(tmp_path / "evidence"),
        state_directory="",
        stall_seconds=2.0,
    )
    shared = build_shared(config)
    collectors = build_collectors(config, shared)
    labels = f'node="n1",phase="data_wait",rank="{asleep}",run="job",state="hang"'
    named = f"rankwatch_incident_root_cause{{{labels}}} 1.0"
    with job(config.directory, asleep), Agent(config, collectors, history=shared.history) as agent:
        # One wait for each stage: all of them take their time on a busy machine.
        for what, line in {"a rank steps": "\nrankwatch_step{", "the run stands": STANDS}.items():
            until(lambda line=line: line in page(agent.address), what)
        until(lambda: any((tmp_path / "evidence").glob("*")), "evidence is being kept")
        until(lambda: named in page(agent.address), "the rank is named")
        assert page(agent.address).count("\nrankwatch_incident_root_cause{") == 1
    (bundle,) = (tmp_path / "evidence").iterdir()
    verdict = json.loads((bundle / "manifest.json").read_text())["verdict"]
    assert verdict == {"state": "hang", "ranks": [asleep]}
    recorders = sorted(path.name for path in (bundle / "flight_recorder").iterdir())
    assert recorders == [f"{rank}.json" for rank in range(RANKS)]
