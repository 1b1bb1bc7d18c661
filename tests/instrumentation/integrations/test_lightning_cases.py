"""Trainings with Lightning that go another way than most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import Lifecycle
from support.frameworks.jobs import Job, run_case

pytest.importorskip("lightning")
pytestmark = [pytest.mark.frameworks, pytest.mark.e2e]


def case(name: str, folder: Path) -> tuple[Job, Any]:
    return run_case("lightning_cases.py", name, folder)


def test_fetch_ahead(tmp_path: Path) -> None:
    """A loader of unknown length is fetched one batch ahead; each step still has one wait."""
    job, done = case("ahead", tmp_path)
    assert job.steps(0) == list(range(1, done + 1))
    assert [number for number, _ in job.work(0, "samples")] == job.steps(0)
    assert len(job.phases(0, "data_wait")) >= done
    assert job.now(0).errors == 0


def test_optimizer_without_wrapper(tmp_path: Path) -> None:
    """Lightning does not count the steps of an optimizer that goes around it. They end steps all the same."""
    job, done = case("raw", tmp_path)
    assert job.steps(0) == list(range(1, done + 1))
    assert [number for number, _ in job.scalars(0, "loss")] == job.steps(0)


def test_exception(tmp_path: Path) -> None:
    """A step that an exception ends has failed. The next training of the process is led again."""
    job, done = case("failing", tmp_path)
    steps = [each.payload for each in job.records(0) if each.kind == RecordKind.STEP]
    assert [(int(number), bool(failed)) for number, failed in steps] == [
        (1, False),
        (2, False),
        (3, True),
        *[(number, False) for number in range(1, done + 1)],
    ]


def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C is an interrupt, although Lightning exits with status 1."""
    job, _ = case("interrupted", tmp_path)
    assert job.now(0).ended_by == Lifecycle.INTERRUPTED


def test_background_checkpoints(tmp_path: Path) -> None:
    """A save lasts until its bytes are down, and blocks training for less."""
    job, done = case("background", tmp_path)
    saves = [each for each in job.records(0) if each.name == "save" and not each.payload[2]]
    assert sorted(int(each.payload[1]) for each in saves) == list(range(1, done + 1))
    assert all(not each.payload[3] for each in saves)
    assert all(each.payload[4] <= each.end - each.start for each in saves)


def test_spawned_ranks(tmp_path: Path) -> None:
    """`ddp_spawn` pickles trainer and callback; the ranks are known in `setup`."""
    job, done = case("spawn", tmp_path)
    for rank in range(2):
        assert job.steps(rank) == list(range(1, done + 1))
