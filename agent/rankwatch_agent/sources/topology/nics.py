"""The devices a GPU may send through, by the names the rest of the agent gives them."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.runtime.collector import NotApplicable
from rankwatch_agent.sources.topology.listing import list_names
from rankwatch_agent.sources.topology.pci_device import PciDevice, is_virtual_function, locate


def find_nics(sysfs: Path) -> dict[str, PciDevice]:
    """The RDMA devices; on a machine without any, the network interfaces with a PCI device behind them.

    Virtual functions are left out. Raises CollectError where they cannot be listed.
    """
    return _devices(sysfs / "class" / "infiniband") or _devices(sysfs / "class" / "net")


def _devices(directory: Path) -> dict[str, PciDevice]:
    try:
        names = list_names(str(directory))
    except NotApplicable:
        return {}
    found = {}
    for name in names:
        link = f"{directory}/{name}/device"
        device = locate(link)
        if device is not None and not is_virtual_function(link):
            found[name] = device
    return found
