"""What rules need of all ranks of a run on a node: the same as of its single ranks, while they live."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.conventions.metrics import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS
from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from support.training.ranks import go_on, rank, state, values

pytestmark = pytest.mark.process


def _one(collection: Collection, name: str) -> float:
    """The value of a metric of the only run."""
    ((labels, value),) = values(collection, name).items()
    assert labels == ("job",)
    return value


def test_two_ranks(tmp_path: Path, collector: RanksCollector) -> None:
    """Counts, the newest progress, the first and the last start; of the living only, once one has ended."""
    with (
        rank(tmp_path, "steps(9)\nready()", number=0, world=2),
        rank(tmp_path, "ready()\nsteps(9)\nrun.finish()\nready()", number=1, world=2) as second,
    ):
        both = collector.collect()
        go_on(second)
        one = collector.collect()
    assert values(both, "rankwatch_node_ranks") == {("job", "running"): 1.0, ("job", "starting"): 1.0}
    assert state(one) == {"0": "running", "1": "finished"}
    assert values(one, "rankwatch_node_ranks") == {("job", "running"): 1.0, ("job", "finished"): 1.0}
    starts = values(both, "rankwatch_rank_start_timestamp_seconds")
    assert _one(both, "rankwatch_node_first_start_timestamp_seconds") == pytest.approx(min(starts.values()))
    assert _one(both, "rankwatch_node_last_start_timestamp_seconds") == pytest.approx(max(starts.values()))
    assert _one(one, "rankwatch_node_last_start_timestamp_seconds") == pytest.approx(
        starts["job", "0"], abs=0.1
    )
    newest = values(one, "rankwatch_progress_timestamp_seconds")["job", "0"]
    assert _one(one, "rankwatch_node_progress_timestamp_seconds") == pytest.approx(newest, abs=0.1)


def test_timeout_of_all(tmp_path: Path, collector: RanksCollector) -> None:
    """Unknown while it is unknown of one living rank; then the longest."""
    with (
        rank(tmp_path, "steps(30, 0.001)\nready()", number=0, world=2),
        rank(tmp_path, "ready()\nsteps(30, 0.002)\nready()", number=1, world=2) as second,
    ):
        before = collector.collect()
        go_on(second)
        after = collector.collect()
    assert not values(before, "rankwatch_node_progress_timeout_seconds")
    timeouts = values(after, "rankwatch_progress_timeout_seconds")
    assert _one(after, "rankwatch_node_progress_timeout_seconds") == max(timeouts.values())


def test_ended_run(tmp_path: Path, collector: RanksCollector) -> None:
    """Of a run that has ended only counts are left, and nothing of when its ranks started or moved."""
    with rank(tmp_path, "steps(3)\nrun.finish()\nready()"):
        collector.collect()
        ended = collector.collect()
    names = {each.metric.name for each in ended.series if each.metric.name.startswith("rankwatch_node_")}
    assert {"rankwatch_node_ranks", "rankwatch_node_ranks_reporting", "rankwatch_node_steps_total"} <= names
    assert not [each for each in names if "timestamp" in each or "timeout" in each or "gpus" in each]


def test_checkpoints(tmp_path: Path, collector: RanksCollector) -> None:
    """The oldest of the last saves; -1 while one saves for the first time; the newest commit."""
    save = 'with run.checkpoint("save") as it:\n    with it.stage("write"): pass\n{}ready()\n'
    commit = '    with it.stage("commit"): pass\n'
    with (
        rank(tmp_path, "steps(5)\n" + save.format(commit), number=0, world=2),
        rank(tmp_path, 'steps(3)\nit = run.checkpoint("save").begin()\nready()\n', number=1, world=2),
    ):
        collection = collector.collect()
    saved = values(collection, "rankwatch_checkpoint_last_saved_step")
    assert set(saved) == {("job", "0")}
    assert _one(collection, "rankwatch_node_checkpoint_saved_step") == -1.0
    assert _one(collection, "rankwatch_node_checkpoint_saved_timestamp_seconds") == -1.0
    assert _one(collection, "rankwatch_node_checkpoint_committed_step") == saved["job", "0"]
    with rank(tmp_path, "steps(3)\n" + save.format(""), number=1, world=2):
        collector.collect()
        collection = collector.collect()
    saved = values(collection, "rankwatch_checkpoint_last_saved_step")
    assert _one(collection, "rankwatch_node_checkpoint_saved_step") == saved["job", "1"]
    assert not values(collection, "rankwatch_node_checkpoint_committed_step")


_NO_LOSS = "for _ in range(30):\n    with run.step(): pass\n"


def test_reporting(tmp_path: Path, collector: RanksCollector) -> None:
    """Counted is what is exported: a rank without a loss has none."""
    with (
        rank(tmp_path, "steps(30)\nready()", number=0, world=2),
        rank(tmp_path, f"{_NO_LOSS}ready()", number=1, world=2),
    ):
        collector.collect()
        collection = collector.collect()
    found = values(collection, "rankwatch_node_ranks_reporting")
    assert {name: found["job", name] for name in OF_RUNNING_RANKS} == dict.fromkeys(OF_RUNNING_RANKS, 2.0)
    assert found["job", "rankwatch_scalar_nonfinite_total"] == 1.0
    assert {name for _, name in found} <= {*OF_RUNNING_RANKS, *OF_RANKS_THAT_HAD_THEM}


@pytest.mark.parametrize(
    ("code", "reporting", "half"), [(_NO_LOSS, 0.0, set()), ("steps(30)\n", 1.0, {2.0})], ids=["none", "2.0"]
)
def test_loss_of_ended_ranks(tmp_path: Path, code: str, reporting: float, half: set[float]) -> None:
    """That of an ended rank neither makes up for a running one that has none, nor speaks for a large run."""
    collector = RanksCollector(directory=tmp_path, max_single_ranks=1)
    loss = "for _ in range(30):\n    with run.step(): run.scalar('loss', 8.0)\nrun.finish()\nready()"
    with (
        rank(tmp_path, f"{code}ready()", number=0, world=2),
        rank(tmp_path, loss, number=1, world=2),
    ):
        collector.collect()
        collection = collector.collect()
    assert state(collection) == {"0": "running", "1": "finished"}
    found = values(collection, "rankwatch_node_ranks_reporting")
    assert found["job", "rankwatch_steps_total"] == 1.0
    assert found["job", "rankwatch_scalar_nonfinite_total"] == reporting
    assert set(values(collection, "rankwatch_half_loss_trend").values()) == half
    assert len(values(collection, "rankwatch_loss_trend")) == 1 + reporting
