"""The collector `dcgm` with an exporter that may hang, fail or send garbage, and the parser of its text."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch.settings import FieldError
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.config import DCGM_FIELDS
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources import dcgm
from rankwatch_agent.sources.dcgm import DcgmCollector, DcgmSample, parse_answer
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from support.agent.process import values
from support.sources.dcgm import UUIDS, DcgmExporter, Value, dcgm_exporter, exposition

SHORT = 0.25
"""Deadline of a collector whose exporter is to be given up, in seconds."""


@pytest.fixture
def exporter() -> Iterator[DcgmExporter]:
    with dcgm_exporter() as running:
        yield running


def collector(url: str, *, known: int = 2, deadline: float = 20.0) -> DcgmCollector:
    gpus = [GpuIdentity(uuid, f"0000:{0x3B + n:02x}:00.0", n, n, "A100") for n, uuid in enumerate(UUIDS)]
    inventory, schedule = GpuInventory(), Schedule(15, deadline)
    inventory.publish(gpus[:known], ())
    return DcgmCollector(endpoint=url, fields=DCGM_FIELDS, inventory=inventory, schedule=schedule)


def test_relayed_fields(exporter: DcgmExporter) -> None:
    """A field with a metric of ours becomes that metric. Temperatures come from NVML."""
    assert values([collector(exporter.url).collect()]) == {
        ("rankwatch_gpu_activity_ratio", UUIDS[0], "graphics"): 0.87453,
        ("rankwatch_gpu_activity_ratio", UUIDS[1], "graphics"): 0.125,
        ("rankwatch_gpu_activity_ratio", UUIDS[0], "tensor"): 0.5,
        ("rankwatch_gpu_pcie_throughput_bytes", UUIDS[0], "transmit"): 1.5e9,
        ("rankwatch_dcgm_field", UUIDS[0], "", "DCGM_FI_PROF_NVLINK_TX_BYTES"): 2.5e8,
        ("rankwatch_dcgm_gpus_unmatched",): 0,
    }
    assert exporter.paths == ["/metrics"]


def test_gpu_unknown_to_nvml(exporter: DcgmExporter) -> None:
    """It is counted and not exported."""
    found = values([collector(exporter.url, known=1).collect()])
    assert found["rankwatch_dcgm_gpus_unmatched",] == 1
    assert ("rankwatch_gpu_activity_ratio", UUIDS[1], "graphics") not in found


def test_nvml_shows_no_gpu(exporter: DcgmExporter, caplog: pytest.LogCaptureFixture) -> None:
    """The exporter's GPUs are exported. One warning is logged, after NVML had time to start."""
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
        ("garbage", "not HTTP"),
        ("huge", "more than 16777216 bytes"),
        ("cut", "cut off"),
    ],
)
def test_bad_answer(exporter: DcgmExporter, mode: str, message: str) -> None:
    """The error names the endpoint, and the next good answer is used."""
    dcgm = collector(exporter.url)
    exporter.mode = mode
    with pytest.raises(CollectError, match=message) as caught:
        dcgm.collect()
    assert exporter.url in str(caught.value)
    assert exporter.paths == ["/metrics"], "nothing else was requested"
    exporter.mode = "normal"
    assert dcgm.collect().series


@pytest.mark.parametrize("mode", ["hang", "drip"])
def test_endless_answer(exporter: DcgmExporter, mode: str) -> None:
    """The deadline holds for the whole answer, no matter how often a byte comes."""
    exporter.mode = mode
    with pytest.raises(CollectError, match="timed out"):
        collector(exporter.url, deadline=SHORT).collect()


@pytest.mark.parametrize("body", [b"", b"node_load1 1\n", b"\xff\xfe{}{}\n" * 100, b"<html></html>"])
def test_answer_without_fields(exporter: DcgmExporter, body: bytes) -> None:
    """dcgm-exporter answers 200 without fields while it reloads: silence is not health."""
    exporter.body = body
    with pytest.raises(CollectError, match="no field of DCGM"):
        collector(exporter.url).collect()


def test_answer_without_wanted_fields(exporter: DcgmExporter) -> None:
    """The exporter works, so this is no failure."""
    exporter.body = exposition(Value("DCGM_FI_DEV_GPU_TEMP", 0, "41"))
    assert values([collector(exporter.url).collect()]) == {("rankwatch_dcgm_gpus_unmatched",): 0}


def test_no_exporter() -> None:
    """The endpoint is set, so something should listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(CollectError, match=f"could not query http://127.0.0.1:{port}/metrics"):
            collector(f"http://127.0.0.1:{port}").collect()


def test_no_endpoint() -> None:
    with pytest.raises(NotApplicable, match="no dcgm_endpoint is set"):
        collector("").collect()


@pytest.mark.parametrize(
    "url",
    [
        *("http://", "http://host:99999/", "ftp://host/"),
        *("http://user:secret@host/", "http://host/a b", "http://a..b/"),
    ],
)
def test_wrong_endpoint(url: str) -> None:
    """It is refused at the start, not at the first collection, and a password is not shown."""
    with pytest.raises(FieldError, match="dcgm_endpoint") as caught:
        collector(url)
    assert "secret" not in str(caught.value)


HEAD = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:3B:00.0"'
FIELD = "DCGM_FI_DEV_GPU_TEMP"
SAMPLE = DcgmSample(FIELD, "GPU-a", "00000000:3B:00.0", "", "", 41.0)


def read(line: str) -> tuple[DcgmSample, ...]:
    return parse_answer(line.encode(), {FIELD}).samples


@pytest.mark.parametrize(
    "labels",
    [
        "",
        ',device="nvidia0",modelName="NVIDIA "A100" {80GB}"',
        ',pod="a"b",hpc_job="} 7"',
        ',hpc_job="x",UUID="GPU-forged"',
        ',pod="\\"',
        f',pod="{"x" * 100_000}"',
    ],
)
def test_odd_labels(labels: str) -> None:
    """Quotes, braces, backslashes, a forged identity: what comes first counts."""
    assert read(f"{FIELD}{{{HEAD}{labels}}} 41") == (SAMPLE,)


def test_end_of_line() -> None:
    """Proxies add timestamps and carriage returns."""
    assert read(f"{FIELD}{{{HEAD}}} 4.1e1 1700000000000\r\n") == (SAMPLE,)


def test_instances_and_links() -> None:
    """Lines of links have another label for the identity."""
    labels = f'{HEAD},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    assert read(f"{FIELD}{{{labels}}} 41") == (SAMPLE._replace(gpu_instance="7"),)
    link = 'nvlink="3",gpu="0",gpu_uuid="GPU-a",pci_bus_id="00000000:3B:00.0"'
    assert read(f"{FIELD}{{{link}}} 41") == (SAMPLE._replace(link="3"),)
    assert read(f'{FIELD}{{nvlink="3",nvswitch="1"}} 41') == ()


@pytest.mark.parametrize("line", [FIELD, f"{FIELD}{{{HEAD}", f"{FIELD}{{{HEAD}}} N/A", f"{FIELD}{{{HEAD}}}"])
def test_broken_line(line: str) -> None:
    """It costs only itself."""
    assert read(f"{line}\n{FIELD}{{{HEAD}}} 41\n") == (SAMPLE,)


def test_unwanted_fields() -> None:
    """Their number shows whether this is dcgm-exporter at all."""
    text = f"# HELP DCGM_X x\nDCGM_X{{{HEAD}}} 1\nnode_load1 3\nOTHER{{a}} 1\n{FIELD}{{{HEAD}}} 41\n"
    answer = parse_answer(text.encode(), {FIELD})
    assert (len(answer.samples), answer.fields, answer.cut) == (1, 2, False)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is cut by wanted samples and by lines."""
    line = f"{FIELD}{{{HEAD}}} 41\n".encode()
    monkeypatch.setattr(dcgm, "MAX_SAMPLES", 3)
    assert parse_answer(line * 5, {FIELD})[0::2] == ((SAMPLE,) * 3, True)
    monkeypatch.setattr(dcgm, "MAX_LINES", 2)
    assert parse_answer(b"\n" * 5, {FIELD}).cut


@settings(deadline=None)  # a busy machine is no fault of the parser
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: f"{FIELD}{{{text}}} 1".encode()))
def test_any_text(text: bytes) -> None:
    """It gives samples or none, never an exception."""
    parse_answer(text, {FIELD})
