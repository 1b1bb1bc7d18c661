"""The registers in lines of NVLink 5 errors.

NVRM: Xid (PCI:0018:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 ...)
NVRM: Xid (PCI:0018:01:00): 149, pid='<unknown>', name=<unknown>, NETIR Fatal XC0 i0 Link -1 (0x...)
NVRM: Xid (PCI:0000:00:1e): 149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]
"""

from __future__ import annotations

import re

from rankwatch_agent.sources.xid.nvlink5 import Nvlink5Error

_REGISTER = r"(0x[0-9a-fA-F]{1,8})"
_ERROR = re.compile(
    r"\): (14[4-9]|150),(?:.{0,200}?[, ])?([A-Z][A-Z0-9_]{1,40}(?: Degraded)?) +(?:Non-?)?[Ff]atal +"
    rf"XC ?\d{{1,3}} +i ?\d{{1,3}} +Link +(-?\d{{1,3}}) *[(\[]{_REGISTER}(?: +{_REGISTER})?"
)


def parse_nvlink5(text: str) -> Nvlink5Error | None:
    """The error in a line; None where there is none, or without its registers."""
    found = _ERROR.search(text) if "NVRM: Xid" in text else None
    if found is None:
        return None
    status = int(found[5], 16) if found[5] else None
    return Nvlink5Error(int(found[1]), found[2], int(found[3]), int(found[4], 16), status)
