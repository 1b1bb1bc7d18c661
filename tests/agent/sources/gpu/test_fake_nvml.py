"""The fake NVML library answers the real pynvml as a driver would, so that tests on it mean something."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pynvml
import pytest

from support.gpu.nvml import FakeDriver, blackwell_node, functions, running, split_into_instances
from support.gpu.nvml_script import Script, ask

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


def test_every_function_is_one_that_pynvml_asks_for(nvml_library: Path) -> None:
    """No name is misspelt: each exported symbol occurs in pynvml, which looks symbols up by name."""
    source = Path(pynvml.__file__).read_text()
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", str(nvml_library)], capture_output=True, text=True, check=True
    ).stdout.split()[2::3]
    assert len(exported) > 70
    assert [name for name in exported if f'"{name}"' not in source] == ["nvmlInit_v2"]  # for other clients
    assert set(exported) - {"nvmlErrorString"} <= functions()


def test_identities_are_those_of_the_node(fake_driver: FakeDriver) -> None:
    """Each GPU answers for itself, by index, UUID and PCI address."""
    answer = ask(
        fake_driver,
        "[[nvmlDeviceGetUUID(d), nvmlDeviceGetName(d), nvmlDeviceGetSerial(d), nvmlDeviceGetIndex(d), "
        "nvmlDeviceGetMinorNumber(d), nvmlDeviceGetPciInfo(d).busId, nvmlDeviceGetArchitecture(d), "
        "nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(d))), "
        "nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId(nvmlDeviceGetPciInfo(d).busId[4:].lower()))] "
        "for d in map(gpu, range(nvmlDeviceGetCount()))]",
    )
    assert answer == [
        [
            *(each["uuid"], each["name"], each["serial"], index, each["minor_number"]),
            *(f"00000000:{each['pci']['bus']:02X}:00.0", 9, index, index),
        ]
        for index, each in enumerate(fake_driver.node["gpus"])
    ]
    assert len({each[0] for each in answer}) == 8


def test_versions_are_those_of_the_driver(fake_driver: FakeDriver) -> None:
    """Driver, NVML and CUDA."""
    asked = "[nvmlSystemGetDriverVersion(), nvmlSystemGetNVMLVersion(), nvmlSystemGetCudaDriverVersion_v2()]"
    assert ask(fake_driver, asked) == ["580.95.05", "13.580.95.05", 12080]


VALUES = {
    "nvmlDeviceGetUtilizationRates(d).gpu": 93,
    "nvmlDeviceGetUtilizationRates(d).memory": 43,
    "nvmlDeviceGetMemoryInfo(d, version=nvmlMemory_v2).used": 63000 << 20,
    "nvmlDeviceGetMemoryInfo(d).used": 63633 << 20,
    "nvmlDeviceGetTemperature(d, NVML_TEMPERATURE_GPU)": 58,
    "nvmlDeviceGetTemperatureV(d, NVML_TEMPERATURE_GPU)": 58,
    "nvmlDeviceGetTemperatureThreshold(d, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)": 89,
    "nvmlDeviceGetMarginTemperature(d)": 29,
    "nvmlDeviceGetPowerUsage(d)": 613_250,
    "nvmlDeviceGetEnforcedPowerLimit(d)": 670_000,
    "nvmlDeviceGetTotalEnergyConsumption(d)": 5_003_000_000,
    "[nvmlDeviceGetClockInfo(d, each) for each in range(4)]": [1745, 1746, 2603, 1445],
    "[nvmlDeviceGetMaxClockInfo(d, each) for each in range(4)]": [1980, 1979, 2619, 1545],
    "nvmlDeviceGetCurrentClocksEventReasons(d)": 4,
    "nvmlDeviceGetCurrentClocksThrottleReasons(d)": 4,
    "nvmlDeviceGetSupportedClocksEventReasons(d)": 0x1FF,
    "[nvmlDeviceGetPcieThroughput(d, each) for each in range(2)]": [210_003, 310_003],
    "[nvmlDeviceGetCurrPcieLinkGeneration(d), nvmlDeviceGetMaxPcieLinkWidth(d)]": [5, 16],
    "nvmlDeviceGetPcieReplayCounter(d)": 6,
    "[nvmlDeviceGetNvLinkState(d, 17), nvmlDeviceGetNvLinkVersion(d, 17)]": [1, 6],
    "nvmlDeviceGetNvLinkErrorCounter(d, 2, NVML_NVLINK_ERROR_DL_RECOVERY)": 102,
    "nvmlDeviceGetNvLinkRemotePciInfo(d, 2).busId": "00000000:05:00.0",
    "error(nvmlDeviceGetNvLinkState, d, 18)": pynvml.NVML_ERROR_INVALID_ARGUMENT,
    "field(d, 74, 82, 94, 142, 230, 269)": [
        *([0, 13_000_000_000], [0, 73], [0, 6], [0, 23], [0, 0], [0, 703_000_000_000]),
    ],
    "field(d, (138, 5), (139, 17), (163, 1))": [[0, 1_003_005_000], [0, 2_003_017_000], [0, 24]],
    "field(d, (138, 2**32 - 1))": [[0, 18 * 1_003_000_000 + 153_000]],
    "[each[0] for each in field(d, (202, 0), 999, (138, 18))]": [NOT_SUPPORTED, NOT_SUPPORTED, 2],
    "nvmlDeviceGetEccMode(d)": [1, 1],
    "[nvmlDeviceGetTotalEccErrors(d, k, s) for k in range(2) for s in range(2)]": [13, 103, 1003, 2003],
    "nvmlDeviceGetRemappedRows(d)": [23, 33, 0, 0],
    "[[p.pid, p.usedGpuMemory] for p in nvmlDeviceGetComputeRunningProcesses(d)]": [
        [40003, (63000 - 512) << 20]
    ],
    "nvmlDeviceGetGraphicsRunningProcesses(d)": [],
    "nvmlDeviceGetMigMode(d)": [0, 0],
    "error(nvmlDeviceGetMigDeviceHandleByIndex, d, 0)": pynvml.NVML_ERROR_NOT_FOUND,
    "nvmlDeviceIsMigDeviceHandle(d).value": 0,
    "nvmlDeviceGetSupportedEventTypes(d) & nvmlEventTypeXidCriticalError": 8,
    "nvmlErrorString(15)": "GPU is lost",
}


def test_every_topic_answers_with_the_values_of_the_node(fake_driver: FakeDriver) -> None:
    """Through the layouts that pynvml has, versions of structs and scopes of fields among them."""
    answers = ask(fake_driver, f"[eval(each, {{**globals(), 'd': gpu(3)}}) for each in {list(VALUES)!r}]")
    assert dict(zip(VALUES, answers, strict=True)) == VALUES


@pytest.mark.parametrize("version", ["", "_v2_t", "_v3_t"])
def test_fabric_fills_the_struct_it_is_given(fake_driver: FakeDriver, version: str) -> None:
    """The first version has no health mask, the third a summary."""
    struct = f"c_nvmlGpuFabricInfo{version or '_t'}"
    call = "nvmlDeviceGetGpuFabricInfoV" if version else "nvmlDeviceGetGpuFabricInfo"
    answer = ask(
        fake_driver,
        f"(lambda i: ({call}(gpu(2), ctypes.byref(i)), i.state, i.cliqueId, list(i.clusterUuid), "
        f"getattr(i, 'healthMask', -1), getattr(i, 'healthSummary', -1)))({struct}())",
    )
    mask = 0x1AA if version else -1
    assert answer == [0, 3, 9, list(range(16)), mask, 1 if version == "_v3_t" else -1]


def test_a_wrong_version_of_a_struct_is_refused(fake_driver: FakeDriver) -> None:
    """As a driver refuses a caller that is newer than itself."""
    expected = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert ask(fake_driver, "error(nvmlDeviceGetMemoryInfo, gpu(), 0x03000028)") == expected


def test_a_handle_that_was_never_given_is_refused(fake_driver: FakeDriver) -> None:
    """No pointer of a caller is followed blindly."""
    asked = "[error(nvmlDeviceGetName, ctypes.cast(each, c_nvmlDevice_t)) for each in (0, 64, 2**40)]"
    assert ask(fake_driver, asked) == [2, 2, 2]


def test_a_function_the_library_lacks_is_not_found(fake_driver: FakeDriver) -> None:
    """As with a driver older than pynvml."""
    assert ask(fake_driver, "error(nvmlDeviceGetFanSpeed, gpu())") == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


def test_gpm_compares_two_samples_of_one_gpu(fake_driver: FakeDriver) -> None:
    """A mean between the two, an absolute count where the metric is one, and an error where it is none."""
    fake_driver.set(0, "gpm.metrics.261", 1000)
    code = """
nvmlInit()
device = gpu(0)
before, after = nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc()
support = nvmlGpmQueryDeviceSupport(device).isSupportedDevice
nvmlGpmSampleGet(device, before)
told([support, error(metrics, before, before, 2), error(metrics, before, after, 2)])
time.sleep(0.1)
nvmlGpmSampleGet(device, after)
told([metrics(before, after, 1, 2, 261, 99), error(metrics, after, before, 2)])
nvmlGpmSampleGet(gpu(1), after)
told(error(metrics, before, after, 2))
nvmlGpmSampleFree(before)
told([error(nvmlGpmSampleFree, before), error(nvmlGpmSampleGet, device, before)])
"""
    with Script(fake_driver, code) as script:
        assert script.heard() == [1, 2, 2]
        fake_driver.set(0, "gpm.metrics.2", 62.0)
        fake_driver.set(0, "gpm.metrics.261", 5000)
        assert script.go_on() == [[[0, 41.0], [0, 52.0], [0, 5000.0], [NOT_SUPPORTED, 0.0]], 2]
        assert script.go_on() == 2
        assert script.go_on() == [2, 2]


MIG_SCRIPT = """
nvmlInit()
parent = gpu(1)
instances = [nvmlDeviceGetMigDeviceHandleByIndex(parent, each) for each in range(2)]
before, after = nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc()
nvmlGpmMigSampleGet(parent, 2, before)
time.sleep(0.1)
nvmlGpmMigSampleGet(parent, 2, after)
told([
    nvmlDeviceGetMigMode(parent),
    error(nvmlDeviceGetUtilizationRates, parent),
    error(nvmlDeviceGetMigDeviceHandleByIndex, parent, 2),
    [nvmlDeviceGetUUID(each) for each in instances],
    [nvmlDeviceGetName(each) for each in instances],
    [[nvmlDeviceGetGpuInstanceId(each), nvmlDeviceGetComputeInstanceId(each)] for each in instances],
    [nvmlDeviceGetMemoryInfo(each, nvmlMemory_v2).used for each in instances],
    [nvmlDeviceGetAttributes(each).memorySizeMB for each in instances],
    [nvmlDeviceGetComputeRunningProcesses(each)[0].gpuInstanceId for each in instances],
    [nvmlDeviceIsMigDeviceHandle(each).value for each in instances],
    nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instances[1])),
    nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(instances[1]))),
    error(nvmlDeviceGetPowerUsage, instances[0]),
    metrics(before, after, 2),
    error(nvmlGpmMigSampleGet, parent, 7, after),
])
"""


def test_mig_instances_have_handles_and_values_of_their_own(fake_driver: FakeDriver) -> None:
    """The GPU itself loses its utilisation; memory, processes and GPM are per instance."""
    fake_driver.update(lambda node: split_into_instances(node["gpus"][1]))
    devices = fake_driver.node["gpus"][1]["mig"]["devices"]
    with Script(fake_driver, MIG_SCRIPT) as script:
        assert script.heard() == [
            *([1, 1], NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND),
            [each["uuid"] for each in devices],
            ["NVIDIA H100 80GB HBM3 MIG 3g.40gb"] * 2,
            [[1, 0], [2, 0]],
            [1000 << 20, 2000 << 20],
            [40448, 40448],
            [1, 2],
            *([1, 1], 1, 1, NOT_SUPPORTED),
            [[0, 22.0]],
            pynvml.NVML_ERROR_NOT_FOUND,
        ]


def test_the_counters_of_nvlink_5_are_other_fields(tmp_path: Path, nvml_library: Path) -> None:
    """A Blackwell has what a Hopper has not, and the other way round."""
    driver = FakeDriver(tmp_path, nvml_library, blackwell_node(2))
    answer = ask(driver, "[nvmlDeviceGetArchitecture(gpu(1)), field(gpu(1), (202, 3), (204, 17), (138, 3))]")
    assert answer == [10, [[0, 2103], [0, 4117], [NOT_SUPPORTED, 0]]]


def test_counters_of_a_running_node_grow(tmp_path: Path, nvml_library: Path) -> None:
    """They never fall, in a process that starts later neither."""
    driver = FakeDriver(tmp_path, nvml_library, running(FakeDriver(tmp_path, nvml_library).node))
    asked = "[nvmlDeviceGetTotalEnergyConsumption(gpu()), field(gpu(), (138, 0))[0][1]]"
    first = ask(driver, asked)
    second = ask(driver, asked)
    assert 5_000_000_000 < first[0] < second[0]
    assert 1_000_000_000 < first[1] < second[1]


def test_the_library_serves_this_process_too(fake_driver: FakeDriver) -> None:
    """Loaded beforehand it is found by its name, without LD_LIBRARY_PATH."""
    before = dict(os.environ)
    with fake_driver.in_this_process():
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 8
        pynvml.nvmlShutdown()
    assert dict(os.environ) == before


def test_a_name_the_library_does_not_know_is_refused(fake_driver: FakeDriver) -> None:
    """A misspelt function or path in a test must not pass unnoticed."""
    with pytest.raises(KeyError):
        fake_driver.hang("nvmlDeviceGetPower")
    with pytest.raises(KeyError):
        fake_driver.set(0, "power.usage", 1)
