"""The ranks collector on real black boxes: life, death, restarts, and whatever else lies in the directory."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from rankwatch.conventions.metrics import METRICS
from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from support.training.ranks import faults, go_on, kill, rank, settled, state, values

pytestmark = pytest.mark.process


_OF_OTHER_TESTS = (
    *("flight_recorder", "collective", "nccl", "incident", "rank_gpu_memory", "rank_fingerprint"),
    *("rank_uninterruptible_threads", "run_attempt_end_timestamp", "rank_end_timestamp", "rank_failures"),
    *("loss_improvement", "norm_last_explosion", "instrumentation_device_events_dropped"),
)
"""Parts of the names of metrics of a rank that other tests hold."""


def test_every_rank_metric(tmp_path: Path) -> None:
    """A rank that uses the whole interface gives each declared series once, with the labels declared."""
    code = """
steps(25)
for _ in range(25):
    run.scalar("gradient_norm", 1.0)
run.scalar("gradient_norm", float("inf"))
run.scalar("loss_scale", 65536.0)
with run.checkpoint("save") as operation:
    with operation.stage("write"): operation.bytes = 10
    with operation.stage("commit"): pass
operation = run.checkpoint("load")
operation.begin()
stage = operation.stage("read")
stage.begin()
stage.end(failed=True)
operation.failed("shard 3 is missing")
operation.end()
run.checkpoint("save").begin()
with run.checkpoint("verify"): pass
with run.checkpoint("upload"): pass
with run.evaluation(): pass
run.resumed(7)
run._writer.set_gpu("GPU-1")
with run.step():
    with run.phase("backward"): ready()
"""
    collector = RanksCollector(directory=tmp_path)
    with rank(tmp_path, code):
        collection = settled(
            collector, lambda each: bool(values(each, "rankwatch_outside_step_seconds_total"))
        )
    seen = [(each.metric.name, each.labels) for each in collection.series]
    assert len(seen) == len(set(seen))
    for each in collection.series:
        assert len(each.labels) == len(each.metric.labels), each.metric.name
    declared = {each.name for each in METRICS if "rank" in [str(label) for label in each.labels]}
    others = {name for name in declared if any(part in name for part in _OF_OTHER_TESTS)}
    assert declared - others <= {name for name, _ in seen}


def test_steps_add_up(tmp_path: Path, collector: RanksCollector) -> None:
    """Phases sum to the steps; work, loss and the last target that a framework has told come along."""
    with rank(tmp_path, "run.target(40)\nsteps(10, 0.002)\nrun.finish()\nready()"):
        collection = settled(collector, lambda each: _total(each, "rankwatch_steps_total") == 10)
    phases = values(collection, "rankwatch_step_phase_seconds_total")
    assert sum(phases.values()) == pytest.approx(_total(collection, "rankwatch_step_seconds_total"))
    assert phases["job", "0", "forward"] >= 0.02
    assert values(collection, "rankwatch_work_total") == {("job", "0", "tokens"): 640.0}
    assert values(collection, "rankwatch_scalar") == {("job", "0", "loss"): 2.0}
    assert values(collection, "rankwatch_target_steps") == {("job", "0"): 40.0}
    assert values(collection, "rankwatch_step") == {("job", "0"): 9.0}
    (histogram,) = collection.histograms
    assert histogram.buckets[-1] == (math.inf, 10)


def test_value_that_is_not_finite(tmp_path: Path, collector: RanksCollector) -> None:
    """A store that keeps no NaN still tells that the last value of a scalar is none, until it is finite."""
    losses = ("2", "nan", "inf", "-inf", "2")
    code = "\n".join(f"run.scalar('loss', float('{each}')); ready()" for each in losses)
    with rank(tmp_path, code) as process:
        for number, loss in enumerate(losses):
            expected = {} if loss == "2" else {("job", "0", "loss"): 1}
            assert values(collector.collect(), "rankwatch_scalar_value_nonfinite") == expected, loss
            if number < len(losses) - 1:
                go_on(process)


def test_states(tmp_path: Path, collector: RanksCollector) -> None:
    """States follow the life of a rank. Starting, running, finished."""
    with rank(tmp_path, "ready()\nsteps(1)\nready()\nrun.finish()\nready()") as process:
        assert state(collector.collect()) == {"0": "starting"}
        go_on(process)
        collection = collector.collect()
        assert state(collection) == {"0": "running"}
        assert not values(collection, "rankwatch_rank_end_timestamp_seconds")
        go_on(process)
        collection = collector.collect()
        assert state(collection) == {"0": "finished"}
        heartbeat = values(collection, "rankwatch_rank_heartbeat_timestamp_seconds")
        assert values(collection, "rankwatch_rank_end_timestamp_seconds") == pytest.approx(heartbeat)


def test_killed_and_terminated(tmp_path: Path, collector: RanksCollector) -> None:
    """torchrun terminates the others after one has died: only that one is lost."""
    with (
        rank(tmp_path, "steps(1)\nready()", number=0, world=2) as first,
        rank(tmp_path, "steps(1)\nready()", number=1, world=2) as second,
    ):
        assert state(collector.collect()) == {"0": "running", "1": "running"}
        first.terminate()
        first.wait()
        kill(second)
        for _ in range(2):
            assert state(collector.collect()) == {"0": "terminated", "1": "lost"}


def test_failure_type(tmp_path: Path, collector: RanksCollector) -> None:
    """A rank that failed shows the type of the exception. As a counter by type."""
    with rank(tmp_path, "ready()\nraise MemoryError") as process:
        go_on(process)
        process.wait()
        collection = collector.collect()
    assert state(collection) == {"0": "failed"}
    assert values(collection, "rankwatch_rank_failures_total") == {
        ("job", "0", "MemoryError", "host_out_of_memory"): 1.0
    }


def test_open_phase(tmp_path: Path, collector: RanksCollector) -> None:
    """The open phase of a hanging rank is shown. The innermost one, and since when."""
    opens = "run.begin_step()\nrun.begin_phase('backward')\nrun.begin_phase('communication')\nready()"
    before = time.time()
    with rank(tmp_path, f"steps(2)\n{opens}"):
        collection = collector.collect()
    ((labels, since),) = values(collection, "rankwatch_rank_phase_start_timestamp_seconds").items()
    assert labels == ("job", "0", "communication")
    assert before - 1.0 < since < time.time() + 1.0


def test_truncated_box(tmp_path: Path, collector: RanksCollector) -> None:
    """A box that is cut short while followed costs only its rank, and is counted."""
    with (
        rank(tmp_path, "steps(2)\nready()", number=0, world=2),
        rank(tmp_path, "steps(2)\nready()", number=1, world=2) as process,
    ):
        assert len(state(collector.collect())) == 2
        process.kill()
        process.wait()
        (tmp_path / "job" / "1.blackbox").chmod(0o644)
        os.truncate(tmp_path / "job" / "1.blackbox", 5000)
        for _ in range(2):
            assert state(collection := collector.collect()) == {"0": "running"}
    assert faults(collection) == {"truncated": 1.0}


def test_too_many_names(tmp_path: Path) -> None:
    """A trainer that puts the step into the name of a scalar does not fill the database."""
    collector = RanksCollector(directory=tmp_path, max_names=5)
    with rank(tmp_path, "for each in range(50): run.scalar(f'loss/{each}\\n\"', each)\nready()"):
        collection = collector.collect()
    assert len(values(collection, "rankwatch_scalar")) == 6
    assert values(collection, "rankwatch_blackbox_names_dropped_total") == {("job", "0"): 45.0}


def _total(collection: Collection, name: str) -> float:
    return sum(values(collection, name).values())


def test_overwritten_phase_end(tmp_path: Path, collector: RanksCollector) -> None:
    """An agent that starts late has missed the end of an evaluation of long ago: it is not open."""
    code = "with run.evaluation(): pass\nsteps(8000)\nrun.begin_step()\nrun.begin_phase('backward')\n"
    with rank(tmp_path, code + "run.end_phase('backward')\nready()"):
        collector.collect()
        collection = collector.collect()
    assert _total(collection, "rankwatch_blackbox_records_missed_total") > 0
    assert values(collection, "rankwatch_rank_phase_start_timestamp_seconds") == {}


GPU = "GPU-11111111-aaaa-bbbb-cccc-0123456789ab"


def test_large_run(tmp_path: Path) -> None:
    """Beyond `max_single_ranks` some are compared, counters at 0 are left out, and all are counted."""
    slow = 'print("ready", flush=True)\nsteps(10**6, forward=0.03)\n'
    fast = slow.replace("0.03", "0.01")
    found: dict[int, Collection] = {}
    with rank(tmp_path, fast, world=2), rank(tmp_path, slow, number=1, world=2):
        for most, shown in ((1, {("1", "outstanding")}), (2, {("0", ""), ("1", "")})):
            collector = RanksCollector(directory=tmp_path, max_single_ranks=most, step_window_seconds=1.0)
            found[most] = settled(collector, lambda each, shown=shown: _compared(each) == shown)  # type: ignore[misc]
    large, small = ({each.metric.name for each in found[most].series} for most in (1, 2))
    idle = "rankwatch_rank_resumes_total"
    assert idle in small - large
    assert "rankwatch_recent_half_step_local_seconds" in large - small
    steps, loss = "rankwatch_steps_total", "rankwatch_scalar_nonfinite_total"
    assert values(found[1], steps).keys() == values(found[2], steps).keys()
    assert not values(found[1], loss)
    assert values(found[1], "rankwatch_node_ranks_reporting")["job", loss] == 2


def _compared(collection: Collection) -> set[tuple[str, str]]:
    """Ranks whose own work is exported, with their label `shown`."""
    work = values(collection, "rankwatch_recent_step_local_seconds")
    return {(labels[1], labels[3]) for labels in work}


def test_rank_gpu(tmp_path: Path, collector: RanksCollector) -> None:
    """No series before it is known, and none after the end of the rank: another run may have the GPU."""
    with rank(tmp_path, f"steps(1); ready(); run._writer.set_gpu('{GPU}'); ready()") as process:
        assert values(collector.collect(), "rankwatch_rank_gpu_info") == {}
        go_on(process)
        assert values(collector.collect(), "rankwatch_rank_gpu_info") == {("job", "0", GPU): 1}
    assert values(collector.collect(), "rankwatch_rank_gpu_info") == {}


def test_what_a_run_declares(tmp_path: Path) -> None:
    """What a run declares of itself is exported. Without a class its label is empty."""
    declared = {
        "RANKWATCH_RUN_CLASS": "production",
        "RANKWATCH_CONTACT": "#pretraining",
        "RANKWATCH_CHECKPOINT_INTERVAL_SECONDS": "60",
    }
    before = f"os.environ.update({declared})"
    with (
        rank(tmp_path, "ready()", number=1, world=4, before=before),
        rank(tmp_path, "ready()", run="plain", world=2),
    ):
        collection = RanksCollector(directory=tmp_path).collect()
    owner = str(os.geteuid())
    assert values(collection, "rankwatch_run_info") == {
        ("job", "python", "production", owner, "#pretraining", ""): 1,
        ("plain", "python", "", owner, "", ""): 1,
    }
    assert values(collection, "rankwatch_run_world_size") == {("job",): 4, ("plain",): 2}
    assert values(collection, "rankwatch_run_checkpoint_interval_seconds") == {("job",): 60}


def test_what_is_visible(tmp_path: Path) -> None:
    """What one rank of the node does not see is not visible, for the reason of most such ranks."""
    said = "from rankwatch.conventions.vocabulary import Capability, Unseen\nrun.sees(Capability.STEPS)\n"
    why = said + "run.cannot_see(Capability.LOSS, Unseen.{})\nready()"
    with (
        rank(tmp_path, said + "run.sees(Capability.LOSS); ready()", number=0, world=4),
        rank(tmp_path, why.format("TOO_OLD"), number=1, world=4),
        rank(tmp_path, why.format("DEVICE"), number=2, world=4),
        rank(tmp_path, why.format("DEVICE"), number=3, world=4),
        rank(tmp_path, "ready()", run="plain"),
    ):
        collection = RanksCollector(directory=tmp_path).collect()
    assert values(collection, "rankwatch_run_capability_visible") == {
        ("job", "steps", ""): 1,
        ("job", "loss", "device"): 0,
    }
