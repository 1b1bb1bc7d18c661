"""Collector `ethtool`: pause frames, discards and hardware errors, from the statistics of network drivers.

Each read takes the kernel's RTNL lock and queries the device. It therefore runs less often than the collector
`network`, and only for interfaces that the filter selects.

The rules below are the only place that knows the names of statistics. Their sources are the kernel's drivers
mlx5 (en_stats.c), bnxt (bnxt_ethtool.c), ice, i40e and ixgbe (*_ethtool.c), ena (ena_ethtool.c), and NVIDIA's
"Understanding mlx5 ethtool counters". Statistics of single queues are left out: there are thousands.

The statistics are read through the ethtool ioctl, which needs no privilege. Its structs are those of the
kernel's include/uapi/linux/ethtool.h. The kernel writes as many statistics as the driver has at that moment,
not as many as were requested, and the number of queues may change between two calls. Each answer therefore
goes into a mapping with room for MAX_STATISTICS; only pages that are written take memory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import re
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from rankwatch.conventions.metrics import Metric, metric
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, collect_parts
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.kernel_files import list_names, parse_kernel_file, read_kernel_file
from rankwatch_agent.sources.network import DeviceFilter, with_hardware
from rankwatch_agent.sources.shared import NodeShared

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
    """Return the statistics to export by position. Where two give the same series, the first rule wins."""
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


# Each network driver returns thousands of statistics, under a kernel lock.
@source(interval_seconds=10.0, deadline_seconds=5.0)
def ethtool(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    device_filter = DeviceFilter(include=config.network_include, exclude=config.network_exclude)
    yield EthtoolCollector(sysfs=config.sysfs, device_filter=device_filter, schedule=schedule)


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
        """Read the selected interfaces. Raises NotApplicable where none has statistics, CollectError."""
        names = [name for name in list_names(str(self._interfaces)) if (self._interfaces / name).is_dir()]
        selected = self._filter.select(names, with_hardware(self._interfaces, names))
        self._selections = {name: known for name, known in self._selections.items() if name in selected}
        try:  # of any kind: it is for ioctls
            connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        except OSError as error:
            raise CollectError(f"could not open a socket: {error.strerror or error}") from None
        with connection:
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


Parsed = TypeVar("Parsed")

Buffer = bytes | mmap.mmap
"""Bytes that the kernel wrote, with unused room behind them."""

MAX_STATISTICS = 65_536
"""Room for an answer. The largest drivers have about 10,000 statistics with 128 queues."""
_MAX_REQUESTED = MAX_STATISTICS // 2
"""Most statistics requested. The rest is room for a driver that gets more queues meanwhile."""
_NOT_HERE = frozenset({errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.ENOSYS, errno.ENOTTY})
"""The driver has no statistics, or this network namespace no such interface."""

SIOCETHTOOL = 0x8946
_SIOCGIFINDEX = 0x8933
_SIOCGIFHWADDR = 0x8927
_GSTRINGS = 0x1B
_GSTATS = 0x1D
_GSSET_INFO = 0x37
_STATISTICS_SET = 1
"""ETH_SS_STATS."""
_NAME_BYTES = 32
"""ETH_GSTRING_LEN."""
_MAX_INTERFACE_BYTES = 15
"""IFNAMSIZ less the closing NUL."""
_ADDRESS_OFFSET = 18
_MAX_ADDRESS_BYTES = 14
"""Room in `struct sockaddr`. An InfiniBand address has 20 bytes and is cut."""

_IFREQ = struct.Struct("@16sP16x")
_IFREQ_WITHOUT_POINTER = struct.Struct("@16s24x")
_SET_INFO = struct.Struct("=IIQI")
_STRINGS = struct.Struct("=III")
_STATISTICS = struct.Struct("=II")


class DriverStatistics:
    """Names and values of one interface's statistics, in the network namespace of the socket."""

    def __init__(self, connection: socket.socket, interface: str) -> None:
        self._socket = connection
        self._interface = interface

    def names(self) -> tuple[str, ...]:
        """Return the names in the order of `values`.

        Raises NotApplicable where there are none, CollectError.
        """
        count = self._request(count_request(), mmap.PAGESIZE, parse_statistics_count)
        if count == 0:
            raise NotApplicable(f"the driver of {self._interface} has no statistics")
        if count > _MAX_REQUESTED:
            raise CollectError(f"{self._interface} has {count} statistics, more than {_MAX_REQUESTED}")
        return self._request(names_request(count), names_size(MAX_STATISTICS), parse_names)

    def values(self, count: int) -> tuple[int, ...]:
        """Return the present values, `count` of them unless that has changed.

        Raises NotApplicable, CollectError.
        """
        return self._request(values_request(count), values_size(MAX_STATISTICS), parse_values)

    def _request(self, request: bytes, room: int, parse: Callable[[Buffer], Parsed]) -> Parsed:
        with mmap.mmap(-1, room) as answer:
            answer[: len(request)] = request
            self._call(answer)
            try:
                return parse(answer)
            except ValueError as error:
                raise CollectError(f"statistics of {self._interface}: {error}") from None

    def _call(self, answer: mmap.mmap) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(answer))
        try:
            fcntl.ioctl(self._socket, SIOCETHTOOL, interface_request(self._interface, address))
        except ValueError as error:
            raise NotApplicable(str(error)) from None
        except OSError as error:
            what = f"statistics of {self._interface}: {error.strerror or error}"
            if error.errno in _NOT_HERE:
                raise NotApplicable(what) from None
            raise CollectError(f"could not read {what}") from None


def check_same_interface(connection: socket.socket, directory: Path) -> None:
    """Check that the socket's interface is the one at `directory` in sysfs.

    The agent may see the host's sysfs from a network namespace of its own, where `eth0` is another interface.
    Interface numbers repeat between namespaces; hardware addresses do not. Raises NotApplicable where either
    differs, CollectError.
    """
    index = parse_kernel_file(directory / "ifindex", int)
    address = parse_kernel_file(directory / "address", _parse_address)
    other_namespace = NotApplicable(f"{directory.name} lies in another network namespace")
    try:
        request = _IFREQ_WITHOUT_POINTER.pack(directory.name.encode("utf-8", "surrogateescape"))
        with_index = fcntl.ioctl(connection, _SIOCGIFINDEX, request)
        with_address = fcntl.ioctl(connection, _SIOCGIFHWADDR, request)
    except OSError:
        raise other_namespace from None
    found = with_address[_ADDRESS_OFFSET : _ADDRESS_OFFSET + len(address)]
    if struct.unpack_from("@i", with_index, 16)[0] != index or found != address:
        raise other_namespace


def interface_version(directory: Path) -> tuple[str, str]:
    """Return interface number and carrier changes. While they stay the same, so do the statistics' names."""
    return read_kernel_file(directory / "ifindex"), read_kernel_file(directory / "carrier_changes")


def _parse_address(text: str) -> bytes:
    return bytes.fromhex(text.strip().replace(":", ""))[:_MAX_ADDRESS_BYTES]


def interface_request(interface: str, address: int) -> bytes:
    """Build the `struct ifreq` that names an interface and points to a command.

    Raises ValueError where the name is too long.
    """
    name = interface.encode("utf-8", "surrogateescape")
    if len(name) > _MAX_INTERFACE_BYTES:
        raise ValueError(f"{interface!r:.80} is not the name of an interface")
    return _IFREQ.pack(name, address)


def count_request() -> bytes:
    """Build the `struct ethtool_sset_info` that requests the number of statistics."""
    return _SET_INFO.pack(_GSSET_INFO, 0, 1 << _STATISTICS_SET, 0)


def parse_statistics_count(answer: Buffer) -> int:
    """Return the number of statistics; 0 where the driver has cleared the bit of the request."""
    _, _, mask, count = _SET_INFO.unpack_from(answer)
    return int(count) if mask & 1 << _STATISTICS_SET else 0


def names_request(count: int) -> bytes:
    """Build the head of `struct ethtool_gstrings`. The names follow it in the answer."""
    return _STRINGS.pack(_GSTRINGS, _STATISTICS_SET, count)


def names_size(count: int) -> int:
    """Return the bytes of an answer with `count` names."""
    return _STRINGS.size + count * _NAME_BYTES


def parse_names(answer: Buffer) -> tuple[str, ...]:
    """Return the names in the order of the values. Raises ValueError where the answer is cut off."""
    count = _STRINGS.unpack_from(answer)[2]
    if len(answer) < names_size(count):
        raise ValueError(f"{count} names do not fit into {len(answer)} bytes")
    starts = range(_STRINGS.size, names_size(count), _NAME_BYTES)
    padded = (answer[start : start + _NAME_BYTES].partition(b"\0")[0] for start in starts)
    return tuple(name.decode("ascii", "replace").strip() for name in padded)


def values_request(count: int) -> bytes:
    """Build the head of `struct ethtool_stats`. The values follow it in the answer."""
    return _STATISTICS.pack(_GSTATS, count)


def values_size(count: int) -> int:
    """Return the bytes of an answer with `count` values."""
    return _STATISTICS.size + count * 8


def parse_values(answer: Buffer) -> tuple[int, ...]:
    """Return the values. Raises ValueError where the answer is cut off."""
    count = _STATISTICS.unpack_from(answer)[1]
    if len(answer) < values_size(count):
        raise ValueError(f"{count} values do not fit into {len(answer)} bytes")
    return struct.unpack_from(f"={count}Q", answer, _STATISTICS.size)
