"""Collector `ethtool`: pause frames, discards and hardware errors, from the statistics of network drivers.

Each read takes the kernel's RTNL lock and queries the device. It therefore runs less often than the collector
`network`, and only for interfaces that the filter selects.

The rules below are the only place that knows the names of statistics. Their sources are the kernel's drivers
mlx5 (en_stats.c), bnxt (bnxt_ethtool.c), ice, i40e and ixgbe (*_ethtool.c), ena (ena_ethtool.c), and NVIDIA's
"Understanding mlx5 ethtool counters". Statistics of single queues are left out: there are thousands.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.metrics import Metric, metric
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.sources.ethtool.ioctl import DriverStatistics, check_same_interface, interface_version
from rankwatch_agent.sources.kernel_files import list_names
from rankwatch_agent.sources.network import DeviceFilter, with_hardware
from rankwatch_agent.sources.parts import collect_parts

PAUSES = metric("rankwatch_network_pause_frames_total")
PAUSE_SECONDS = metric("rankwatch_network_pause_seconds_total")
DISCARDS = metric("rankwatch_network_discards_total")
ERRORS = metric("rankwatch_network_hardware_errors_total")

_DIRECTIONS = {"rx": "receive", "tx": "transmit", "in": "receive", "out": "transmit"}
_GLOBAL = "global"
_SECONDS_PER_MICROSECOND = 1e-6


class ExportedStatistic(NamedTuple):
    """The metric of a statistic, its labels behind the interface, and the factor to the metric's unit."""

    metric: Metric
    labels: tuple[str, ...]
    factor: float


_RULES: tuple[tuple[Metric, re.Pattern[str]], ...] = tuple(
    (each, re.compile(pattern))
    for each, pattern in (
        # mlx5: with priorities in use; with global pause; what the port counts in either case.
        (PAUSES, r"(?P<way>[rt]x)_prio(?P<priority>\d)_pause"),
        (PAUSES, r"(?P<way>[rt]x)_global_pause"),
        (PAUSES, r"(?P<way>[rt]x)_pause_ctrl_phy"),
        (PAUSE_SECONDS, r"(?P<way>[rt]x)_prio(?P<priority>\d)_pause_duration"),
        (PAUSE_SECONDS, r"(?P<way>[rt]x)_global_pause_duration"),
        (DISCARDS, r"(?P<way>[rt]x)_discards_phy"),
        (DISCARDS, r"(?P<way>rx)_prio\d_(buf_|cong_)?discards?"),
        (DISCARDS, r"(?P<way>rx)_(out_of_buffer|steer_missed_packets|if_down_packets)"),
        (DISCARDS, r"dev_(?P<way>)out_of_buffer|dev_internal_queue_oob"),
        (ERRORS, r"[rt]x_pci_signal_integrity"),
        (ERRORS, r"rx_(crc_errors|symbol_err|pcs_symbol_err)_phy|link_down_events_phy"),
        # bnxt_en
        (PAUSES, r"(?P<way>[rt]x)_pfc_ena_frames_pri(?P<priority>\d)"),
        (PAUSES, r"(?P<way>[rt]x)_pause_frames"),
        (PAUSE_SECONDS, r"pfc_pri(?P<priority>\d)_(?P<way>[rt]x)_duration_us"),
        (DISCARDS, r"(?P<way>[rt]x)_(stat_discard|total_discard_pkts|total_ring_discards)"),
        (DISCARDS, r"(?P<way>rx)_discard_packets_cos\d"),
        (ERRORS, r"rx_(fcs_err|align_err|code_err)_frames"),
        # ice, i40e, ixgbe: a pause frame that asks to stop is an XOFF.
        (PAUSES, r"(port\.)?(?P<way>[rt]x)_priority_(?P<priority>\d)_xoff(\.nic)?"),
        (PAUSES, r"(?P<way>[rt]x)_pb_(?P<priority>\d)_pxoff"),
        (PAUSES, r"(port\.)?link_xoff_(?P<way>[rt]x)(\.nic)?"),
        (PAUSES, r"(?P<way>[rt]x)_flow_control_xoff"),
        (DISCARDS, r"(?P<way>rx)_dropped\.nic|(?P<tx>tx)_dropped_link_down\.nic"),
        (DISCARDS, r"port\.((?P<way>rx)_dropped|(?P<tx>tx)_dropped_link_down)"),
        (DISCARDS, r"(?P<way>rx)_no_dma_resources"),
        (ERRORS, r"(port\.)?(rx_crc_errors|mac_local_faults|mac_remote_faults|illegal_bytes)(\.nic)?"),
        # ena: the last ones count what the instance's allowance held back.
        (DISCARDS, r"(?P<way>[rt]x)_(drops|overruns)"),
        (DISCARDS, r"bw_(?P<way>in|out)_allowance_exceeded"),
        (DISCARDS, r"(?P<way>)(pps|conntrack|linklocal)_allowance_exceeded"),
    )
)


def select(names: Iterable[str]) -> dict[int, ExportedStatistic]:
    """Returns the statistics to export by position. Where two give the same series, the first rule wins."""
    best: dict[tuple[str, tuple[str, ...]], tuple[int, int, ExportedStatistic]] = {}
    for position, name in enumerate(names):
        for rule, (each, pattern) in enumerate(_RULES):
            match = pattern.fullmatch(name)
            if match is None:
                continue
            exported = _exported(each, name, match)
            key = (each.name, exported.labels)
            if key not in best or rule < best[key][0]:
                best[key] = (rule, position, exported)
            break
    return {position: exported for _, position, exported in best.values()}


def _exported(each: Metric, name: str, match: re.Match[str]) -> ExportedStatistic:
    groups = match.groupdict()
    direction = _DIRECTIONS.get(groups.get("way") or groups.get("tx") or "", "")
    if each is ERRORS:
        return ExportedStatistic(each, (name,), 1)
    if each is DISCARDS:
        return ExportedStatistic(each, (direction, name), 1)
    priority = groups.get("priority") or _GLOBAL
    factor = _SECONDS_PER_MICROSECOND if each is PAUSE_SECONDS else 1
    return ExportedStatistic(each, (direction, priority), factor)


class _Selection(NamedTuple):
    """The statistics of an interface to export, valid while its version stays the same."""

    version: tuple[str, str]
    size: int
    """Number of all statistics of the driver."""
    exported: Mapping[int, ExportedStatistic]


class EthtoolCollector:
    """Reads the interfaces of `sysfs` that lie in the network namespace of this process."""

    name = "ethtool"

    def __init__(
        self,
        *,
        sysfs: Path,
        device_filter: DeviceFilter,
        schedule: Schedule,
        select: Callable[[Iterable[str]], Mapping[int, ExportedStatistic]] = select,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._interfaces = sysfs / "class" / "net"
        self._filter = device_filter
        self._select = select
        self._selections: dict[str, _Selection] = {}
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Reads the selected interfaces. Raises NotApplicable where none has statistics, CollectError."""
        names = [name for name in list_names(str(self._interfaces)) if (self._interfaces / name).is_dir()]
        selected = self._filter.select(names, with_hardware(self._interfaces, names))
        self._selections = {name: known for name, known in self._selections.items() if name in selected}
        with _open_socket() as connection:
            parts = [lambda name=name: self._series(connection, name) for name in selected]
            return collect_parts(self.name, parts, self._log_limit)

    def _series(self, connection: socket.socket, interface: str) -> Iterator[Series]:
        statistics = DriverStatistics(connection, interface)
        selection = self._selection(connection, interface, statistics)
        values = statistics.values(selection.size)
        if len(values) != selection.size:  # the positions are outdated
            del self._selections[interface]
            selection = self._selection(connection, interface, statistics)
            values = statistics.values(selection.size)
            if len(values) != selection.size:
                raise CollectError(f"the statistics of {interface} keep changing")
        for position, each in selection.exported.items():
            yield Series(each.metric, (interface, *each.labels), values[position] * each.factor)

    def _selection(
        self, connection: socket.socket, interface: str, statistics: DriverStatistics
    ) -> _Selection:
        directory = self._interfaces / interface
        version = interface_version(directory)
        known = self._selections.get(interface)
        if known is None or known.version != version:
            check_same_interface(connection, directory)
            names = statistics.names()
            known = _Selection(version, len(names), self._select(names))
            self._selections[interface] = known
        if not known.exported:
            raise NotApplicable(f"{interface} has no statistics of pauses or discards")
        return known


def _open_socket() -> socket.socket:
    """Opens a socket for ioctls. Its kind does not matter. Raises CollectError."""
    try:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    except OSError as error:
        raise CollectError(f"could not open a socket: {error.strerror or error}") from None
