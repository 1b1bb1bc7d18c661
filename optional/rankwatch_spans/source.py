"""How the agent makes spans of what its collector `ranks` has read, and sends them. Where neither endpoint
nor file is set, nothing else here is imported, which saves memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankwatch.conventions.states import IncidentKind
from rankwatch_agent.collectors import Shared
from rankwatch_agent.incidents.episodes import IncidentRegistry
from rankwatch_agent.runtime.collector import Collector, Schedule
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.source import source
from rankwatch_agent.training.notes import OpenIncident

if TYPE_CHECKING:
    from rankwatch_spans.sending import SpanSender

MAX_SPANS = 10_000
"""Spans that wait for their receiver, about 10 MB."""
STOP_SECONDS = 0.5
"""Longest wait for what is left at the end. A healthy receiver takes no longer."""


@source(interval_seconds=1.0, deadline_seconds=10.0)
def traces(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    if shared.notes is None:
        return
    from rankwatch_spans.collector import TracesCollector, TraceSettings
    from rankwatch_spans.queue import SpanQueue
    from rankwatch_spans.sending import build_sender

    queue = SpanQueue(MAX_SPANS)
    collector = TracesCollector(
        notes=shared.notes,
        queue=queue,
        exemplars=shared.exemplars,
        settings=TraceSettings(
            cluster=config.cluster,
            node=config.node,
            one_in=config.traces_one_in,
            heartbeat_seconds=config.traces_heartbeat_seconds,
            directory=config.state_path(),
        ),
        open_incidents=lambda: _open_incidents(shared.incidents),
        schedule=schedule,
    )
    shared.services.append(sending(build_sender(config, queue), collector.close))
    yield collector


@contextmanager
def sending(sender: SpanSender, finish: Callable[[], None]) -> Iterator[None]:
    """Send spans. finish: makes those of what is still held, at the end."""
    sender.start()
    yield
    finish()
    sender.stop(STOP_SECONDS)


def _open_incidents(registry: IncidentRegistry) -> dict[str, OpenIncident]:
    return {
        run: OpenIncident(each.number, run, each.kind.value, each.since, each.kind is IncidentKind.LOST_RANK)
        for run, each in registry.open.items()
    }
