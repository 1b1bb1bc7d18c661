"""Which statistics of which driver become what."""

from __future__ import annotations

import pytest

from rankwatch_agent.sources.ethtool.collector import select

PAUSE = "rankwatch_network_pause_frames_total"
SECONDS = "rankwatch_network_pause_seconds_total"
DISCARD = "rankwatch_network_discards_total"
ERROR = "rankwatch_network_hardware_errors_total"


def chosen(*names: str) -> dict[str, tuple[str, ...]]:
    """The driver's name -> (metric, labels...)."""
    return {names[at]: (each.metric.name, *each.labels) for at, each in select(names).items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rx_prio3_pause", (PAUSE, "receive", "3")),
        ("tx_prio0_pause", (PAUSE, "transmit", "0")),
        ("rx_global_pause", (PAUSE, "receive", "global")),
        ("tx_pause_ctrl_phy", (PAUSE, "transmit", "global")),
        ("tx_prio3_pause_duration", (SECONDS, "transmit", "3")),
        ("rx_discards_phy", (DISCARD, "receive", "rx_discards_phy")),
        ("tx_discards_phy", (DISCARD, "transmit", "tx_discards_phy")),
        ("rx_prio5_discards", (DISCARD, "receive", "rx_prio5_discards")),
        ("rx_prio5_buf_discard", (DISCARD, "receive", "rx_prio5_buf_discard")),
        ("rx_out_of_buffer", (DISCARD, "receive", "rx_out_of_buffer")),
        ("rx_pci_signal_integrity", (ERROR, "rx_pci_signal_integrity")),
        ("link_down_events_phy", (ERROR, "link_down_events_phy")),
        ("rx_pfc_ena_frames_pri7", (PAUSE, "receive", "7")),
        ("pfc_pri2_rx_duration_us", (SECONDS, "receive", "2")),
        ("rx_stat_discard", (DISCARD, "receive", "rx_stat_discard")),
        ("tx_priority_4_xoff.nic", (PAUSE, "transmit", "4")),
        ("port.rx_priority_4_xoff", (PAUSE, "receive", "4")),
        ("link_xoff_rx.nic", (PAUSE, "receive", "global")),
        ("port.link_xoff_tx", (PAUSE, "transmit", "global")),
        ("rx_dropped.nic", (DISCARD, "receive", "rx_dropped.nic")),
        ("tx_dropped_link_down.nic", (DISCARD, "transmit", "tx_dropped_link_down.nic")),
        ("port.tx_dropped_link_down", (DISCARD, "transmit", "port.tx_dropped_link_down")),
        ("rx_crc_errors.nic", (ERROR, "rx_crc_errors.nic")),
        ("rx_drops", (DISCARD, "receive", "rx_drops")),
        ("bw_in_allowance_exceeded", (DISCARD, "receive", "bw_in_allowance_exceeded")),
        ("bw_out_allowance_exceeded", (DISCARD, "transmit", "bw_out_allowance_exceeded")),
        ("pps_allowance_exceeded", (DISCARD, "", "pps_allowance_exceeded")),
    ],
)
def test_a_name_that_a_driver_uses_is_understood(name: str, expected: tuple[str, ...]) -> None:
    """mlx5, bnxt_en, ice, i40e, ena."""
    assert chosen(name) == {name: expected}


@pytest.mark.parametrize(
    "name",
    [
        "rx_bytes",
        "rx_prio3_bytes",
        "rx3_packets",
        "rx_prio3_pause_transition",
        "tx_priority_4_xon.nic",
        "rx_queue_0_xdp_drops",
        "[0]: rx_discards",
        "xrx_discards_phy",
        "",
    ],
)
def test_all_other_statistics_are_left_out(name: str) -> None:
    """Queues by the thousand, bytes that others count, frames that end a pause."""
    assert chosen(name) == {}


def test_durations_are_in_seconds() -> None:
    """mlx5 and bnxt_en count microseconds."""
    found = select(["rx_prio3_pause_duration", "rx_prio3_pause"])
    assert [found[0].factor, found[1].factor] == [1e-6, 1]


def test_two_names_of_one_series_do_not_both_count() -> None:
    """mlx5 counts global pauses twice; whichever comes first, the more exact one is taken."""
    both = ("rx_pause_ctrl_phy", "rx_global_pause")
    assert set(chosen(*both)) == {"rx_global_pause"}
    assert set(chosen(*reversed(both))) == {"rx_global_pause"}
