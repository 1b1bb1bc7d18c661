"""The fake NVML library keeps its memory in order, so that a crash in a test is never its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.agent.process import DEADLINE_SECONDS
from support.gpu.nvml import FakeDriver, build_library, split_into_instances
from support.gpu.nvml_script import PRELUDE

ROUND = """
import os
node, broken = json.loads(sys.argv[1]), json.loads(sys.argv[2])
path = os.environ["RANKWATCH_FAKE_NVML"]

def publish(text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)

def call(function, *arguments):
    try:
        return function(*arguments)
    except (NVMLError, NVMLLibraryMismatchError):
        return None

getters = [
    function
    for name, function in sorted(globals().items())
    if name.startswith("nvmlDeviceGet") and not ("HandleBy" in name or "Fabric" in name)  # they take pointers
]
for text in [json.dumps(node), *broken, json.dumps(node)]:
    publish(text)
    call(nvmlInit)
    devices = [call(gpu, index) for index in range(call(nvmlDeviceGetCount) or 0)]
    devices += [call(nvmlDeviceGetMigDeviceHandleByIndex, each, 0) for each in devices]
    for device in devices:
        for function in getters:
            try:
                call(function, device)
                call(function, device, 0)
                call(function, device, 0, 1)
            except (TypeError, AttributeError, ctypes.ArgumentError):
                pass  # it takes other arguments
        for fabric in (c_nvmlGpuFabricInfo_v2_t(), c_nvmlGpuFabricInfo_v3_t()):
            call(nvmlDeviceGetGpuFabricInfoV, device, ctypes.byref(fabric))
        call(field, device, 74, 82, (138, 17), (138, 18), (138, 2**32 - 1), 2**32 - 1)
        sample = call(nvmlGpmSampleAlloc)
        events = call(nvmlEventSetCreate)
        if sample and events:
            call(nvmlGpmSampleGet, device, sample)
            call(nvmlGpmMigSampleGet, device, 1, sample)
            call(metrics, sample, sample, 1, 2, 476)
            call(nvmlGpmSampleFree, sample)
            call(nvmlDeviceRegisterEvents, device, 8, events)
            call(nvmlEventSetWait, events, 1)
            call(nvmlEventSetFree, events)
nvmlShutdown()
print("done")
"""
BROKEN = [
    "",
    "{",
    "[1,",
    '{"a": "\\u00"}',
    '{"a": "\\',
    '"',
    "[" * 1000,
    '{"gpus": 5}',
    '{"gpus": [1, {}, null]}',
]


def test_a_round_of_everything_passes_the_address_sanitizer(tmp_path: Path) -> None:
    """Every getter on every GPU and MIG instance, good files and broken ones; skipped without a sanitizer."""
    build_library(tmp_path)
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    runtime = Path(found.stdout.strip())
    if not runtime.is_absolute():
        pytest.skip("this C compiler has no address sanitizer")
    library = build_library(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
    driver = FakeDriver(tmp_path, library)
    driver.update(lambda node: split_into_instances(node["gpus"][1]))
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + ROUND, json.dumps(driver.node), json.dumps(BROKEN)],
        env={
            **os.environ,
            **driver.environ,
            "LD_PRELOAD": str(runtime),
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own would drown ours
            "PYTHONMALLOC": "malloc",
        },
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
