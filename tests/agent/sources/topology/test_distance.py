"""Distances in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

import pytest

from rankwatch_agent.sources.topology.affinity import Distance, distance
from rankwatch_agent.sources.topology.pci_device import PciDevice

ROOT = ("pci0000:16", "0000:16:01.0")
SWITCH = (*ROOT, "0000:17:00.0")


def at(*bridges: str, numa_node: int | None = 0) -> PciDevice:
    """A device below these bridges."""
    return PciDevice("0000:aa:00.0", bridges, numa_node)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # Two downstream ports of one switch.
        (at(*SWITCH, "0000:18:00.0"), at(*SWITCH, "0000:18:01.0"), Distance.PIX),
        # Two functions of one card.
        (at(*SWITCH, "0000:18:00.0"), at(*SWITCH, "0000:18:00.0"), Distance.PIX),
        # A switch below another one.
        (
            at(*SWITCH, "0000:18:00.0"),
            at(*SWITCH, "0000:18:01.0", "0000:20:0.0", "0000:21:0.0"),
            Distance.PXB,
        ),
        # Two switches below one root port.
        (at(*SWITCH, "0000:18:00.0"), at(*ROOT, "0000:17:01.0", "0000:30:00.0"), Distance.PXB),
        # Two root ports of one host bridge, or devices right on it, as in a virtual machine.
        (at(*SWITCH, "0000:18:00.0"), at("pci0000:16", "0000:16:02.0"), Distance.PHB),
        (at("pci0000:00", numa_node=None), at("pci0000:00", numa_node=None), Distance.PHB),
        # Two host bridges.
        (at("pci0000:16"), at("pci0000:36"), Distance.NODE),
        (at("pci0000:16"), at("pci0000:96", numa_node=1), Distance.SYS),
        # Host bridges of which the firmware does not tell where they are: nothing is claimed.
        (at("pci0000:16", numa_node=None), at("pci0000:36"), None),
        (at("pci0000:16", numa_node=None), at("pci0000:36", numa_node=None), None),
    ],
)
def test_the_distance_is_what_lies_between(
    one: PciDevice, other: PciDevice, expected: Distance | None
) -> None:
    """The same in both directions."""
    assert distance(one, other) == expected
    assert distance(other, one) == expected
