"""The collector `dcgm`: an exporter that may hang or send garbage, its text, and what a sample becomes."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch.settings import FieldError
from rankwatch_agent.runtime.collector import Collection, Schedule
from rankwatch_agent.runtime.config import DCGM_FIELDS
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources import dcgm
from rankwatch_agent.sources.dcgm import DcgmCollector, DcgmSample, parse_answer, relay
from rankwatch_agent.sources.dcgm_fields import KNOWN_FIELDS, all_names, is_blank
from rankwatch_agent.sources.gpu.inventory import ExportedKey, GpuIdentity, GpuInventory
from support.agent.process import values
from support.sources.dcgm import UUIDS, DcgmExporter, Value, dcgm_exporter, exposition

A, B = "GPU-a", "GPU-b"
ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
SHORT = 0.25
"""Deadline of a collector whose exporter is to be given up, in seconds."""


@pytest.fixture
def exporter() -> Iterator[DcgmExporter]:
    with dcgm_exporter() as running:
        yield running


def node(*exported: ExportedKey, gpus: Sequence[str] = (A, B)) -> GpuInventory:
    inventory = GpuInventory()
    identities = (GpuIdentity(gpu, f"0000:{0x3B + n:02x}:00.0", n, n, "A100") for n, gpu in enumerate(gpus))
    inventory.publish(identities, exported)
    return inventory


def collector(url: str, *, known: int = 2, deadline: float = 20.0) -> DcgmCollector:
    inventory, schedule = node(gpus=UUIDS[:known]), Schedule(15, deadline)
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


def sample(field: str, value: float, *, uuid: str = A, bus_id: str = "", **more: str) -> DcgmSample:
    return DcgmSample(field, uuid, bus_id, more.get("gpu_instance", ""), more.get("link", ""), value)


def relayed(inventory: GpuInventory, *samples: DcgmSample) -> dict[tuple[str, ...], float]:
    return values([Collection(relay(samples, inventory).series)])


@pytest.mark.parametrize(
    ("field", "raw", "expected"),
    [
        (ACTIVE, 0.5, ("rankwatch_gpu_activity_ratio", A, "graphics", 0.5)),
        ("DCGM_FI_PROF_SM_UTIL_RATIO", 0.5, ("rankwatch_gpu_activity_ratio", A, "sm", 0.5)),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", 1e9, ("rankwatch_gpu_pcie_throughput_bytes", A, "receive", 1e9)),
        ("DCGM_FI_DEV_GPU_UTIL", 50, ("rankwatch_gpu_utilization_ratio", A, 0.5)),
        ("DCGM_FI_DEV_BOARD_POWER_WATTS", 300, ("rankwatch_gpu_power_watts", A, 300)),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 4000, ("rankwatch_gpu_energy_joules_total", A, 4.0)),
        ("DCGM_FI_DEV_SM_CLOCK", 1980, ("rankwatch_gpu_clock_hertz", A, "sm", 1.98e9)),
        ("DCGM_FI_DEV_FB_USED", 2, ("rankwatch_gpu_memory_used_bytes", A, 2 * 1024**2)),
        ("DCGM_FI_DEV_GPU_TEMP", -3, ("rankwatch_gpu_temperature_celsius", A, "core", -3)),
        ("DCGM_FI_DEV_ENC_UTIL", 7, ("rankwatch_dcgm_field", A, "", "DCGM_FI_DEV_ENC_UTIL", 7)),
    ],
)
def test_known_fields(field: str, raw: float, expected: tuple[str | float, ...]) -> None:
    """A field becomes our metric in base units, by its old and its new name. Others are relayed unchanged."""
    ((key, value),) = relayed(node(), sample(field, raw)).items()
    assert (*key, pytest.approx(value)) == expected


def test_labels_of_known_fields() -> None:
    """Each has as many label values as its metric has labels, for the GPU and for an instance."""
    for name, known in KNOWN_FIELDS.items():
        assert len(known.metric.labels) == 1 + len(known.extra), name
        if known.mig is not None:
            assert len(known.mig.labels) == 2 + len(known.extra), name


def test_series_of_nvml() -> None:
    """A series that NVML exports is not relayed; the one of the other GPU is."""
    inventory = node(("rankwatch_gpu_activity_ratio", (A, "graphics")))
    found = relayed(inventory, sample(ACTIVE, 0.5), sample(ACTIVE, 0.25, uuid=B))
    assert found == {("rankwatch_gpu_activity_ratio", B, "graphics"): 0.25}
    inventory.forget_exported()
    assert len(relayed(inventory, sample(ACTIVE, 0.5), sample(ACTIVE, 0.25, uuid=B))) == 2


def test_gpu_without_uuid() -> None:
    """Its address identifies it, in any form."""
    found = relayed(node(), sample(ACTIVE, 0.5, uuid="", bus_id="00000000:3C:00.0"))
    assert found == {("rankwatch_gpu_activity_ratio", B, "graphics"): 0.5}


def test_shared_gpu() -> None:
    """dcgm-exporter repeats its value for each pod; it is relayed once."""
    assert len(relay([sample("DCGM_FI_DEV_POWER_USAGE", 300)] * 5, node()).series) == 1


def test_mig_instance() -> None:
    """It has its own activity but no temperature. Without its UUID from NVML it goes by its number."""
    info = ("rankwatch_gpu_mig_info", (A, "MIG-x", "1g.10gb", "7", "0"))
    samples = [
        sample(field, value, gpu_instance=instance)
        for instance in ("7", "8")
        for field, value in ((ACTIVE, 0.5), ("DCGM_FI_DEV_GPU_TEMP", 41), ("DCGM_FI_DEV_ENC_UTIL", 7))
    ]
    assert relayed(node(info), *samples) == {
        ("rankwatch_gpu_mig_activity_ratio", A, "MIG-x", "graphics"): 0.5,
        ("rankwatch_gpu_mig_activity_ratio", A, "gpu_instance 8", "graphics"): 0.5,
        ("rankwatch_gpu_temperature_celsius", A, "core"): 41,
        ("rankwatch_dcgm_field", A, "MIG-x", "DCGM_FI_DEV_ENC_UTIL"): 7,
        ("rankwatch_dcgm_field", A, "gpu_instance 8", "DCGM_FI_DEV_ENC_UTIL"): 7,
    }


def test_gpu_instance_with_compute_instances() -> None:
    """dcgm-exporter does not say which of them it means, so the number stands for all."""
    infos = [("rankwatch_gpu_mig_info", (A, f"MIG-{part}", "1c.3g", "1", part)) for part in "012"]
    found = relayed(node(*infos), sample(ACTIVE, 0.5, gpu_instance="1"))
    assert list(found) == [("rankwatch_gpu_mig_activity_ratio", A, "gpu_instance 1", "graphics")]


def test_number_of_a_link() -> None:
    """The name of the field contains the number of the link."""
    found = relayed(node(), *[sample("DCGM_FI_DEV_NVLINK_X", n, link=str(n)) for n in (1, 2)])
    assert found == {("rankwatch_dcgm_field", A, "", f"DCGM_FI_DEV_NVLINK_X link {n}"): n for n in (1, 2)}


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**31 - 16, 2**31 - 13, 2**32 - 1, 2**47, 2**47 + 3, 2**63 - 16, 2**63 - 1, 2**64],
)
def test_blank_values(value: float) -> None:
    """Not found, not supported, not permitted."""
    assert is_blank(float(value))
    assert relayed(node(), sample("DCGM_FI_DEV_ENC_UTIL", float(value))) == {}


@pytest.mark.parametrize(
    ("field", "value"), [(ACTIVE, 1.5), (ACTIVE, -0.1), ("DCGM_FI_DEV_GPU_TEMP", 900), (ACTIVE, 100)]
)
def test_implausible_values(field: str, value: float) -> None:
    """A ratio above 1, 900 degrees."""
    assert relayed(node(), sample(field, value)) == {}


def test_unknown_devices() -> None:
    """Each counts once. Switches and lines without identity are no GPUs."""
    buses = ("00000000:99:00.0", "garbage", "")
    samples = [sample(ACTIVE, 0.5, uuid="GPU-z"), sample("DCGM_FI_DEV_GPU_TEMP", 40, uuid="GPU-z")]
    samples += [sample(ACTIVE, 0.5, uuid="", bus_id=each) for each in buses]
    result = relay(samples, node())
    assert (result.series, result.unmatched) == ((), {"GPU-z", "0000:99:00.0"})


def test_names_from_the_exporter() -> None:
    """GPUs are exported under the names from dcgm-exporter."""
    samples = (sample(ACTIVE, 0.5, uuid="GPU-z"), sample(ACTIVE, 0.25, uuid="", bus_id="00000000:3B:00.0"))
    result = relay(samples, node(gpus=()))
    names = {"GPU-z", "0000:3b:00.0"}
    assert {series.labels for series in result.series} == {(name, "graphics") for name in names}
    assert (result.unmatched, result.adopted) == (frozenset(), names)


def test_names_of_a_field() -> None:
    """The setting may use the old or the new name."""
    both = {"DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"}
    assert [all_names((name,)) for name in sorted(both)] == [both, both]
    assert all_names(("X",)) == {"X"}
