"""Keras `fit` with the callback, on the backends of JAX, TensorFlow and PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import NowBlock
from rankwatch.conventions.vocabulary import Capability, Unseen
from support.training.blackbox import Read, box, now, read

if find_spec("keras") is None:  # its import would need the backend
    pytest.skip("Keras is not installed", allow_module_level=True)
pytestmark = [pytest.mark.frameworks, pytest.mark.process]

SCRIPT = Path(__file__).parents[2] / "support" / "frameworks" / "keras_fit.py"
BATCHES, SLEEP_SECONDS = 6, 0.02


class Trained(NamedTuple):
    """What the process has left."""

    folder: Path
    printed: dict[str, Any]
    backend: str

    def records(self, case: str) -> list[Read]:
        """The black box of one way of training."""
        return read(box(self.folder / case))

    def now(self, case: str) -> NowBlock:
        """Its final state."""
        return now(box(self.folder / case))


@pytest.fixture(scope="module", params=["jax", "tensorflow", "torch"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """All ways of training, in a process of its own: a process has one backend of Keras."""
    pytest.importorskip(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    env = {**os.environ, "KERAS_BACKEND": request.param, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    env.pop("RANKWATCH_DISABLE", None)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rankwatch could not" not in done.stderr, done.stderr
    return Trained(folder, json.loads(done.stdout.splitlines()[-1]), request.param)


def steps(records: list[Read]) -> list[Read]:
    return [each for each in records if each.kind == RecordKind.STEP]


def numbers(records: list[Read]) -> list[float]:
    return [each.payload[0] for each in steps(records)]


def test_fit(trained: Trained) -> None:
    """Every batch is a step; evaluation and checkpoints lie between steps."""
    records = trained.records("fit")
    found = steps(records)
    assert [each.payload for each in found] == [(number, 0) for number in range(2 * BATCHES)]
    between = [each for each in records if each.name == "evaluation" and each.kind == RecordKind.PHASE]
    saves = [each for each in records if each.kind == RecordKind.CHECKPOINT and each.name == "save"]
    assert (len(between), len(saves)) == (2, 2)
    for each in (*between, *saves):
        assert not any(step.start < each.start < step.end for step in found)
    assert trained.now("fit").ended_by == "finished"
    assert box(trained.folder / "fit").parent.name == "fit"


def test_batches(trained: Trained) -> None:
    """The wait for a batch, and its samples. With TensorFlow they are inside of a graph, which is said."""
    records = trained.records("fit")
    if trained.backend == "tensorflow":
        states = trained.now("fit").capabilities
        assert states[Capability.DATA_WAIT] == states[Capability.WORK] == Unseen.COMPILED
        return
    waits = [each for each in records if each.name == "data_wait" and each.kind == RecordKind.PHASE]
    for step in steps(records):
        inside = [each for each in waits if step.start <= each.start <= each.end <= step.end]
        assert sum(each.end - each.start for each in inside) >= 0.9 * SLEEP_SECONDS
    work = [each for each in records if each.kind == RecordKind.WORK]
    assert [(each.name, each.payload[0]) for each in work[: 2 * BATCHES]] == [("samples", 8)] * 2 * BATCHES


def test_same_result(trained: Trained) -> None:
    """Losses and weights are bit for bit those without rankwatch."""
    assert trained.printed["fit"] == trained.printed["plain"]


def test_run_of_script(trained: Trained) -> None:
    """The callback records into the run that the script has started, and the script ends it."""
    records = trained.records("own_run")
    assert numbers(records) == [*range(2 * BATCHES)]
    assert "mine" in [each.name for each in records if each.kind == RecordKind.SCALAR]
    assert trained.now("own_run").ended_by == "finished"


def test_failures(trained: Trained) -> None:
    """A failure of rankwatch never reaches the training."""
    assert trained.printed["unrecorded"] == trained.printed["plain"]


def test_loss(trained: Trained) -> None:
    """The mean of the batches since the last reading is recorded, not that of the epoch as Keras shows it."""
    recorded = [
        each.payload[0]
        for each in trained.records("fit")
        if each.kind == RecordKind.SCALAR and each.name == "loss"
    ]
    sums = [mean * (count % BATCHES + 1) for count, mean in enumerate(trained.printed["means"])]
    expected = [
        (sums[end] - (sums[end - 2] if end % BATCHES > 1 else 0.0)) / 2 for end in range(1, len(sums), 2)
    ]
    assert recorded == pytest.approx(expected, rel=1e-4)


def test_accumulation(trained: Trained) -> None:
    """With `gradient_accumulation_steps` a step is an update of the weights."""
    assert numbers(trained.records("accumulation")) == [0, 1, 2, 3]


def test_resume(trained: Trained) -> None:
    """A run that `BackupAndRestore` continues goes on with its numbers."""
    assert numbers(trained.records("failed")) == [*range(BATCHES)]
    records = trained.records("resumed")
    assert "resumed" in [each.name for each in records if each.kind == RecordKind.LIFECYCLE]
    assert numbers(records) == [*range(BATCHES, 2 * BATCHES)]
    assert next(each for each in records if each.kind == RecordKind.CHECKPOINT).name == "load"


def test_steps_per_execution(trained: Trained) -> None:
    """Several steps in one call are one record, with the number of the last one."""
    if not (trained.folder / "executions").exists():
        pytest.skip("the backend of PyTorch refuses steps_per_execution")
    assert numbers(trained.records("executions")) == [1, 3, 5, 7, 9, 11]
