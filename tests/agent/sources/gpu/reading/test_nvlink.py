"""NVLinks: sums over links that never fall."""

from __future__ import annotations

import pynvml

from rankwatch_agent.sources.gpu.reading.links import LinkTotal
from support.gpu.nvml_node import blackwell_node
from support.gpu.reading import Node, node_values, values_of

LINKS = 18
TRANSMIT = ("nvlink_bytes_total", "transmit")


def test_bytes_and_errors_are_summed_over_links(node: Node) -> None:
    """KiB become bytes; GPU 1 sends 10^9 + 10^6 + 10^3 * link KiB."""
    values = node.values(1)
    links = sum(range(LINKS))
    assert values["nvlinks",] == LINKS
    assert values["nvlinks_active",] == LINKS
    assert values[TRANSMIT] == 1024 * (LINKS * 1_001_000_000 + 1000 * links)
    assert values["nvlink_bytes_total", "receive"] == 1024 * (LINKS * 2_001_000_000 + 1000 * links)
    assert values["nvlink_errors_total", "replay"] == LINKS * 1 + links
    assert values["nvlink_errors_total", "recovery"] == LINKS * 11 + links
    assert values["nvlink_errors_total", "crc"] == LINKS * 21 + links
    assert not [key for key in values if key[0] == "nvlink_errors_total" and key[1] == "symbol"]


def test_a_link_that_goes_down_does_not_make_the_sum_fall(node: Node) -> None:
    """It is not asked any more, and its last value stays in the sum."""
    before = node.values(0)[TRANSMIT]
    node.driver.set(0, "nvlinks.5", {**node.driver.node["gpus"][0]["nvlinks"][5], "active": 0})
    node.driver.set(0, "fields.138", [None if link == 5 else 10**10 for link in range(LINKS)])
    values = node.values(0)
    assert values["nvlinks",] == LINKS
    assert values["nvlinks_active",] == LINKS - 1
    assert values[TRANSMIT] == 1024 * (17 * 10**10 + 1_000_000_000 + 5_000)
    assert values[TRANSMIT] > before


def test_a_link_that_counts_from_zero_again_goes_on_from_its_last_value() -> None:
    """A rate over the sum then sees what came since the reset, not the whole sum anew."""
    total = LinkTotal()
    total.update(0, 1000.0)
    total.update(1, 50.0)
    total.update(0, 10.0)
    assert total.sum() == 1060.0


def test_nvlink_5_is_told_by_its_own_fields(node: Node) -> None:
    """Bytes are bytes there, and there are other errors."""
    fake = blackwell_node(1)
    fake["driver"]["version"] = "580.95.05"
    node.driver.update(lambda node: (node.clear(), node.update(fake)))
    reading = node.read()
    values, links = values_of(reading.gpus[0]), sum(range(LINKS))
    assert values[TRANSMIT] == LINKS * 2000 + links
    assert values["nvlink_bytes_total", "receive"] == LINKS * 4000 + links
    assert {key[1]: value for key, value in values.items() if key[0] == "nvlink_errors_total"} == {
        "malformed_packet": LINKS * 6000 + links,
        "buffer_overrun": LINKS * 7000 + links,
        "effective": LINKS * 19000 + links,
        "symbol": LINKS * 21000 + links,
        "link_recovery_failed": LINKS * 14000 + links,
    }
    assert {"nvlink_bytes", "nvlink_errors"} <= set(reading.gpus[0].supported)


def test_a_gpu_without_nvlink_has_no_series_of_it(node: Node) -> None:
    """And nothing is written to the log."""
    node.driver.unsupport("nvmlDeviceGetNvLinkState", 2)
    reading = node.read()
    assert not [key for key in values_of(reading.gpus[2]) if key[0].startswith("nvlink")]
    assert "nvlink" in reading.gpus[2].unsupported
    assert node_values(reading)["supported", reading.gpus[2].model, "nvlink"] == 0.0
    assert reading.warnings == ()


def test_links_whose_state_cannot_be_read_count_as_down(node: Node) -> None:
    """And the log says so."""
    node.read()
    node.driver.fail("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_UNKNOWN, 0)
    reading = node.read()
    assert values_of(reading.gpus[0])["nvlinks_active",] == 0.0
    assert {node.values(0)["nvlinks",] for _ in range(60)} == {LINKS}  # also when ports are looked for again
    assert reading.warnings == (f"GPU {reading.gpus[0].uuid}: could not read nvlink: Unknown Error",)


def test_links_that_are_not_supported_any_more_are_not_down(node: Node) -> None:
    """A mode of the GPU may take them away; that is no fault of a link."""
    node.read()
    node.driver.unsupport("nvmlDeviceGetNvLinkState", 0)
    reading = node.read()
    assert not [key for key in values_of(reading.gpus[0]) if key[0].startswith("nvlink")]
    assert "nvlink" in reading.gpus[0].unsupported


def test_ports_that_were_never_seen_are_not_invented(node: Node) -> None:
    """A GPU whose links cannot be read from the start has no series of them, until they can be read."""
    node.driver.fail("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_UNKNOWN, 0)
    assert not [key for key in node.values(0) if key[0].startswith("nvlink")]
    node.driver.update(lambda fake: fake["gpus"][0]["errors"].clear())
    assert node.values(0)["nvlinks",] == LINKS
