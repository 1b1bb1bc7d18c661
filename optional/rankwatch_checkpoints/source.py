"""How the agent verifies checkpoints: it looks for saves that have ended, and a process reads them."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch_agent.collectors import Shared
from rankwatch_agent.runtime.collector import Collector, Schedule
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.source import source


@source(interval_seconds=5.0, deadline_seconds=10.0)
def checkpoints(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    if not config.checkpoint_bytes_per_second:
        return
    from rankwatch_checkpoints.collector import CheckpointsCollector, VerificationSettings

    settings = VerificationSettings(
        bytes_per_second=config.checkpoint_bytes_per_second,
        path_map=tuple(
            (source, target)
            for source, _, target in (each.partition("=") for each in config.checkpoint_path_map)
        ),
        rootfs=config.rootfs,
        directory=config.state_path(),
    )
    yield CheckpointsCollector(conditions=shared.run_conditions, settings=settings, schedule=schedule)
