"""Trainings with the Trainer of Transformers that go another way than most."""

from __future__ import annotations

from typing import Any

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.vocabulary import Lifecycle
from support.frameworks.jobs import Job, run_cases

pytest.importorskip("transformers")
pytestmark = [pytest.mark.frameworks, pytest.mark.nightly, pytest.mark.process]


_CASES = (
    "out_of_memory", "seq2seq", "own_fetch", "own_train", "own_loop", "own_run", "own_run_first", "failing",
    "inside", "by_hand", "search", "resumed", "incomplete", "compiled", "workers",
)  # fmt: skip
PHASES = ("data_wait", "forward", "backward", "optimizer")
Cases = dict[str, tuple[Job, Any]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return run_cases("transformers_cases.py", tmp_path_factory.mktemp("cases"), *_CASES)


def failed_steps(job: Job) -> list[int]:
    steps = [each.payload for each in job.records(0) if each.kind == RecordKind.STEP]
    return [int(number) for number, failed in steps if failed]


def test_out_of_memory(cases: Cases) -> None:
    """The step that ran out of memory has failed; smaller batches begin again with step 1, until they fit."""
    job, done = cases["out_of_memory"]
    sizes = [8, 7, 6, 5]
    assert failed_steps(job) == [2 for _ in sizes]
    assert job.steps(0) == [*[1 for _ in sizes], *range(1, done + 1)]
    assert job.now(0).errors == 0


def test_seq2seq(cases: Cases) -> None:
    """An evaluation before the training opens no run. Those after it are recorded."""
    job, done = cases["seq2seq"]
    assert job.steps(0) == list(range(1, done + 1))
    assert len(job.phases(0, "evaluation")) == 2
    assert job.now(0).errors == 0


def test_exception(cases: Cases) -> None:
    """A step that an exception ends has failed. The next training of the process is led again."""
    job, done = cases["failing"]
    assert failed_steps(job) == [1]
    assert job.steps(0) == list(range(1, done + 1))


def test_two_frameworks(cases: Cases) -> None:
    """One leads, and one line says so."""
    job, done = cases["inside"]
    assert job.steps(0) == list(range(1, done + 1))
    assert [line for line in job.errors.splitlines() if "trains in this process already" in line] == [
        "rankwatch: transformers trains in this process already, so steps of lightning are not recorded"
    ]


def test_added_by_hand(cases: Cases) -> None:
    """A callback that the script adds below `rankwatch run` stays the only one."""
    job, callbacks = cases["by_hand"]
    assert callbacks == 1
    assert job.steps(0) == [1, 2, 3]


def test_run_of_script(cases: Cases) -> None:
    """The callback records into the run that the script has started, and the script ends it."""
    job, done = cases["own_run"]
    assert job.steps(0) == 2 * list(range(1, done + 1))
    assert [number for number, _ in job.scalars(0, "loss")] == job.steps(0)
    for phase in PHASES:
        assert len(job.phases(0, phase)) == 2 * done
    assert len(job.scalars(0, "mine")) == 1
    assert job.now(0).ended_by == Lifecycle.FINISHED
    assert job.now(0).errors == 0


def test_run_of_script_without_callback(cases: Cases) -> None:
    """Explicit calls win: the Trainer adds nothing to them."""
    job, done = cases["own_run_first"]
    assert job.steps(0) == list(range(done))
    assert not job.phases(0, "backward")


def test_several_trainings(cases: Cases) -> None:
    """A search for hyperparameters trains and evaluates several times."""
    job, done = cases["search"]
    assert job.steps(0) == 3 * list(range(1, done + 1))
    assert len(job.phases(0, "evaluation")) == 3


def test_resume(cases: Cases) -> None:
    """A training that goes on has the numbers of the Trainer, and the load of its checkpoint."""
    job, done = cases["resumed"]
    assert job.steps(0) == list(range(1, done + 1))
    assert job.checkpoints(0, "save") == [(2, True), (4, True)]
    assert job.checkpoints(0, "load") == [(2, True)]
    assert [each.payload[0] for each in job.records(0) if each.name == Lifecycle.RESUMED] == [2]


def test_incomplete_accumulation(cases: Cases) -> None:
    """The last step of an epoch may have fewer batches."""
    job, done = cases["incomplete"]
    assert job.steps(0) == list(range(1, done + 1)) == [1, 2, 3, 4]
    assert [samples for _, samples in job.work(0, "samples")] == [12, 4, 12, 4]
    assert len(job.phases(0, "backward")) == 8
    assert len(job.scalars(0, "loss")) == done


@pytest.mark.parametrize(
    ("case", "first", "phases"),
    [
        ("compiled", 1, PHASES),
        ("workers", 1, PHASES),  # batches of worker processes
        # Methods of a subclass that do not call those that they override are watched as well.
        ("own_fetch", 1, ("data_wait",)),
        # A loop of a subclass that the Trainer's events do not follow is recorded as any other loop.
        ("own_train", 0, PHASES[1:]),
        ("own_loop", 0, PHASES[1:]),
    ],
)
def test_steps(case: str, first: int, phases: tuple[str, ...], cases: Cases) -> None:
    """Each step has its phases and its loss, and no failure of ours."""
    job, done = cases[case]
    assert job.steps(0) == list(range(first, done + first))
    for phase in phases:
        assert len(job.phases(0, phase)) == done
    assert [number for number, _ in job.scalars(0, "loss")] == job.steps(0)
    assert job.now(0).errors == 0
