"""A job of two nodes whose ranks fail twice: what its agents send to a receiver is one trace of the run.

Each node is a network namespace with its own torchrun, and has its own agent. In the first attempt a rank of
the second node fails, in the second one of the first. One agent is killed, and runs again before the third.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.agent.process import AgentProcess, agent_process, until
from support.servers.netns import Switch, switch
from support.servers.prometheus import get_json, prometheus, require
from support.servers.spans import Received, SpanReceiver, check_traces, span_receiver
from support.training.traced import train

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

NODES = {"node-a": 2, "node-b": 1}
"""Ranks of each node."""
RANKS = sum(NODES.values())
STEPS = 6
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRAINER = f"""
import os, sys, time, rankwatch
from pathlib import Path
with rankwatch.start() as run:
    rank, attempt = int(os.environ["RANK"]), run.identity.attempt
    met = Path(sys.argv[1], str(attempt))
    def meet(place):
        met.joinpath(f"{{place}} {{rank}}").touch()
        while len([*met.glob(f"{{place}} *")]) < {RANKS}:  # a rank that is left alone hangs, as in NCCL
            time.sleep(0.01)
    met.mkdir(exist_ok=True)
    while attempt == 2 and not Path(sys.argv[1], "go").exists():
        time.sleep(0.01)
    for number in range({STEPS}):
        with run.step(number):
            with run.phase("forward"):
                time.sleep(0.01)
            meet(number)
        if number == {STEPS} // 2 and (attempt, rank) in ((0, 2), (1, 0)):
            raise RuntimeError("no luck")
    with run.checkpoint("save", step=number) as save, save.stage("write"):
        time.sleep(0.01)
    meet("end")
"""
"""What torchrun starts; without torch, which nine processes would import."""


def test_two_nodes_and_three_attempts(tmp_path: Path) -> None:
    """Every parent is present and no id comes twice; all ranks agree on the number of each attempt."""
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    with span_receiver() as receiver, switch(tuple(NODES)) as net:

        def agent(node: str) -> AbstractContextManager[AgentProcess]:
            (tmp_path / node).mkdir(exist_ok=True)
            return agent_process(
                tmp_path / node, "--node", node, "--cluster", "test",
                "--collectors", "ranks,incidents,traces", "--traces-endpoint", receiver.url,
                "--traces-one-in", "1", "--state-directory", str(tmp_path / f"state-{node}"),
            )  # fmt: skip

        with agent("node-b"):
            with agent("node-a"):
                jobs = [_torchrun(net, node, tmp_path, script) for node in NODES]
                until(lambda: bool(receiver.named("run.started")), "the run is seen")
            with agent("node-a"):
                (tmp_path / "go").touch()
                for job in jobs:
                    assert job.wait(timeout=180) == 0, (tmp_path / "node-a.log").read_text()[-3000:]
                until(lambda: bool(receiver.named("run")), "the span of the run has arrived")
                until(lambda: len(_last_steps(receiver)) == RANKS * STEPS, "all last steps are here")
    spans = receiver.spans
    check_traces(spans)
    counts = Counter(each.name for each in spans)
    assert (counts["run"], counts["run.started"], counts["attempt"]) == (1, 1, 3)
    attempts = sorted(receiver.named("attempt"), key=lambda each: each.attributes["rankwatch.attempt"])
    assert [each.attributes["rankwatch.attempt"] for each in attempts] == [0, 1, 2]
    assert attempts[2].attributes["rankwatch.result"] == "success"
    in_run = [each for each in spans if each.trace == receiver.named("run")[0].trace]
    assert {each.name for each in in_run} >= {"run", "attempt", "heartbeat", "checkpoint.save.write"}
    last = _last_steps(receiver)
    assert set(Counter(each.trace for each in last).values()) == {RANKS}
    assert len({each.trace for each in last}) == STEPS
    assert receiver.named("run")[0].links == ((TRACEPARENT[3:35], TRACEPARENT[36:52]),)


def _last_steps(receiver: SpanReceiver) -> list[Received]:
    return [each for each in receiver.named("step") if each.attributes["rankwatch.attempt"] == 2]


def _torchrun(net: Switch, node: str, directory: Path, script: Path) -> subprocess.Popen[bytes]:
    first, *_ = NODES
    command = [
        *net.nodes[node].command, sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
        f"--nproc-per-node={NODES[node]}", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=traced",
        f"--rdzv-endpoint={net.address(first)}:29400", "--monitor-interval=0.1",
        f"--local-addr={net.address(node)}", f"--rdzv-conf=is_host={int(node == first)}", str(script),
        str(directory),
    ]  # fmt: skip
    environ = {
        **os.environ, "RANKWATCH_DIR": str(directory / node / "blackboxes"), "RANKWATCH_SUMMARY": "0",
        "OMP_NUM_THREADS": "1", "TRACEPARENT": TRACEPARENT,
    }  # fmt: skip
    with (directory / f"{node}.log").open("wb") as log:
        return subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)


def test_prometheus_keeps_exemplars(tmp_path: Path) -> None:
    """A real Prometheus takes the exemplars of a scrape, and they name spans that a receiver has."""
    require("prometheus")
    with span_receiver() as receiver:
        flags = ("--cluster", "test", "--collectors", "ranks,traces", "--traces-endpoint", receiver.url)
        state = ("--traces-one-in", "1", "--state-directory", str(tmp_path / "state"))
        with agent_process(tmp_path, *flags, *state) as agent:
            train(tmp_path / "blackboxes", steps=20, RANKWATCH_ATTEMPT="1")
            until(lambda: bool(receiver.named("step")), "a step is sent")
            config = {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                "scrape_configs": [
                    {"job_name": "rankwatch", "static_configs": [{"targets": [agent.address]}]}
                ],
            }
            with prometheus(config, tmp_path, ("--enable-feature=exemplar-storage",)) as url:
                query = "query=rankwatch_step_duration_seconds_bucket&start=0&end=4294967296"
                asked = f"{url}/api/v1/query_exemplars?{query}"
                until(lambda: bool(get_json(asked)["data"]), "an exemplar is stored")
                stored = [
                    each["labels"] for series in get_json(asked)["data"] for each in series["exemplars"]
                ]
    sent = {(each.trace, each.span) for each in receiver.spans}
    assert {(each["trace_id"], each["span_id"]) for each in stored} <= sent
