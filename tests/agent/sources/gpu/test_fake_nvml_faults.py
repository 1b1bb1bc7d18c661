"""The fake NVML library fails as a driver does: lost GPUs, hung calls, XIDs, a driver that goes."""

from __future__ import annotations

import signal

import pynvml
import pytest

from support.agent.process import DEADLINE_SECONDS
from support.gpu.nvml import FakeDriver
from support.gpu.nvml_script import Script, ask

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_value_may_be_changed_while_the_driver_is_in_use(fake_driver: FakeDriver) -> None:
    """The next call sees it; null is what the GPU does not support, and sentinels pass as they are."""
    code = """
nvmlInit()
device = gpu(1)
told(nvmlDeviceGetPowerUsage(device))
told(nvmlDeviceGetPowerUsage(device))
told([nvmlDeviceGetPowerUsage(device), field(device, 82, (138, 0))])
told(error(nvmlDeviceGetPowerUsage, device))
"""
    with Script(fake_driver, code) as script:
        assert script.heard() == 611_250
        fake_driver.set(1, "power.usage_mw", 5)
        assert script.go_on() == 5
        fake_driver.set(1, "power.usage_mw", 2**32 - 1)
        fake_driver.set(1, "fields.82", 2**32 - 1)
        fake_driver.set(1, "fields.138.0", 2**64 - 1)
        assert script.go_on() == [2**32 - 1, [[0, 2**32 - 1], [0, 2**64 - 1]]]
        fake_driver.set(1, "power.usage_mw", None)
        assert script.go_on() == NOT_SUPPORTED


def test_unsupported_and_failing_calls_say_so(fake_driver: FakeDriver) -> None:
    """For one GPU or for the node, for a function, a field or a single value."""
    fake_driver.unsupport("nvmlDeviceGetPowerUsage", 0)
    fake_driver.unsupport(82, 0)
    fake_driver.unsupport("nvmlDeviceGetMemoryInfo")
    fake_driver.fail("nvmlDeviceGetFieldValues", 16, 2)
    fake_driver.fail(94, 999, 1)
    fake_driver.set(1, "fields.138.3", {"error": 20})
    answers = ask(
        fake_driver,
        "[error(nvmlDeviceGetPowerUsage, gpu(0)), error(nvmlDeviceGetPowerUsage, gpu(1)), "
        "[error(nvmlDeviceGetMemoryInfo, gpu(1), each) for each in (None, nvmlMemory_v2)], "
        "[each[0] for each in field(gpu(0), 82, 94)], "
        "[each[0] for each in field(gpu(1), 82, 94, (138, 3), (138, 4))], error(field, gpu(2), 82)]",
    )
    assert answers == [NOT_SUPPORTED, None, [3, 3], [NOT_SUPPORTED, 0], [0, 999, 20, 0], 16]


def test_a_lost_gpu_says_so_for_every_call(fake_driver: FakeDriver) -> None:
    """On a handle from before, its UUID included, and for a new handle; the others go on, the count stays."""
    code = """
nvmlInit()
lost, other = gpu(5), gpu(6)
told(nvmlDeviceGetUUID(lost))
calls = [nvmlDeviceGetUUID, nvmlDeviceGetPowerUsage, nvmlDeviceGetPciInfo, nvmlDeviceGetIndex]
told([[error(each, lost) for each in calls], error(gpu, 5), nvmlDeviceGetCount(), nvmlDeviceGetIndex(other)])
told(nvmlDeviceGetUUID(lost))
"""
    with Script(fake_driver, code) as script:
        uuid = script.heard()
        fake_driver.lose(5)
        assert script.go_on() == [[LOST] * 4, LOST, 8, 6]
        fake_driver.find(5)
        assert script.go_on() == uuid


HANG_SCRIPT = """
import threading

def pauses(thread, deadline_seconds=20):
    "Whether it comes to wait in pause(2), number 34, or in ppoll(2), 73, of which some C libraries make it."
    end = time.monotonic() + deadline_seconds
    while time.monotonic() < end:
        with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
            if file.read().split()[0] in ("34", "73"):
                return True
        time.sleep(0.01)
    return False

nvmlInit()
device = gpu(1)
told("ready")
hung = threading.Thread(target=nvmlDeviceGetPowerUsage, args=(device,), daemon=True)
hung.start()
told([pauses(hung), nvmlDeviceGetPowerUsage(gpu(0)), nvmlDeviceGetIndex(device)])
told([nvmlDeviceGetPowerUsage(device), hung.is_alive()])
watched = threading.main_thread()
threading.Thread(target=lambda: print(json.dumps(pauses(watched)), flush=True)).start()
nvmlDeviceGetPowerUsage(device)
"""


def test_a_hung_call_never_returns_and_new_ones_do_after_release(fake_driver: FakeDriver) -> None:
    """Other threads of the process go on, and SIGTERM ends it."""
    with Script(fake_driver, HANG_SCRIPT) as script:
        assert script.heard() == "ready"
        fake_driver.hang("nvmlDeviceGetPowerUsage", 1)
        assert script.go_on() == [True, 610_250, 1]
        fake_driver.release()
        assert script.go_on() == [611_250, True]
        fake_driver.hang("nvmlDeviceGetPowerUsage")
        assert script.go_on() is True
        script.process.send_signal(signal.SIGTERM)
        assert script.process.wait(DEADLINE_SECONDS) == -signal.SIGTERM


def test_an_xid_is_delivered_once_to_a_set_registered_before(fake_driver: FakeDriver) -> None:
    """In order, with the handle of its GPU, lost or not; without one the wait ends at its timeout."""
    fake_driver.xid(0, 13)
    code = """
nvmlInit()
events = nvmlEventSetCreate()
handles = {}
for index in range(nvmlDeviceGetCount()):
    device = gpu(index)
    handles[ctypes.cast(device, ctypes.c_void_p).value] = index
    nvmlDeviceRegisterEvents(device, nvmlEventTypeXidCriticalError, events)
def wait(milliseconds):
    event = nvmlEventSetWait(events, milliseconds)
    return [handles[ctypes.cast(event.device, ctypes.c_void_p).value], event.eventType, event.eventData]
started = time.monotonic()
told([error(wait, 150), time.monotonic() - started >= 0.15])
told([wait(20000), wait(0), error(wait, 0)])
nvmlEventSetFree(events)
told(error(wait, 0))
"""
    with Script(fake_driver, code) as script:
        assert script.heard() == [pynvml.NVML_ERROR_TIMEOUT, True]
        fake_driver.lose(4)
        fake_driver.xid(4, 79)
        fake_driver.xid(2, 48)
        assert script.go_on() == [[4, 8, 79], [2, 8, 48], pynvml.NVML_ERROR_TIMEOUT]
        assert script.go_on() == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_a_driver_that_goes_and_comes_back_must_be_initialised_anew(fake_driver: FakeDriver) -> None:
    """Absent it says so; the one that came back does not know its former users."""
    code = """
nvmlInit()
device = gpu(0)
told("ready")
told([error(nvmlDeviceGetPowerUsage, device), error(nvmlInit)])
told(error(nvmlDeviceGetPowerUsage, device))
nvmlInit()
told([nvmlDeviceGetPowerUsage(gpu(0)), nvmlDeviceGetPowerUsage(device)])
nvmlShutdown()
told([error(nvmlDeviceGetCount), error(nvmlShutdown)])
"""
    with Script(fake_driver, code) as script:
        script.heard()
        fake_driver.unload()
        assert script.go_on() == [pynvml.NVML_ERROR_DRIVER_NOT_LOADED] * 2
        fake_driver.load()
        assert script.go_on() == pynvml.NVML_ERROR_UNINITIALIZED
        assert script.go_on() == [610_250] * 2
        assert script.go_on() == [pynvml.NVML_ERROR_UNINITIALIZED] * 2
        pid = script.process.pid
    assert fake_driver.calls == [(pid, "nvmlInit")] * 3 + [(pid, "nvmlShutdown")] * 2


BROKEN = [
    *("", "{", "[1,", '{"gpus": [', '"text', '{"a": "\\u00"}', '{"a" 1}', "[" * 1000, "nul", "{}x"),
    *('{"gpus": 5', "1e999e", '{"a": }', "[1, ]", '{"a": 1,}', "\\", "-", "[" + "9" * 400),
]


def test_a_broken_file_fails_nvmlinit_and_harms_nothing(fake_driver: FakeDriver) -> None:
    """Unknown error for each, never a crash; a good file is good again."""
    code = """
while True:
    told(error(nvmlInit))
"""
    with Script(fake_driver, code) as script:
        assert script.heard() is None
        for text in BROKEN:
            fake_driver.write_text(text)
            assert script.go_on() == pynvml.NVML_ERROR_UNKNOWN, text
        fake_driver.update(lambda _: None)
        assert script.go_on() is None


@pytest.mark.parametrize(
    "text", ["{}", '{"gpus": 5}', '{"gpus": [1, null, {}, []]}', '{"gpus": [{"pci": 3}]}']
)
def test_a_node_of_an_odd_shape_has_errors_only(fake_driver: FakeDriver, text: str) -> None:
    """Whatever lies where an object should be, no call crashes."""
    code = """
nvmlInit()
calls = [nvmlDeviceGetUUID, nvmlDeviceGetPciInfo, nvmlDeviceGetUtilizationRates, nvmlDeviceGetRemappedRows,
         nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetMigMode, nvmlDeviceGetTotalEnergyConsumption]
found = [gpu(each) for each in range(nvmlDeviceGetCount())]
told([error(call, each) in (2, 3) for call in calls for each in found])
"""
    fake_driver.write_text(text)
    with Script(fake_driver, code) as script:
        assert all(script.heard())
