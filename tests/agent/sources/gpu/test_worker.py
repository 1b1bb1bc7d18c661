"""The NVML worker as a process: it answers, and it ends even if the driver hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from rankwatch_agent.sources.gpu.driver import worker_command
from rankwatch_agent.sources.gpu.protocol import MAX_MESSAGE_BYTES
from rankwatch_agent.sources.gpu.worker import Options, parse_options
from support.agent.process import DEADLINE_SECONDS, clean_environment, until
from support.gpu.nvml import FakeDriver
from support.gpu.reading import LENGTH, Worker, worker_process

pytestmark = pytest.mark.process

_HEAVY = {"prometheus_client", "http", "http.server", "argparse", "asyncio", "rankwatch_agent.runtime.config"}
DANCE = msgspec.msgpack.encode({"what": "dance"})
_LOUD = """
#include <unistd.h>
__attribute__((constructor)) static void say(void) { (void)!write(1, "loud", 4); }
"""


@pytest.fixture
def worker(fake_driver: FakeDriver) -> Iterator[Worker]:
    with worker_process(fake_driver.environ) as running:
        yield running


def functions_called(driver: FakeDriver) -> list[str]:
    return [function for _, function in driver.calls]


def test_answers(fake_driver: FakeDriver, worker: Worker) -> None:
    """Each has every GPU and its processes, and the driver is started once."""
    for _ in range(3):
        reading = worker.read()
    assert [gpu.uuid for gpu in reading.gpus] == [gpu["uuid"] for gpu in fake_driver.node["gpus"]]
    assert [gpu.pids for gpu in reading.gpus] == [(40000 + each,) for each in range(8)]
    assert worker.end() == (0, "")
    assert functions_called(fake_driver) == ["nvmlInit", "nvmlShutdown"]


def test_library_argument(fake_driver: FakeDriver) -> None:
    """For a driver that lies where the system's loader does not look."""
    library = str(fake_driver.library)
    with worker_process(fake_driver.environ_without_path, "--library", library) as worker:
        assert len(worker.read().gpus) == 8


def test_missing_library(fake_driver: FakeDriver, tmp_path: Path) -> None:
    """The driver is absent; the worker goes on, because the library may come."""
    missing = tmp_path / "libnvidia-ml.so.1"
    with worker_process(fake_driver.environ_without_path, "--library", str(missing)) as worker:
        failure = worker.collect().failure
        assert failure
        assert failure.absent
        assert failure.message.startswith(f"could not load {missing}: ")
        missing.symlink_to(fake_driver.library)
        assert len(worker.read().gpus) == 8


def test_no_driver() -> None:
    with worker_process({"LD_LIBRARY_PATH": "/nonexistent"}) as worker:
        failure = worker.collect().failure
        if failure is None:
            pytest.skip("this machine has a driver")
        assert failure.absent
        assert worker.end() == (0, "")


@pytest.mark.parametrize("function", ["nvmlEventSetWait", "nvmlShutdown"])
def test_end_of_input_during_a_hung_thread(fake_driver: FakeDriver, function: str) -> None:
    """The wait for events has a thread of its own, so readings go on, and so has the shutdown: both end."""
    fake_driver.hang(function)
    with worker_process(fake_driver.environ) as worker:
        for _ in range(3):
            assert len(worker.read().gpus) == 8
        assert worker.end() == (0, "")


def hangs(pid: int) -> bool:
    """Whether a thread of the process is in a call that never returns; the fake driver renames it then."""
    for comm in Path(f"/proc/{pid}/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended meanwhile
            if comm.read_text() == "nvml hangs\n":
                return True
    return False


def test_driver_goes_during_a_hung_wait(fake_driver: FakeDriver) -> None:
    """Nothing can be shut down under a thread in the driver, so a new process has to go on."""
    fake_driver.hang("nvmlEventSetWait")
    with worker_process(fake_driver.environ) as worker:
        worker.read()
        until(lambda: hangs(worker.process.pid), "a thread hangs in the wait")
        fake_driver.reload()
        assert worker.collect().failure
        assert worker.ended() == (0, "")
    assert "nvmlShutdown" not in functions_called(fake_driver)


def test_end_of_input_during_a_hung_call(fake_driver: FakeDriver, worker: Worker) -> None:
    """The call gets some time, then the process exits without it."""
    fake_driver.hang("nvmlInit")  # the one call that shows when it begins
    worker.request()
    until(lambda: functions_called(fake_driver) == ["nvmlInit"], "the call has begun")
    assert worker.end() == (0, "")
    assert functions_called(fake_driver) == ["nvmlInit"]


@pytest.mark.parametrize(
    "garbage",
    [
        LENGTH.pack(MAX_MESSAGE_BYTES + 1),
        LENGTH.pack(3) + b"\xc1\xc1\xc1",
        LENGTH.pack(0),
        LENGTH.pack(2) + msgspec.msgpack.encode({})[:1] + b"x",
        LENGTH.pack(len(DANCE)) + DANCE,  # from an agent of another version
    ],
)
def test_bad_request(fake_driver: FakeDriver, worker: Worker, garbage: bytes) -> None:
    """The process shuts the driver down and ends with one line of log."""
    worker.read()
    worker.write(garbage)
    status, log = worker.ended()
    assert status == 1
    assert log.startswith("rankwatch NVML worker: not a request: ")
    assert log.count("\n") == 1
    assert functions_called(fake_driver) == ["nvmlInit", "nvmlShutdown"]


def test_half_a_request(worker: Worker) -> None:
    """The agent died while it wrote: this is the end of input."""
    worker.write(LENGTH.pack(10) + b"abc")
    assert worker.end() == (0, "")


def test_sigint_is_ignored(worker: Worker) -> None:
    """Ctrl-C reaches the whole process group, but the agent ends the worker in order."""
    worker.read()
    worker.process.send_signal(signal.SIGINT)
    assert len(worker.read().gpus) == 8


def test_sigterm(worker: Worker) -> None:
    """It ends the worker without output."""
    worker.read()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ended() == (-signal.SIGTERM, "")


def test_agent_is_gone(fake_driver: FakeDriver, worker: Worker) -> None:
    """The worker shuts the driver down and ends."""
    worker.read()
    assert worker.process.stdout
    worker.process.stdout.close()
    worker.request()
    assert worker.process.wait(DEADLINE_SECONDS) == 0
    assert functions_called(fake_driver) == ["nvmlInit", "nvmlShutdown"]


def test_library_prints(fake_driver: FakeDriver, tmp_path: Path) -> None:
    """Standard output of the process is not the stream of answers."""
    (tmp_path / "loud").mkdir()
    source, library = tmp_path / "loud.c", tmp_path / "loud/libloud.so"
    source.write_text(_LOUD)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with worker_process(fake_driver.environ, "--library", str(library)) as worker:
        assert len(worker.read().gpus) == 8
        assert worker.end() == (0, "loud")


def test_xids_are_in_the_next_answer(fake_driver: FakeDriver) -> None:
    found: list[int] = []

    def told(worker: Worker) -> bool:
        fake_driver.xid(1, 79)
        answer = worker.collect()
        assert answer.reading
        found.extend(each.xid for each in answer.reading.xids)
        return bool(found)

    with worker_process(fake_driver.environ) as worker:
        worker.read()
        until(lambda: told(worker), "an XID is told")
    assert set(found) == {79}


def test_readings_leak_nothing(worker: Worker) -> None:
    """A reading leaves no thread, no open file and no memory behind."""
    for _ in range(20):
        worker.read()
    before = _held(worker.process.pid)
    for _ in range(100):
        worker.read()
    after = _held(worker.process.pid)
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 1 << 20


def _held(pid: int) -> tuple[int, int, int]:
    """Threads, open files, resident bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return int(status["Threads"]), files, int(status["VmRSS"].split()[0]) * 1024


def test_imports() -> None:
    """Its memory comes on top of the agent's."""
    code = "import sys, rankwatch_agent.sources.gpu.worker; print(*sys.modules)"
    imported = subprocess.check_output(
        [sys.executable, "-c", code], env=clean_environment(), text=True
    ).split()
    assert "pynvml" in imported
    assert not _HEAVY.intersection(imported)


@pytest.mark.parametrize(
    "arguments",
    [["--library"], ["--library", ""], ["x"], ["--library", "a", "b"], ["--nvlink-per-link", "b"]],
)
def test_wrong_arguments(arguments: list[str]) -> None:
    """One line shows the usage."""
    with pytest.raises(ValueError, match="usage: "):
        parse_options(arguments)


def test_options() -> None:
    """Without the first argument the system's loader finds the driver."""
    assert parse_options([]) == Options()
    assert parse_options(["--library", "/a/b"]) == Options(library=Path("/a/b"))
    assert parse_options(worker_command(Path("/a"), nvlink_per_link=True)[4:]) == Options(Path("/a"), True)
