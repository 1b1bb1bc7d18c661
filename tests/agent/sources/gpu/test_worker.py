"""The NVML worker as a process: what it says, and that it ends whatever the driver does."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from rankwatch_agent.sources.gpu.protocol import MAX_MESSAGE_BYTES
from rankwatch_agent.sources.gpu.worker import parse_library
from support.agent.process import DEADLINE_SECONDS, clean_environment, until
from support.gpu.nvml import FakeDriver
from support.gpu.reading import LENGTH, Worker, values_of, worker_process

_HEAVY = {"prometheus_client", "http", "http.server", "argparse", "asyncio", "rankwatch_agent.runtime.config"}
_LOUD = """
#include <unistd.h>
__attribute__((constructor)) static void say(void) { (void)!write(1, "loud", 4); }
"""
_IMPORTS = """
import sys
import rankwatch_agent.sources.gpu.worker
print(*sys.modules)
"""


def functions_called(driver: FakeDriver) -> list[str]:
    return [function for _, function in driver.calls]


def test_a_worker_answers_each_request(fake_driver: FakeDriver) -> None:
    """With every GPU, its values and its processes."""
    with worker_process(fake_driver.environ) as worker:
        for _ in range(3):
            reading = worker.read()
        assert [gpu.uuid for gpu in reading.gpus] == [gpu["uuid"] for gpu in fake_driver.node["gpus"]]
        assert [values_of(gpu)["power_watts",] for gpu in reading.gpus] == [
            610.25 + each for each in range(8)
        ]
        assert reading.gpus[6].pids == (40006,)
        assert worker.end() == (0, "")
    assert functions_called(fake_driver) == ["nvmlInit", "nvmlShutdown"]


def test_the_library_can_be_named(fake_driver: FakeDriver) -> None:
    """For a driver that lies where the system's loader does not look."""
    library = str(fake_driver.library)
    with worker_process(fake_driver.environ_without_path, "--library", library) as worker:
        assert len(worker.read().gpus) == 8


def test_a_library_that_is_not_there_is_an_absent_driver(fake_driver: FakeDriver, tmp_path: Path) -> None:
    """The worker goes on, for the library may come."""
    missing = tmp_path / "libnvidia-ml.so.1"
    with worker_process(fake_driver.environ_without_path, "--library", str(missing)) as worker:
        failure = worker.collect().failure
        assert failure
        assert failure.absent
        assert failure.message.startswith(f"could not load {missing}: ")
        missing.symlink_to(fake_driver.library)
        assert len(worker.read().gpus) == 8


def test_no_driver_at_all_is_absent() -> None:
    """A node without GPUs."""
    with worker_process({"LD_LIBRARY_PATH": "/nonexistent"}) as worker:
        failure = worker.collect().failure
        if failure is None:
            pytest.skip("this machine has a driver")
        assert failure.absent
        assert worker.end() == (0, "")


def test_a_hanging_wait_for_events_does_not_stop_readings(fake_driver: FakeDriver) -> None:
    """It is a thread of its own; the end of input ends the process all the same."""
    fake_driver.hang("nvmlEventSetWait")
    with worker_process(fake_driver.environ) as worker:
        for _ in range(3):
            assert len(worker.read().gpus) == 8
        assert worker.end() == (0, "")


def hangs(pid: int) -> bool:
    """Whether a thread of the process is in a call that never returns; the fake driver names it so."""
    names = []
    for comm in Path(f"/proc/{pid}/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended meanwhile
            names.append(comm.read_text())
    return "nvml hangs\n" in names


def test_a_driver_that_goes_while_the_wait_hangs_is_left_to_a_new_process(fake_driver: FakeDriver) -> None:
    """Nothing can be shut down under a thread that is in the driver."""
    fake_driver.hang("nvmlEventSetWait")
    with worker_process(fake_driver.environ) as worker:
        worker.read()
        until(lambda: hangs(worker.process.pid), "a thread hangs in the wait")
        fake_driver.reload()
        assert worker.collect().failure
        assert worker.ended() == (0, "")
    assert "nvmlShutdown" not in functions_called(fake_driver)


def test_the_end_of_input_during_a_hanging_call_ends_the_process(fake_driver: FakeDriver) -> None:
    """The call is given a while, then the process leaves without it."""
    with worker_process(fake_driver.environ) as worker:
        fake_driver.hang("nvmlInit")  # the one call that shows when it begins
        worker.request()
        until(lambda: functions_called(fake_driver) == ["nvmlInit"], "the call has begun")
        assert worker.end() == (0, "")
    assert functions_called(fake_driver) == ["nvmlInit"]


def test_the_end_of_input_during_a_hanging_shutdown_ends_the_process(fake_driver: FakeDriver) -> None:
    """nvmlShutdown may be what hangs."""
    fake_driver.hang("nvmlShutdown")
    with worker_process(fake_driver.environ) as worker:
        worker.read()
        assert worker.end() == (0, "")


@pytest.mark.parametrize(
    "garbage",
    [
        LENGTH.pack(MAX_MESSAGE_BYTES + 1),
        LENGTH.pack(3) + b"\xc1\xc1\xc1",
        LENGTH.pack(0),
        LENGTH.pack(2) + msgspec.msgpack.encode({})[:1] + b"x",
    ],
)
def test_what_is_no_request_ends_the_process_in_order(fake_driver: FakeDriver, garbage: bytes) -> None:
    """With one sentence, and the driver is shut down."""
    with worker_process(fake_driver.environ) as worker:
        worker.read()
        worker.write(garbage)
        status, log = worker.ended()
    assert status == 1
    assert log.startswith("rankwatch NVML worker: not a request: ")
    assert log.count("\n") == 1
    assert functions_called(fake_driver) == ["nvmlInit", "nvmlShutdown"]


def test_an_unknown_request_is_no_request(fake_driver: FakeDriver) -> None:
    """An agent of another version speaks to it."""
    message = msgspec.msgpack.encode({"what": "dance"})
    with worker_process(fake_driver.environ) as worker:
        worker.write(LENGTH.pack(len(message)) + message)
        assert worker.ended()[0] == 1


def test_half_a_request_is_the_end_of_input(fake_driver: FakeDriver) -> None:
    """The agent died while it wrote."""
    with worker_process(fake_driver.environ) as worker:
        worker.write(LENGTH.pack(10) + b"abc")
        assert worker.end() == (0, "")


def test_an_interrupt_from_the_terminal_is_left_to_the_agent(fake_driver: FakeDriver) -> None:
    """Ctrl-C reaches the whole group; the agent ends the worker in order."""
    with worker_process(fake_driver.environ) as worker:
        worker.read()
        worker.process.send_signal(signal.SIGINT)
        assert len(worker.read().gpus) == 8


def test_a_termination_ends_it_without_noise(fake_driver: FakeDriver) -> None:
    """Also where the parent ignored the signal."""
    with worker_process(fake_driver.environ) as worker:
        worker.read()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ended() == (-signal.SIGTERM, "")


def test_an_agent_that_does_not_listen_any_more_ends_it(fake_driver: FakeDriver) -> None:
    """The driver is shut down."""
    with worker_process(fake_driver.environ) as worker:
        worker.read()
        assert worker.process.stdout
        worker.process.stdout.close()
        worker.request()
        assert worker.process.wait(DEADLINE_SECONDS) == 0
    assert functions_called(fake_driver) == ["nvmlInit", "nvmlShutdown"]


def test_what_a_library_prints_does_not_get_between_the_answers(
    fake_driver: FakeDriver, tmp_path: Path
) -> None:
    """Standard output of the process is not that of the messages."""
    (tmp_path / "loud").mkdir()
    source, library = tmp_path / "loud.c", tmp_path / "loud/libloud.so"
    source.write_text(_LOUD)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with worker_process(fake_driver.environ, "--library", str(library)) as worker:
        assert len(worker.read().gpus) == 8
        assert worker.end() == (0, "loud")


def test_xids_are_in_the_next_answer(fake_driver: FakeDriver) -> None:
    """Also where that answer is a failure."""
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


def test_a_reading_is_small_and_quick_to_repeat(fake_driver: FakeDriver) -> None:
    """A reading costs no thread, no open file and no memory that stays."""
    with worker_process(fake_driver.environ) as worker:
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
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return int(status["Threads"]), files, int(status["VmRSS"].split()[0]) * 1024


def test_the_worker_imports_little() -> None:
    """Its memory is the price of being able to kill it."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS], env=clean_environment(), capture_output=True, text=True, check=True
    )
    imported = done.stdout.split()
    assert "pynvml" in imported
    assert not _HEAVY.intersection(imported)


@pytest.mark.parametrize("arguments", [["--library"], ["--library", ""], ["x"], ["--library", "a", "b"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    """One line says how it is used."""
    with pytest.raises(ValueError, match="usage: "):
        parse_library(arguments)


def test_the_library_is_optional() -> None:
    """Without it the system's loader finds the driver."""
    assert parse_library([]) is None
    assert parse_library(["--library", "/a/b"]) == Path("/a/b")
