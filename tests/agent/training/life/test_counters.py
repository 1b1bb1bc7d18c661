"""Attempts of many users, counted by class."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.training.life import series
from rankwatch_agent.training.life.attempts import Attempt
from rankwatch_agent.training.life.series import BORN_SECONDS, MOST_CLASSES, OTHER_CLASS, LifeCounters


def attempt(run_class: str, owner: int) -> Attempt:
    """One that has started, at 100 s."""
    return Attempt(0, run_class, 1, 0, 0, started=100.0, first_rank_started_wall=100.0, owner=owner)


def starts(counts: LifeCounters) -> dict[str, float]:
    """First starts by class."""
    found = (each for each in counts.series() if each.metric.name == "rankwatch_run_starts_total")
    return {each.labels[0]: each.value for each in found if each.labels[1] == "first"}


def test_classes_of_one_user(tmp_path: Path) -> None:
    """A user with a hundred classes takes no other one's away, before or after it came."""
    many = {(f"fake{n}", 0): attempt(f"class{n}", 2) for n in range(100)}
    early, late = {("early", 0): attempt("production", 1)}, {("late", 0): attempt("research", 3)}
    counts = LifeCounters(tmp_path, 0.0)
    for moment, attempts in ((100.0, early | many), (101.0, early | many | late)):
        counts.update(attempts, moment, 0.0)
    for _ in range(2):
        counts.update(many | late | early, 102.0 + BORN_SECONDS, 0.0)
        found = starts(counts)
        assert found["production"] == found["research"] == 1.0
        assert len(found) == MOST_CLASSES + 1 and OTHER_CLASS in found
        counts = LifeCounters(tmp_path, 0.0)


def test_class_that_another_user_brought_first(tmp_path: Path) -> None:
    """It stays for the others who use it, when it was brought by the user with most classes."""
    many = {(f"fake{n}", 0): attempt(f"class{n}", 2) for n in reversed(range(MOST_CLASSES))}
    counts = LifeCounters(tmp_path, 0.0)
    counts.update(many, 100.0, 0.0)
    counts.update(many | {("job", 0): attempt("class0", 1)}, 101.0, 0.0)
    counts.update(many | {("other", 0): attempt("research", 3)}, 102.0, 0.0)
    assert {"class0", "research"} < starts(counts).keys()


def test_nothing_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many attempts of others come and go, or are there at once."""
    monkeypatch.setattr(series, "_MOST_COUNTED", 4)
    counts, job = LifeCounters(None, 0.0), {("job", 0): attempt("production", 1)}
    counts.update(job, 100.0, 0.0)
    for n in range(10):
        many = {(f"fake{n}-{each}", 0): attempt("", 2) for each in range(10)}
        counts.update(job | many, 200.0 + n, 0.0)
    assert starts(counts)["production"] == 1.0
