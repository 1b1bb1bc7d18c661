"""XID errors in lines of the kernel log.

NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel
NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 ...)
NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.
NVRM: GPU at PCI:0000:3b:00: GPU-8f1c...
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rankwatch_agent.sources.gpu.inventory import normalise_bus_id
from rankwatch_agent.sources.xid.table import CRITICAL, SEVERITY_IN_LOG, WARNING

FALLEN_OFF_THE_BUS = 79

_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_ADDRESS})[^)]{{0,40}}\): ([0-9]{{1,5}})\b(.*)")
_FALLEN = re.compile(rf"NVRM: .{{0,20}}GPU (?:at )?(?:PCI:)?({_ADDRESS}).{{0,120}}fallen off the bus")
_IDENTITY = re.compile(rf"NVRM: GPU at PCI:({_ADDRESS}): (GPU-[0-9a-fA-F-]{{36}})")
_SEVERITY = re.compile(r"\b(non-?)?fatal\b", re.IGNORECASE)


class XidLine(NamedTuple):
    """An XID error as the log tells of it."""

    bus_id: str
    """In the kernel's form."""
    xid: int
    severity: str | None
    """Of this occurrence, where the line says; None where the table has to."""
    implied: bool
    """True where the line has no code: a GPU said to have fallen off the bus."""


def parse_xid(text: str) -> XidLine | None:
    """The XID error in a line; None where there is none."""
    if "NVRM" not in text:
        return None
    found = _XID.search(text)
    if found is not None:
        xid = int(found[2])
        return XidLine(normalise_bus_id(found[1]), xid, _severity(xid, found[3]), False) if xid else None
    fallen = _FALLEN.search(text)
    if fallen is not None:
        return XidLine(normalise_bus_id(fallen[1]), FALLEN_OFF_THE_BUS, None, True)
    return None


def parse_identity(text: str) -> tuple[str, str] | None:
    """PCI address and UUID, which the driver logs once before a GPU's first error."""
    found = _IDENTITY.search(text) if "NVRM" in text else None
    return (normalise_bus_id(found[1]), found[2]) if found else None


def _severity(xid: int, rest: str) -> str | None:
    """Fatal and Nonfatal count only for the codes that have both; other texts use the words freely."""
    found = _SEVERITY.search(rest) if xid in SEVERITY_IN_LOG else None
    if found is None:
        return None
    return WARNING if found[1] else CRITICAL
