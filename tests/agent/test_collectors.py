"""The list of collectors."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.collectors import build_collectors
from rankwatch_agent.collectors.shared import build_shared
from rankwatch_agent.runtime.config import DEFAULT_SCHEDULES, AgentConfig
from support.agent.process import values
from support.training.ranks import rank


def test_every_collector_has_its_schedule() -> None:
    """The disk has one collector for each path, and each path one collector."""
    intervals = dict.fromkeys(DEFAULT_SCHEDULES, 7.0)
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
    assert names == [each for name in DEFAULT_SCHEDULES for each in several.get(name, [name])]
    looks_each_second = {"collectives"}  # and asks each rank once in its interval
    assert {each.interval_seconds for each in built if each.name not in looks_each_second} == {7.0}


def test_disabled_collectors() -> None:
    """Either setting can leave collectors out."""
    config = AgentConfig(collectors=("tcp", "host"), disabled_collectors=("tcp",))
    assert [collector.name for collector in build_collectors(config, build_shared(config))] == ["host"]


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
