"""XID errors from NVML's events."""

from __future__ import annotations

import time

from rankwatch_agent.sources.gpu.protocol import XidEvent
from rankwatch_agent.sources.gpu.reading.node import MAX_EVENTS, NodeReader
from support.agent.process import until
from support.gpu.nvml import FakeDriver
from support.gpu.reading import Node

PROBE = 1
LAST_PROBE = 2


def collected(node: Node, count: int) -> list[XidEvent]:
    """The XIDs of readings until there are so many, without those of `listen`."""
    found: list[XidEvent] = []

    def enough() -> bool:
        found.extend(each for each in node.read().xids if each.xid not in (PROBE, LAST_PROBE))
        return len(found) >= count

    until(enough, f"{count} XIDs came")
    return found


def listen(node: Node) -> None:
    """Start, and wait until errors arrive: only later ones are delivered for sure.

    The first to arrive may have come through the set of events that the listener is about to replace, so
    two have to arrive. After the last probe none of them is still on its way.
    """
    node.read()

    def arrived() -> bool:
        node.driver.xid(7, PROBE)
        return bool(node.read().xids)

    for _ in range(2):
        until(arrived, "an XID came")
    node.driver.xid(7, LAST_PROBE)
    until(lambda: LAST_PROBE in [each.xid for each in node.read().xids], "the last probe came")


def test_xid(node: Node) -> None:
    """Each error comes once, with its GPU; two equal ones are two. Code 0, which NVML delivers, is none."""
    listen(node)
    begin = time.time()
    node.driver.xid(2, 0)
    node.driver.xid(2, 79)
    node.driver.xid(2, 79)
    node.driver.xid(5, 48)
    found = collected(node, 3)
    uuids = [node.driver.node["gpus"][index]["uuid"] for index in (2, 2, 5)]
    assert sorted((each.uuid, each.xid) for each in found) == sorted(zip(uuids, (79, 79, 48), strict=True))
    assert all(begin <= each.timestamp_seconds <= time.time() for each in found)
    assert not node.read().xids


def test_xids_after_a_gpu_is_lost(node: Node) -> None:
    """The listener goes on with the GPUs that are left."""
    listen(node)
    node.driver.lose(0)
    node.read()
    listen(node)
    node.driver.xid(4, 94)
    assert [each.xid for each in collected(node, 1)] == [94]


def test_gpu_without_xid_events(node: Node) -> None:
    """It does not keep the others from delivering theirs."""
    node.driver.set(0, "event_types", 0)
    listen(node)
    node.driver.xid(1, 13)
    assert [each.xid for each in collected(node, 1)] == [13]
    assert "xid_events" in node.read().gpus[0].unsupported


def test_flood_of_xids(fake_driver: FakeDriver) -> None:
    """The oldest are dropped, and a warning says how many."""
    last: list[int] = []

    def clock() -> float:
        last.append(len(last))
        return float(last[-1])

    with fake_driver.in_this_process():
        node = Node(fake_driver, NodeReader(wall_clock=clock, event_wait_milliseconds=20))
        listen(node)
        before = len(last)
        for _ in range(MAX_EVENTS + 44):
            fake_driver.xid(0, 45)
        until(lambda: len(last) >= before + MAX_EVENTS + 44, "all XIDs were delivered")
        reading = node.read()
        node.reader.close()
    assert len(reading.xids) == MAX_EVENTS
    assert reading.xids[-1].timestamp_seconds == last[-1]
    (warning,) = reading.warnings
    assert warning.endswith("XID errors came faster than they were read and were dropped")
