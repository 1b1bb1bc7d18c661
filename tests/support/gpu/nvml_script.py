"""Scripts that talk to the fake NVML driver through the real pynvml, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from support.gpu.nvml import FakeDriver

PRELUDE = """
import ctypes, json, sys, time
from pynvml import *

def gpu(index=0):
    return nvmlDeviceGetHandleByIndex(index)

def error(function, *arguments):
    "Number of the error the call raises."
    try:
        function(*arguments)
    except NVMLError as raised:
        return raised.value

def field(device, *wanted):
    "(result, value) of each field."
    kinds = {0: "dVal", 1: "uiVal", 3: "ullVal"}
    answers = nvmlDeviceGetFieldValues(device, list(wanted))
    return [(each.nvmlReturn, getattr(each.value, kinds[each.valueType])) for each in answers]

def metrics(before, after, *wanted):
    "(result, value) of each GPM metric."
    asked = c_nvmlGpmMetricsGet_t(version=1, numMetrics=len(wanted), sample1=before, sample2=after)
    for number, metric in enumerate(wanted):
        asked.metrics[number].metricId = metric
    nvmlGpmMetricsGet(asked)
    return [(asked.metrics[each].nvmlReturn, asked.metrics[each].value) for each in range(len(wanted))]

def told(line):
    "Say where we are, and wait until the test has answered."
    print(json.dumps(line), flush=True)
    sys.stdin.readline()
"""
"""What every script has at hand."""


class Script:
    """Lines of Python after the PRELUDE. It is killed at the end, whatever hangs."""

    def __init__(self, driver: FakeDriver, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code],
            env={**os.environ, **driver.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def heard(self) -> Any:
        """What the process told."""
        assert self.process.stdout and self.process.stderr
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def go_on(self) -> Any:
        """Let it go on; what it tells next."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.heard()


def ask(driver: FakeDriver, expression: str) -> Any:
    """Value of an expression after nvmlInit, as JSON carries it."""
    with Script(driver, f"nvmlInit(); told({expression})") as script:
        return script.heard()
