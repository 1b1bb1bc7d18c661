"""Calls inside a function that torch.compile compiles: no graph break, no record, no effect on the result."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.compiling import is_compiling
from support.jobs.forked_ranks import shared_ranks
from support.training.blackbox import box, read

pytest.importorskip("torch")

FUNCTIONS = """
def phase(x):
    with run.phase("forward"):
        return x * 2
def nested(x):
    with run.phase("forward"), run.phase("communication"):
        y = x * 2
    with run.phase("backward"):
        return y
def step(x):
    with run.step():
        return x * 2
def numbered_step(x):
    with run.step(7):
        return x * 2
def plain_step(x):
    run.begin_step(); y = x * 2; run.end_step()
    return y
def plain_phase(x):
    run.begin_phase("forward"); y = x * 2; run.end_phase("forward")
    return y
def evaluation(x):
    with run.evaluation():
        return x * 2
def scalar(x):
    y = x * 2
    run.scalar("loss", y.sum()); run.scalar("learning_rate", 0.1)
    return y
def work(x):
    run.work(tokens=64, samples=2)
    return x * 2
def checkpoint(x):
    with run.checkpoint("save", step=3) as operation:
        with operation.stage("write"):
            y = x * 2
        operation.bytes = 4
    return y
def life(x):
    run.resumed(3)
    return x * 2
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.run = run
    def forward(self, x):
        with self.run.phase("forward"):
            return x * 2
functions = [phase, nested, step, numbered_step, plain_step, plain_phase, evaluation, scalar, work,
             checkpoint, life, Model()]
"""
CHECKS = """
for function in functions:
    torch._dynamo.reset()
    explained = torch._dynamo.explain(function)(torch.ones(3))
    assert explained.graph_break_count == 0, (function, explained.break_reasons)
    torch._dynamo.reset()
    result = torch.compile(function, backend="eager", fullgraph=True)(torch.ones(3))
    assert result.tolist() == [2.0, 2.0, 2.0], function
with run.step():
    with run.phase("forward"):
        torch.compile(phase, backend="eager")(torch.ones(3))
    run.scalar("loss", 1.0)
run.finish()
with run.phase("forward"), run.phase("of any name"):
    pass
"""
START = """
import torch, rankwatch
run = rankwatch.start(run="r", flight_recorder=False)
import torch._dynamo
"""


def forked(code: str, environ: Mapping[str, str], directory: Path) -> None:
    """Run it in a process that has loaded the compiler."""
    log = directory / "log"
    assert shared_ranks().run(["-c", code], environ, ranks=1, log=log) == [0], log.read_text()


@pytest.mark.process
@pytest.mark.parametrize("first", ["start", "compiler"])
def test_compiled_calls(tmp_path: Path, first: str) -> None:
    """No public call breaks a graph, whether the compiler is loaded before or after the start of the run. The
    calls around a compiled function record as always."""
    code, environ = START + FUNCTIONS + CHECKS, {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    if first == "start":
        done = subprocess.run([sys.executable, "-c", code], env=environ, check=False)
        assert done.returncode == 0
    else:
        forked(code, environ, tmp_path)
    kinds = [RecordKind.PHASE, RecordKind.SCALAR, RecordKind.STEP]
    assert [each.kind for each in read(box(tmp_path))] == [
        RecordKind.LIFECYCLE,
        *kinds,
        RecordKind.LIFECYCLE,
    ]


@pytest.mark.process
def test_second_run(tmp_path: Path) -> None:
    """Each run of a process stays out of graphs, and the compiler keeps no black box of an ended one."""
    code = """
import gc, torch, weakref, rankwatch
for name in ("first", "second"):
    run = rankwatch.start(run=name, flight_recorder=False, collectives=False)
    def f(x):
        with run.phase("forward"): return x * 2
    torch.compile(f, backend="eager", fullgraph=True)(torch.ones(3))
    run.finish(); written = weakref.ref(run._writer)
    torch._dynamo.reset(); del run, f; gc.collect()
    assert written() is None
"""
    forked(code, {**os.environ, "RANKWATCH_DIR": str(tmp_path)}, tmp_path)


def test_outside() -> None:
    assert is_compiling() is False
