"""The counters of one RDMA port as series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.sources.rdma.classes import OPERATIONS, STANDS_IN, TOTALS, Total, class_of, is_counter
from rankwatch_agent.sources.rdma.sysfs_files import SysfsFiles
from rankwatch_agent.sources.rdma.values import parse_counter
from rankwatch_agent.sources.topology.listing import names_or_none

MAX_COUNTERS = 256
"""Most counters read from one directory; drivers of today have about 80."""
MAX_OPERATIONS = 128
"""Most counters of one port exported as operations, the only class that takes unknown names."""


def read_counters(files: SysfsFiles, directory: str) -> dict[str, int]:
    """Counters of a directory by name; those that cannot be read are left out."""
    found = {}
    for name in names_or_none(directory)[:MAX_COUNTERS]:
        if is_counter(name):
            value = files.value(f"{directory}/{name}", parse_counter)
            if value is not None:
                found[name] = value
    return found


def counter_series(
    device: str, port: str, counters: Mapping[str, int], standard: Set[str] = frozenset()
) -> Iterator[Series]:
    """Each counter in its metric, none twice.

    `standard` are the names that this port has been seen to have: no other counter ever stands in for
    them, so that a total does not jump while one of them cannot be read.
    """
    present = standard | counters.keys()
    operations = 0
    for name, value in counters.items():
        total = _total(name, present)
        if total is not None:
            yield Series(total.metric, (device, port), value * total.factor)
            continue
        each = class_of(name)
        if each is OPERATIONS:
            operations += 1
            if operations > MAX_OPERATIONS:
                continue
        yield Series(each, (device, port, name), value)


def _total(name: str, present: Set[str]) -> Total | None:
    replaced = STANDS_IN.get(name)
    if replaced is not None:
        return Total(TOTALS[replaced].metric) if replaced not in present else None
    return TOTALS.get(name)
