"""The list of collectors follows the configuration."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.collectors import build_collectors, build_shared
from rankwatch_agent.runtime.config import DEFAULT_SCHEDULES, AgentConfig


def test_every_collector_is_built_with_its_schedule() -> None:
    """One disk collector for each path, each path once."""
    intervals = dict.fromkeys(DEFAULT_SCHEDULES, 7.0)
    paths = (Path("/a"), Path("/b"), Path("/a"))
    config = AgentConfig(checkpoint_paths=paths, intervals_seconds=intervals)
    built = build_collectors(config, build_shared(config))
    names = [collector.name for collector in built]
    several = {"disk": ["disk:/a", "disk:/b"]}
    assert names == [each for name in DEFAULT_SCHEDULES for each in several.get(name, [name])]
    looks_each_second = {"collectives"}  # and asks each rank once in its interval
    assert {each.interval_seconds for each in built if each.name not in looks_each_second} == {7.0}


def test_collectors_are_taken_away_by_either_setting() -> None:
    """The list of those to run, and the list of those not to."""
    config = AgentConfig(collectors=("tcp", "host"), disabled_collectors=("tcp",))
    assert [collector.name for collector in build_collectors(config, build_shared(config))] == ["host"]
