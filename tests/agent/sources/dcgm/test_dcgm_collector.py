"""The relay from a dcgm-exporter, which may hang, fail or talk nonsense."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from rankwatch.settings import FieldError
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.config import DCGM_FIELDS
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.dcgm.collector import DcgmCollector
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from support.agent.process import values
from support.sources.dcgm import NORMAL, UUIDS, DcgmExporter, Value, dcgm_exporter, exposition

SHORT = 0.25
"""Deadline of a collector whose exporter is to be given up, in seconds."""


@pytest.fixture
def exporter() -> Iterator[DcgmExporter]:
    with dcgm_exporter() as running:
        yield running


def collector(url: str, *, known: int = 2, deadline: float = 20.0) -> DcgmCollector:
    inventory = GpuInventory()
    inventory.publish(
        [
            GpuIdentity(uuid, f"0000:{0x3B + n:02x}:00.0", n, n, "A100")
            for n, uuid in enumerate(UUIDS[:known])
        ],
        (),
    )
    return DcgmCollector(
        endpoint=url, fields=DCGM_FIELDS, inventory=inventory, schedule=Schedule(15, deadline)
    )


def test_the_wanted_fields_are_relayed(exporter: DcgmExporter) -> None:
    """Under our names where we have one; temperatures are NVML's business."""
    assert values([collector(exporter.url).collect()]) == {
        ("rankwatch_gpu_activity_ratio", UUIDS[0], "graphics"): 0.87453,
        ("rankwatch_gpu_activity_ratio", UUIDS[1], "graphics"): 0.125,
        ("rankwatch_gpu_activity_ratio", UUIDS[0], "tensor"): 0.5,
        ("rankwatch_gpu_pcie_throughput_bytes", UUIDS[0], "transmit"): 1.5e9,
        ("rankwatch_dcgm_field", UUIDS[0], "", "DCGM_FI_PROF_NVLINK_TX_BYTES"): 2.5e8,
        ("rankwatch_dcgm_gpus_unmatched",): 0,
    }
    assert exporter.paths == ["/metrics"]


def test_unescaped_labels_cost_nothing(exporter: DcgmExporter) -> None:
    """A pod may be called whatever it likes."""
    exporter.body = exposition(*(each._replace(extra=',pod="a"b} 3",hpc_job="\\"') for each in NORMAL))
    assert len(collector(exporter.url).collect().series) == 6


def test_gpus_of_the_exporter_that_nvml_does_not_show_are_counted(exporter: DcgmExporter) -> None:
    """Beside those it shows."""
    found = values([collector(exporter.url, known=1).collect()])
    assert found["rankwatch_dcgm_gpus_unmatched",] == 1
    assert ("rankwatch_gpu_activity_ratio", UUIDS[1], "graphics") not in found


def test_where_nvml_shows_nothing_the_exporter_speaks_alone(
    exporter: DcgmExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says so once, when NVML had time to start."""
    dcgm = collector(exporter.url, known=0)
    with caplog.at_level(logging.WARNING):
        found = [values([dcgm.collect()]) for _ in range(5)]
    assert found[1]["rankwatch_gpu_activity_ratio", UUIDS[1], "graphics"] == 0.125
    assert found[1]["rankwatch_dcgm_gpus_unmatched",] == 0
    assert [record.getMessage().count("NVML shows no GPU") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("error", "status '500'"),
        ("redirect", "status '302'"),
        ("garbage", "no HTTP"),
        ("huge", "more than 16777216 bytes"),
        ("cut", "cut off"),
    ],
)
def test_a_bad_answer_is_one_clear_error(exporter: DcgmExporter, mode: str, message: str) -> None:
    """It names the endpoint; the next good answer counts again."""
    dcgm = collector(exporter.url)
    exporter.mode = mode
    with pytest.raises(CollectError, match=message) as caught:
        dcgm.collect()
    assert exporter.url in str(caught.value)
    assert exporter.paths == ["/metrics"], "nothing else was asked for"
    exporter.mode = "normal"
    assert dcgm.collect().series


@pytest.mark.parametrize("mode", ["hang", "drip"])
def test_an_exporter_that_does_not_end_is_given_up(exporter: DcgmExporter, mode: str) -> None:
    """Within the deadline of the whole answer, whatever each byte takes."""
    exporter.mode = mode
    with pytest.raises(CollectError, match="timed out"):
        collector(exporter.url, deadline=SHORT).collect()


@pytest.mark.parametrize("body", [b"", b"node_load1 1\n", b"\xff\xfe{}{}\n" * 100, b"<html></html>"])
def test_an_answer_without_dcgm_is_no_success(exporter: DcgmExporter, body: bytes) -> None:
    """dcgm-exporter answers 200 and nothing while it reloads: silence is not health."""
    exporter.body = body
    with pytest.raises(CollectError, match="no field of DCGM"):
        collector(exporter.url).collect()


def test_fields_nobody_wants_are_no_failure(exporter: DcgmExporter) -> None:
    """It is dcgm-exporter, and it is well."""
    exporter.body = exposition(Value("DCGM_FI_DEV_GPU_TEMP", 0, "41"))
    assert values([collector(exporter.url).collect()]) == {("rankwatch_dcgm_gpus_unmatched",): 0}


def test_nobody_there_is_a_failure() -> None:
    """The endpoint was set, so something should listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(CollectError, match=f"could not ask http://127.0.0.1:{port}/metrics"):
            collector(f"http://127.0.0.1:{port}").collect()


def test_no_endpoint_is_not_applicable() -> None:
    """The default."""
    with pytest.raises(NotApplicable, match="no dcgm_endpoint is set"):
        collector("").collect()


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://host:99999/",
        "ftp://host/",
        "http://user:secret@host/",
        "http://host/a b",
        "http://a..b/",
    ],
)
def test_a_wrong_endpoint_is_refused_at_the_start(url: str) -> None:
    """Not at the first collection."""
    with pytest.raises(FieldError, match="dcgm_endpoint") as caught:
        collector(url)
    assert "secret" not in str(caught.value)
