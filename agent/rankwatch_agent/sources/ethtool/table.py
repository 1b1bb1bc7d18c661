"""Which of a driver's statistics are exported, and as what: the only place that knows their names.

Sources: the kernel's drivers mlx5 (en_stats.c), bnxt (bnxt_ethtool.c), ice, i40e and ixgbe
(*_ethtool.c), ena (ena_ethtool.c), and NVIDIA's "Understanding mlx5 ethtool counters". Statistics of single
queues are left out: there are thousands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from rankwatch.conventions import Metric, metric

PAUSES = metric("rankwatch_network_pause_frames_total")
PAUSE_SECONDS = metric("rankwatch_network_pause_seconds_total")
DISCARDS = metric("rankwatch_network_discards_total")
ERRORS = metric("rankwatch_network_hardware_errors_total")

_DIRECTIONS = {"rx": "receive", "tx": "transmit", "in": "receive", "out": "transmit"}
_GLOBAL = "global"
_SECONDS_PER_MICROSECOND = 1e-6


class Statistic(NamedTuple):
    """What one statistic becomes; the interface is the first label, before these."""

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


def select(names: Iterable[str]) -> dict[int, Statistic]:
    """The statistics to export by their places; of two that would become one series, the first rule's."""
    best: dict[tuple[str, tuple[str, ...]], tuple[int, int, Statistic]] = {}
    for place, name in enumerate(names):
        for rank, (each, pattern) in enumerate(_RULES):
            match = pattern.fullmatch(name)
            if match is None:
                continue
            found = _statistic(each, name, match)
            key = (each.name, found.labels)
            if key not in best or rank < best[key][0]:
                best[key] = (rank, place, found)
            break
    return {place: found for _, place, found in best.values()}


def _statistic(each: Metric, name: str, match: re.Match[str]) -> Statistic:
    groups = match.groupdict()
    direction = _DIRECTIONS.get(groups.get("way") or groups.get("tx") or "", "")
    if each is ERRORS:
        return Statistic(each, (name,), 1)
    if each is DISCARDS:
        return Statistic(each, (direction, name), 1)
    priority = groups.get("priority") or _GLOBAL
    factor = _SECONDS_PER_MICROSECOND if each is PAUSE_SECONDS else 1
    return Statistic(each, (direction, priority), factor)
