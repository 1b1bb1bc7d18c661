"""What nvidia-smi prints is understood."""

from __future__ import annotations

import pytest

from support.gpu.fake_nvidia_smi import fake_run
from support.gpu.nvidia_smi import Run, Smi, SmiError
from support.gpu.nvml import hopper_node
from support.gpu.smi_output import csv_answers, is_absent, link_answers, quantity, tell_reasons, xml_answers

UUID = "GPU-5a31c0d0-7b1e-4c55-9f02-a1b2c3d40000"
_XML = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<driver_version>580.159.04</driver_version>
\t<gpu id="00000000:01:00.0">
\t\t<mig_devices>
\t\t\tNone
\t\t</mig_devices>
\t\t<uuid>{UUID}</uuid>
\t\t<remapped_rows>N/A</remapped_rows>
\t\t<fb_memory_usage>
\t\t\t<total>143771 MiB</total>
\t\t</fb_memory_usage>
\t\t<processes>
\t\t\t<process_info><pid>1802</pid><type>G</type><used_memory>1448 MiB</used_memory></process_info>
\t\t\t<process_info><pid>4711</pid><type>C</type><used_memory>500 MiB</used_memory></process_info>
\t\t\t<process_info><pid>4712</pid><type>M+C</type><used_memory>N/A</used_memory></process_info>
\t\t</processes>
\t</gpu>
</nvidia_smi_log>
WARNING: infoROM is corrupted at gpu 00000000:01:00.0
"""
_HEAD = f"GPU 0: NVIDIA H200 (UUID: {UUID})\n"


@pytest.mark.parametrize(
    ("words", "value", "step"),
    [
        ("143771 MiB", 143771 * 1024.0**2, 1024.0**2),
        ("75.43 W", 75.43, 0.01),
        ("1980 MHz", 1.98e9, 1e6),
        ("37 %", 0.37, 0.01),
        ("91403239 us", 91.403239, 1e-6),
        ("-12 C", -12.0, 0.0),
        ("45", 45.0, 0.0),
        ("16x", 16.0, 0.0),
        ("0x0000000000000004", 4.0, 0.0),
        ("Active", 1.0, 0.0),
        ("Not Active", 0.0, 0.0),
        ("No", 0.0, 0.0),
        ("Incorrect SysGuid", 1.0, 0.0),
    ],
)
def test_a_number_comes_in_base_units_with_the_worth_of_its_last_digit(
    words: str, value: float, step: float
) -> None:
    """The unit is in the words, so it is not assumed."""
    found = quantity(words)
    assert found is not None
    assert found == pytest.approx((value, step))


@pytest.mark.parametrize(
    "words",
    ["", "ERR!", "[Unknown Error]", "Requested functionality has been deprecated", "3 furlongs", "1.2.3"],
)
def test_an_error_is_neither_a_number_nor_an_absence(words: str) -> None:
    """It says nothing of the GPU."""
    assert quantity(words) is None
    assert not is_absent(words)


@pytest.mark.parametrize("words", ["N/A", "[N/A]", "[Not Supported]", "Not Supported"])
def test_what_the_gpu_has_not_is_an_absence(words: str) -> None:
    """Drivers spell it in several ways."""
    assert is_absent(words)
    assert quantity(words) is None


def test_the_cells_of_a_query_are_kept_by_uuid() -> None:
    """Lines of another length are none of them."""
    output = f"{UUID}, NVIDIA H200, 1 MiB\nGPU-b, NVIDIA H200, [N/A]\nWARNING: something\n"
    found = csv_answers(["uuid", "name", "memory.used"], output)
    assert found[UUID]["memory.used"] == "1 MiB"
    assert found["GPU-b"] == {"uuid": "GPU-b", "name": "NVIDIA H200", "memory.used": "[N/A]"}


def test_the_elements_of_the_xml_are_kept_by_their_path() -> None:
    """Processes with a compute context are counted; a warning after the document does no harm."""
    found = xml_answers(_XML)[UUID]
    assert found["/fb_memory_usage/total"] == "143771 MiB"
    assert found["/driver_version"] == "580.159.04"
    assert found["/remapped_rows"] == "N/A"
    assert found["processes"] == "2"
    assert (found["process/4711"], found["process/4712"]) == ("500 MiB", "N/A")
    assert "process/1802" not in found
    assert found["mig_devices"] == "0"


def test_links_are_counted_and_their_counters_summed() -> None:
    """An inactive one is a port."""
    status = f"{_HEAD}\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n\t Link 2: <inactive>\n"
    counters = f"{_HEAD}\t Link 0: Data Tx: 10 KiB\n\t Link 0: Data Rx: 1 KiB\n\t Link 1: Data Tx: 5 KiB\n"
    errors = (
        f"{_HEAD}\t Link 0: Replay Errors: 3\n\t Link 0: Recovery Errors: N/A\n\t Link 1: Replay Errors: 4\n"
    )
    assert link_answers(status, counters, errors) == {
        UUID: {
            "nvlink/ports": "3",
            "nvlink/active": "2",
            "nvlink/tx": "15 KiB",
            "nvlink/rx": "1 KiB",
            "nvlink/replay": "7",
        }
    }


def test_links_that_are_all_inactive_are_said_in_one_sentence() -> None:
    """It does not tell how many there are."""
    status = f"{_HEAD}\t NVML: Unable to retrieve NVLink information as all links are inActive\n"
    assert link_answers(status, "", "") == {UUID: {"nvlink/active": "0"}}


def test_a_reason_outside_the_mask_of_known_ones_is_absent() -> None:
    """Its own cell says "Not Active", as if the GPU knew it."""
    answers = {
        "clocks_event_reasons.active": "0x0000000000000004",
        "clocks_event_reasons.supported": "0x0000000000000005",
        "clocks_event_reasons.sync_boost": "Not Active",
        "/clocks_event_reasons/clocks_event_reason_sync_boost": "Not Active",
        "clocks_event_reasons.gpu_idle": "Not Active",
    }
    tell_reasons(answers)
    assert answers["reason/sw_power_cap"] == "Active"
    assert answers["reason/gpu_idle"] == answers["clocks_event_reasons.gpu_idle"] == "Not Active"
    assert answers["reason/sync_boost"] == "N/A"
    assert not [each for each in answers if each.endswith(("s.sync_boost", "_sync_boost"))]


def test_a_field_that_this_nvidia_smi_does_not_know_is_left_out_and_named() -> None:
    """The others are asked for without it."""
    smi = Smi(fake_run(hopper_node(1)), ["uuid", "warp.factor", "memory.used", "flux"])
    smi.look()
    assert smi.unknown == ["warp.factor", "flux"]


def test_a_failing_nvidia_smi_is_an_error_with_its_words() -> None:
    """An empty answer would hold nothing and look alike."""
    smi = Smi(lambda *_: Run(9, "NVIDIA-SMI has failed"), ["uuid"])
    with pytest.raises(SmiError, match="ended with 9: NVIDIA-SMI has failed"):
        smi.look()
