"""Trainings with the Trainer of Transformers that go another way than most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.layout import RecordKind
from support.frameworks.jobs import Job, run_case

pytest.importorskip("transformers")
pytestmark = [pytest.mark.frameworks, pytest.mark.e2e]


def case(name: str, folder: Path) -> tuple[Job, Any]:
    return run_case("transformers_cases.py", name, folder)


def failed_steps(job: Job) -> list[int]:
    steps = [each.payload for each in job.records(0) if each.kind == RecordKind.STEP]
    return [int(number) for number, failed in steps if failed]


def test_out_of_memory(tmp_path: Path) -> None:
    """The step that ran out of memory has failed; smaller batches begin again with step 1, until they fit."""
    job, done = case("out_of_memory", tmp_path)
    sizes = [8, 7, 6, 5]
    assert failed_steps(job) == [2 for _ in sizes]
    assert job.steps(0) == [*[1 for _ in sizes], *range(1, done + 1)]
    assert job.now(0).errors == 0


def test_seq2seq(tmp_path: Path) -> None:
    """An evaluation before the training opens no run. Those after it are recorded."""
    job, done = case("seq2seq", tmp_path)
    assert job.steps(0) == list(range(1, done + 1))
    assert len(job.phases(0, "evaluation")) == 2
    assert job.now(0).errors == 0


def test_overriding(tmp_path: Path) -> None:
    """Methods of a subclass that do not call those that they override are watched as well."""
    job, done = case("own_fetch", tmp_path)
    assert [number for number, _ in job.scalars(0, "loss")] == job.steps(0) == list(range(1, done + 1))
    assert len(job.phases(0, "data_wait")) == done
    assert job.now(0).errors == 0


def test_exception(tmp_path: Path) -> None:
    """A step that an exception ends has failed. The next training of the process is led again."""
    job, done = case("failing", tmp_path)
    assert failed_steps(job) == [1]
    assert job.steps(0) == list(range(1, done + 1))


def test_two_frameworks(tmp_path: Path) -> None:
    """One leads, and one line says so."""
    job, done = case("inside", tmp_path)
    assert job.steps(0) == list(range(1, done + 1))
    assert [line for line in job.errors.splitlines() if "trains in this process already" in line] == [
        "rankwatch: transformers trains in this process already, so steps of lightning are not recorded"
    ]


def test_added_by_hand(tmp_path: Path) -> None:
    """A callback that the script adds below `rankwatch run` stays the only one."""
    job, callbacks = case("by_hand", tmp_path)
    assert callbacks == 1
    assert job.steps(0) == [1, 2, 3]
