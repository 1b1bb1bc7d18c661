"""What several sources of one agent share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwatch_agent.runtime.node_events import NodeEvents, RestartCycles
from rankwatch_agent.runtime.writers import RankProcess

if TYPE_CHECKING:  # these modules declare sources themselves
    from rankwatch_agent.sources.gpu.driver import Driver
    from rankwatch_agent.sources.gpu.inventory import GpuInventory
    from rankwatch_agent.sources.xid import XidCounter


@dataclass(frozen=True, kw_only=True)
class NodeShared:
    """One of each, for whichever source needs it."""

    driver: Driver
    inventory: GpuInventory
    xids: XidCounter
    events: NodeEvents
    cycles: RestartCycles
    living_ranks: Callable[[], Iterable[RankProcess]]
    """The ranks that live on this node."""
