"""The driver as the agent uses it, with real worker processes that misbehave."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankwatch.conventions.states import DriverState
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.gpu.driver import FIRST_PAUSE_SECONDS, Driver, worker_command
from support.agent.process import DEADLINE_SECONDS, ManualClock, until
from support.gpu import worker as fake_worker
from support.gpu.nvml import FakeDriver

pytestmark = pytest.mark.process

LONG = DEADLINE_SECONDS


@dataclass
class Bench:
    """A driver whose worker does what `act` sets."""

    driver: Driver
    file: Path
    clock: ManualClock

    def act(self, what: str) -> None:
        self.file.write_text(what)

    def hang(self) -> None:
        """A collection that ends because the worker, known to be quick, hangs."""
        self.act("answer")
        self.driver.collect(LONG)
        self.act("hang")
        with pytest.raises(CollectError, match=r"driver unresponsive: no answer within 0\.2 s"):
            self.driver.collect(0.2)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    clock, file = ManualClock(), tmp_path / "act"
    file.write_text("answer")
    driver = Driver(fake_worker.command(file), kill_seconds=LONG, monotonic=clock)
    yield Bench(driver, file, clock)
    driver.close()


def worker_pid(bench: Bench) -> int:
    worker = bench.driver._worker
    assert worker is not None
    return worker.pid


def gone(pid: int) -> bool:
    """Whether no process has this id; one that ended and was not waited for still has it."""
    return not Path(f"/proc/{pid}").exists()


def open_files() -> set[tuple[str, str]]:
    """Number and name of each open file of this process; what other tests left may close at any time."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add((each.name, str(each.readlink())))
    return found


def test_one_worker_answers_again_and_again(bench: Bench) -> None:
    """It is started once."""
    answers = [bench.driver.collect(LONG) for _ in range(3)]
    assert all(answer.reading == fake_worker.reading() for answer in answers)
    assert bench.driver.status() == (DriverState.IN_USE, 0, 1, 1)


def test_hung_call(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The worker is killed without a trace, the hang is counted, and the log has an event to search for."""
    bench.driver.collect(LONG)
    pid = worker_pid(bench)
    bench.hang()
    assert gone(pid)
    assert bench.driver.status() == (DriverState.UNRESPONSIVE, 1, 1, 0)
    events = [getattr(record, "event", None) for record in caplog.records if record.levelno == logging.ERROR]
    assert events == ["driver_unresponsive"]


def test_pauses_after_hangs(tmp_path: Path) -> None:
    """They grow up to a limit, and no worker is started meanwhile."""
    clock, file = ManualClock(), tmp_path / "act"
    file.write_text("hang")
    command = fake_worker.command(file)
    driver = Driver(command, start_seconds=0.05, kill_seconds=LONG, monotonic=clock)
    for hangs, pause in enumerate((5.0, 10.0, 20.0, 40.0, 60.0, 60.0), start=1):
        with pytest.raises(CollectError, match="no answer within"):
            driver.collect(0.05)
        clock.now += pause - 1.0
        with pytest.raises(CollectError, match="driver unresponsive: next try in 1 s"):
            driver.collect(0.05)
        assert driver.status() == (DriverState.UNRESPONSIVE, hangs, hangs, 0)
        clock.now += 1.0


def test_driver_comes_back(bench: Bench) -> None:
    """A new worker uses it after the pause, and the next pause is short again."""
    bench.hang()
    bench.act("answer")
    bench.clock.now += FIRST_PAUSE_SECONDS
    assert bench.driver.collect(LONG).reading
    assert bench.driver.status() == (DriverState.IN_USE, 1, 2, 1)


def test_worker_exits(bench: Bench) -> None:
    """It does so when the driver was replaced under its library; no collection fails."""
    bench.act("leave")
    bench.driver.collect(LONG)
    pid = worker_pid(bench)
    stat = Path(f"/proc/{pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "the worker has left")
    bench.act("answer")
    assert bench.driver.collect(LONG).reading
    assert bench.driver.status() == (DriverState.IN_USE, 0, 2, 1)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("die", "the NVML worker ended by signal 11; it will be started again"),
        ("garbage", "MessagePack"),
        ("huge", "announced an answer of 4294967295 bytes"),
    ],
)
def test_worker_dies_or_breaks_the_protocol(bench: Bench, what: str, said: str) -> None:
    """A crash inside the driver's library hits the worker, not the agent."""
    bench.act(what)
    with pytest.raises(CollectError, match=said):
        bench.driver.collect(LONG)
    assert bench.driver.status() == (DriverState.UNAVAILABLE, 0, 1, 0)
    bench.act("answer")
    bench.clock.now += FIRST_PAUSE_SECONDS
    assert bench.driver.collect(LONG).reading


def test_half_an_answer_is_a_hang(bench: Bench) -> None:
    """The deadline holds for the whole answer."""
    bench.driver.collect(LONG)
    bench.act("half")
    with pytest.raises(CollectError, match="driver unresponsive"):
        bench.driver.collect(0.2)


def test_driver_fails(bench: Bench) -> None:
    """The worker stays and tries again at the next request."""
    bench.act("fail")
    assert bench.driver.collect(LONG).failure
    assert bench.driver.status() == (DriverState.UNAVAILABLE, 0, 1, 0)
    bench.act("answer")
    assert bench.driver.collect(LONG).reading
    assert bench.driver.status() == (DriverState.IN_USE, 0, 1, 1)


def test_release_shuts_the_driver_down(fake_driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does it and then exits, if it gets the time."""
    for name, value in fake_driver.environ.items():
        monkeypatch.setenv(name, value)
    driver = Driver(worker_command(None), end_seconds=LONG)
    assert driver.collect(LONG).reading
    driver.release()
    ((first, init), (second, shutdown)) = fake_driver.calls
    assert (init, shutdown, first) == ("nvmlInit", "nvmlShutdown", second)


@contextmanager
def asking(driver: Driver) -> Iterator[None]:
    """A request in another thread, which the release of the driver ends."""
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(driver.collect, 3600.0)
        yield
        with pytest.raises(NotApplicable, match="the driver is being released"):
            asked.result(LONG)


def test_release_during_a_hung_call(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The request ends at once and is no hang; the log names the worker that was killed."""
    bench.act("hang")
    with asking(bench.driver):
        until(lambda: bench.driver.status().starts == 1, "the worker is started")
        pid = worker_pid(bench)
        bench.driver.release()
    assert gone(pid)
    assert "the NVML worker did not shut the driver down within 1.5 s; it is killed" in caplog.messages
    assert bench.driver.status() == (DriverState.RELEASED, 0, 1, 0)


def test_close(bench: Bench) -> None:
    """Neither a process nor a file descriptor is left, and nothing starts again."""
    before = open_files()
    bench.driver.collect(LONG)
    pid = worker_pid(bench)
    bench.driver.close()
    bench.driver.resume()
    with pytest.raises(NotApplicable):
        bench.driver.collect(LONG)
    assert gone(pid)
    assert open_files() <= before


def test_worker_cannot_be_started() -> None:
    with pytest.raises(CollectError, match="could not start the NVML worker: No such file"):
        Driver(["/nonexistent"]).collect(1.0)


def test_resume_of_a_driver_in_use(bench: Bench) -> None:
    """It changes nothing and waits for no hung call: a thread that waits could not hear SIGTERM."""
    bench.driver.collect(LONG)
    bench.act("hang")
    with asking(bench.driver):
        until(bench.driver._request_lock.locked, "the request is made")
        bench.driver.resume()
        assert bench.driver.status() == (DriverState.IN_USE, 0, 1, 1)
        bench.driver.release()
