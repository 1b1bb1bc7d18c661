"""The list of collectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.collectors import build_collectors, build_shared
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.source import COLLECTORS
from support.agent.process import values
from support.training.ranks import rank


def test_every_collector_has_its_schedule() -> None:
    """The disk has one collector for each path, and each path one collector."""
    intervals = dict.fromkeys(COLLECTORS, 7.0)
    paths = (Path("/a"), Path("/b"), Path("/a"))
    config = AgentConfig(checkpoint_paths=paths, intervals_seconds=intervals, state_directory="")
    built = build_collectors(config, build_shared(config))
    names = [collector.name for collector in built]
    several = {
        "disk": ["disk:/a", "disk:/b"],
        "traces": [],
        "checkpoints": [],
        "preemption": [],
        "nvrx": [],
    }  # told nothing
    assert names == [each for name in COLLECTORS for each in several.get(name, [name])]
    looks_each_second = {"collectives"}  # and asks each rank once in its interval
    assert {each.interval_seconds for each in built if each.name not in looks_each_second} == {7.0}


def test_disabled_collectors() -> None:
    """Either setting can leave collectors out."""
    config = AgentConfig(collectors=("tcp", "host"), disabled_collectors=("tcp",))
    assert [collector.name for collector in build_collectors(config, build_shared(config))] == ["host"]


@pytest.mark.process
def test_processes_of_ranks(tmp_path: Path) -> None:
    """Threads and mounts are those of the process that writes the black box, whatever its header says."""
    config = AgentConfig(directory=tmp_path, collectors=("ranks", "processes", "mounts"), state_directory="")
    built = {each.name: each for each in build_collectors(config, build_shared(config))}
    with rank(tmp_path, "steps(1)\nready()", number=3, world=4):
        built["ranks"].collect()
        assert (
            values([built["processes"].collect()])["rankwatch_rank_uninterruptible_threads", "job", "3"] >= 0
        )
        found = values([built["mounts"].collect()])
    assert {key[1] for key in found if key[0] == "rankwatch_run_mount_responding"} == {"job"}
    built["ranks"].collect()
    left = {key[0] for key in values([built["processes"].collect()])}
    assert "rankwatch_rank_uninterruptible_threads" not in left


@pytest.mark.process
def test_cycles_of_ranks(tmp_path: Path) -> None:
    """What the launcher reports of a job reaches the series of the run whose ranks it has started."""
    reports = tmp_path / "nvrx"
    reports.mkdir()
    (reports / "cycle_info.70.0.3").write_text(
        '{"job_id": "70", "attempt_index": 0, "cycle_number": 3, "standby_nodes": "n[7-8]",'
        ' "cycle_start_time": "2026-01-01T00:00:00Z", "cycle_end_time": ""}'
    )
    config = AgentConfig(
        directory=tmp_path / "boxes", nvrx_directory=reports, collectors=("ranks", "nvrx"), state_directory=""
    )
    built = {each.name: each for each in build_collectors(config, build_shared(config))}
    link = "os.environ['NVRX_CURRENT_CYCLE_INFO'] = '/shared/nvrx/cycle_info.70.current'"
    with rank(tmp_path / "boxes", "steps(1)\nready()", before=link):
        for name in ("ranks", "nvrx", "ranks"):
            collection = built[name].collect()
    found = values([collection])
    assert found["rankwatch_run_cycle", "job"] == found["rankwatch_run_restarts", "job"] == 3
    assert found["rankwatch_run_nodes", "job", "standby"] == 2
