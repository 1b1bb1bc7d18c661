"""Calls inside a function that torch.compile compiles: no graph break, no record, no effect on the result."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.compiling import is_compiling
from support.processes.python import python
from support.training.blackbox import read

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
import gc, torch, weakref, rankwatch
for name in ("before", "after"):
    run = rankwatch.start(run=name, flight_recorder=False, collectives=name == "before")
    import torch._dynamo
    exec(FUNCTIONS)
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
    written = weakref.ref(run._writer)
torch._dynamo.reset()
del run, functions, function, explained, result, Model
gc.collect()
assert written() is None
"""


@pytest.mark.process
def test_compiled_calls(tmp_path: Path) -> None:
    """No public call breaks a graph, whether the compiler is loaded before or after the start of the run. The
    calls around a compiled function record as always. The compiler keeps no black box of an ended run."""
    done = python(f"FUNCTIONS = {FUNCTIONS!r}\n{CHECKS}", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    ends, inside = [RecordKind.LIFECYCLE], [RecordKind.PHASE, RecordKind.SCALAR, RecordKind.STEP]
    for run in ("before", "after"):
        kinds = [each.kind for each in read(tmp_path / run / "0.blackbox")]
        assert kinds == ends + inside + ends


def test_outside() -> None:
    assert is_compiling() is False
