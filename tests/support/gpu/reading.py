"""Readings of the fake driver, in this process or from a real worker process."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import pytest

from rankwatch_agent.sources.gpu.protocol import Answer, Failure, Gpu, Reading, Request
from rankwatch_agent.sources.gpu.reading.node import NodeReader
from support.agent.process import DEADLINE_SECONDS, clean_environment, until
from support.gpu.nvml import FakeDriver

Values = dict[tuple[str, ...], float]
"""(metric without rankwatch_gpu_, labels other than the GPU) -> value."""
LENGTH = struct.Struct(">I")
NEW_DRIVER = "580.95.05"


class Node(NamedTuple):
    """A fake driver, and a reader of it in this process."""

    driver: FakeDriver
    reader: NodeReader

    def read(self) -> Reading:
        """One reading, which must succeed."""
        answer = self.reader.read()
        assert answer.reading is not None, answer.failure
        return answer.reading

    def fail(self) -> Failure:
        """One reading, which must fail."""
        answer = self.reader.read()
        assert answer.failure is not None, "the reading succeeded"
        return answer.failure

    def values(self, index: int = 0) -> Values:
        """The values of one GPU in one reading."""
        return values_of(self.read().gpus[index])

    def values_with_activity(self, index: int = 0) -> Values:
        """The same from the first reading in which GPM had two samples, which must be 100 ms apart."""
        found: Values = {}

        def known() -> bool:
            found.clear()
            found.update(self.values(index))
            return any(name.endswith("activity_ratio") for name, *_ in found)

        until(known, "GPM has two samples")
        return found


@pytest.fixture
def node(fake_driver: FakeDriver) -> Iterator[Node]:
    """A healthy node, read in this process."""
    fake_driver.update(lambda node: node["driver"].update(version=NEW_DRIVER))
    with fake_driver.in_this_process():
        reader = NodeReader(event_wait_milliseconds=20)
        yield Node(fake_driver, reader)
        reader.close()


def values_of(gpu: Gpu) -> Values:
    """Its samples by name and labels; no sample may occur twice."""
    found: Values = {}
    for sample in gpu.samples:
        assert sample.labels[0] == gpu.uuid
        key = (sample.metric.removeprefix("rankwatch_gpu_"), *sample.labels[1:])
        assert key not in found, key
        found[key] = sample.value
    return found


def node_values(reading: Reading, *metrics: str) -> Values:
    """The samples of the whole node, or those of some metrics."""
    found = {
        (each.metric.removeprefix("rankwatch_gpu_"), *each.labels): each.value for each in reading.samples
    }
    return family(found, *metrics) if metrics else found


def family(values: Values, *prefixes: str) -> Values:
    """The series of the metrics whose names begin so."""
    return {key: value for key, value in values.items() if key[0].startswith(prefixes)}


def series(metric: str, **by_label: float) -> Values:
    """Series of a metric with one label."""
    return {(metric, label): value for label, value in by_label.items()}


class Worker:
    """A worker process, used as the agent uses it."""

    def __init__(self, environ: Mapping[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rankwatch_agent.sources.gpu.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**clean_environment(), **environ},
            bufsize=0,
        )
        assert self.process.stdin
        assert self.process.stdout
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    def write(self, data: bytes) -> None:
        """Write to its standard input."""
        self._stdin.write(data)

    def request(self) -> None:
        """Request a reading without waiting for it."""
        message = msgspec.msgpack.encode(Request())
        self.write(LENGTH.pack(len(message)) + message)

    def answer(self) -> Answer:
        """The next answer."""
        return msgspec.msgpack.decode(self._exactly(*LENGTH.unpack(self._exactly(4))), type=Answer)

    def collect(self) -> Answer:
        """Request a reading; returns the answer."""
        self.request()
        return self.answer()

    def read(self) -> Reading:
        """A reading, which must succeed."""
        answer = self.collect()
        assert answer.reading is not None, answer.failure
        return answer.reading

    def end(self) -> tuple[int, str]:
        """Close its standard input; returns exit status and standard error."""
        self._stdin.close()
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for its end; returns exit status and standard error."""
        assert self.process.stderr
        status = self.process.wait(DEADLINE_SECONDS)
        return status, self.process.stderr.read().decode()

    def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self._stdout.read(size - len(parts))
            assert part, f"the worker ended: {self.ended()}"
            parts += part
        return parts


@contextlib.contextmanager
def worker_process(environ: Mapping[str, str], *arguments: str) -> Iterator[Worker]:
    """A worker, killed at the end if it still runs."""
    worker = Worker(environ, *arguments)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait()
        for stream in (worker.process.stdin, worker.process.stdout, worker.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
