"""A real agent beside a real job: each continues without the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rankwatch.blackbox.reader import Reader
from support.agent.process import AgentProcess, agent_process, fetch
from support.jobs.forked_ranks import shared_ranks
from support.servers.prometheus import poll
from support.training.blackbox import now

pytestmark = pytest.mark.process

RUN = "job"
RANKS = ("0", "1")
SECONDS_TO_START = 240.0
"""Longest wait for the first steps of a job. Importing torch takes most of it on a busy machine."""
_JOB = (
    *("-m", "rankwatch_trainer", "--device", "emulated", "--steps", "100000"),
    *("--layers", "2", "--corpus-bytes", "200000"),
    *("--layer-forward-seconds", "0.01", "--layer-backward-seconds", "0.02"),
)
"""Steps of about 60 ms, nearly all of it asleep."""


class Job:
    """Two ranks of the trainer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._boxes = directory / "blackboxes"
        environ = {"RANKWATCH_DIR": str(self._boxes), "RANKWATCH_RUN": RUN}
        self._pids = shared_ranks().start(_JOB, environ, ranks=len(RANKS), log=directory / "job.log")

    def steps(self, rank: str) -> int:
        """Completed steps of a rank, from its black box; 0 if there is none yet."""
        path = self._boxes / RUN / f"{rank}.blackbox"
        return now(path).steps_completed if path.exists() else 0

    def wait_for_steps(self, count: int) -> None:
        """Wait until both ranks have completed this many more steps."""
        before = {rank: self.steps(rank) for rank in RANKS}
        poll(
            lambda: all(self.steps(rank) >= before[rank] + count for rank in RANKS),
            SECONDS_TO_START,
            f"{count} further steps of both ranks",
        )

    @contextmanager
    def stopped(self, rank: str) -> Iterator[None]:
        """Its process stands still, and goes on afterwards."""
        with closing(Reader(self._boxes / RUN / f"{rank}.blackbox")) as reader:
            assert reader.writer_alive()
            pid = reader.writer_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL for both ranks. Stopped first, neither ends with an error because the other has gone."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self._pids:
                os.kill(pid, number)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job that trains."""
    job = Job(tmp_path_factory.mktemp("job"))
    job.wait_for_steps(10)
    yield job
    job.kill()


def _scrape(agent: AgentProcess, name: str) -> dict[tuple[str, ...], float]:
    """Values of a metric by rank and, where it has them, by state, phase, group and source."""
    return _of(agent.page(), name)


def _of(page: str, name: str) -> dict[tuple[str, ...], float]:
    shown = ("rank", "state", "phase", "group", "source")
    return {
        tuple(sample.labels[label] for label in shown if label in sample.labels): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and sample.labels.get("run") == RUN
    }


def _states(agent: AgentProcess) -> set[tuple[str, ...]]:
    return set(_scrape(agent, "rankwatch_rank_state"))


BOTH_RUN = {(rank, "running") for rank in RANKS}


def test_metrics_of_a_running_job(job: Job) -> None:
    """The states of the ranks are exported, and steps, phases and collectives grow between scrapes."""
    with agent_process(job.directory) as agent:
        poll(lambda: _states(agent) == BOTH_RUN, SECONDS_TO_START, "both ranks in state running")
        before = _scrape(agent, "rankwatch_steps_total")
        poll(
            lambda: all(_scrape(agent, "rankwatch_steps_total")[key] > before[key] for key in before),
            SECONDS_TO_START,
            "growing step counts",
        )
        phases = _scrape(agent, "rankwatch_step_phase_seconds_total")
        assert {(rank, "forward") for rank in RANKS} | {(rank, "backward") for rank in RANKS} <= set(phases)
        assert {key[0] for key in _scrape(agent, "rankwatch_collectives_total")} == set(RANKS)


def test_flight_recorders(job: Job) -> None:
    """Where ranks stand is shown of those that wait for one that is stopped, and of none that goes on."""
    with agent_process(job.directory, "--intervals-seconds", "collectives=0.5") as agent:

        def placed() -> set[str]:
            return {key[0] for key in _scrape(agent, "rankwatch_collective_last_completed")}

        poll(lambda: _states(agent) == BOTH_RUN, SECONDS_TO_START, "both ranks in state running")
        poll(lambda: not placed(), SECONDS_TO_START, "the usual duration of a step to be learnt")
        with job.stopped("1"):
            poll(lambda: "0" in placed(), SECONDS_TO_START, "the place of the rank that waits")
            page = agent.page()
            enqueued = _of(page, "rankwatch_collective_last_enqueued")
            completed = _of(page, "rankwatch_collective_last_completed")
            assert all(enqueued[key] >= number > 0 for key, number in completed.items())
        poll(lambda: not placed(), SECONDS_TO_START, "both ranks to go on")


def test_agent_is_killed(job: Job) -> None:
    """The job continues, and the next agent exports its present step."""
    with agent_process(job.directory) as agent:
        poll(lambda: _states(agent) == BOTH_RUN, SECONDS_TO_START, "both ranks in state running")
        agent.stop(signal.SIGKILL)
    job.wait_for_steps(20)
    reached = min(job.steps(rank) for rank in RANKS)
    with agent_process(job.directory) as agent:
        poll(lambda: _states(agent) == BOTH_RUN, SECONDS_TO_START, "both ranks in state running")
        poll(
            lambda: min(_scrape(agent, "rankwatch_step").values()) >= reached,
            SECONDS_TO_START,
            "the step the job has reached",
        )


def test_job_is_killed(tmp_path: Path) -> None:
    """The agent exports both ranks as lost, with their last step, and stays ready."""
    job = Job(tmp_path)
    with agent_process(job.directory) as agent:
        poll(lambda: _states(agent) == BOTH_RUN, SECONDS_TO_START, "both ranks in state running")
        job.kill()
        lost = {(rank, "lost") for rank in RANKS}
        poll(lambda: _states(agent) == lost, SECONDS_TO_START, "both ranks in state lost")
        assert all(step > 0 for step in _scrape(agent, "rankwatch_step").values())
        assert fetch(agent.address, "/readyz").status == 200
        status, log = agent.stop()
        assert status == 0, log
        assert "Traceback" not in log
