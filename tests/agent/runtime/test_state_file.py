"""State that the agent keeps across its restarts."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwatch_agent.collectors import build_shared, training
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.state_file import StateFile
from rankwatch_agent.training.checkpoints.verifications import VerificationRecords
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.cost.collector import Spending
from rankwatch_agent.training.goodput.run_ledgers import RunLedgers
from rankwatch_agent.training.life.series import LifeCounters
from rankwatch_spans.state import TraceState

KEEPERS: dict[str, Callable[[Path], object]] = {
    "attempts.json": lambda directory: LifeCounters(directory, 1.0),
    "goodput.json": lambda directory: RunLedgers(directory, 1.0),
    "spending.json": Spending,
    "traces.json": lambda directory: TraceState(directory, 1),
    "verifications.json": VerificationRecords,
}
"""Whatever keeps state, by the name of its file."""
BROKEN = (
    *("", "\0", "[]", "null", "7", "[" * 100_000),
    '{"since": Infinity, "classes": {"a": {"born": 1, "ends": {"x": Infinity}}}, "counted": []}',
    '{"since": 1, "classes": {"a": {"born": 1, "ends": {"x": Infinity}, "failures": {}, "starts": {}}},'
    ' "counted": []}',
    '{"until": Infinity, "runs": {}}',
    '{"until": 1, "runs": {"r": {"until": Infinity, "spent": [["EUR", "list", 1]]}}}',
    '{"format": 1, "runs": {"r": [Infinity, {}]}}',
    '{"r": [{"path": "/a", "step": "seven"}]}',
)


@pytest.mark.parametrize("name", KEEPERS)
def test_broken_file(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One sentence in the log, and the state begins anew."""
    for text in BROKEN:
        (tmp_path / name).write_text(text)
        caplog.clear()
        KEEPERS[name](tmp_path)
        messages = [each.getMessage() for each in caplog.records]
        assert len(messages) <= 1, (text, messages)
        assert all(each.startswith(f"could not use {tmp_path / name}: ") for each in messages)


def test_round_trip(tmp_path: Path) -> None:
    """The directory is made where it is missing, and nothing lies beside the file afterwards."""
    StateFile(tmp_path / "a" / "b", "x.json", lost="it is lost").save({"number": 7})
    found: list[Any] = []
    StateFile(tmp_path / "a" / "b", "x.json", lost="it is lost").load(found.append)
    assert found == [{"number": 7}]
    assert [each.name for each in (tmp_path / "a" / "b").iterdir()] == ["x.json"]


def test_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new content is on the disk before it takes the name of the old one; else the file may be empty
    after the power was lost."""
    calls: list[str] = []
    for name in ("fsync", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *of, name=name, real=real, **how: calls.append(name) or real(*of, **how)
        )
    StateFile(tmp_path, "x.json", lost="it is lost").save({"number": 7})
    assert calls == ["fsync", "rename", "fsync"], "the file, its name, and the directory with the name"


def test_no_directory() -> None:
    """Nothing is kept, and nothing is there to begin with."""
    file = StateFile(None, "x.json", lost="it is lost")
    file.save({"number": 7})
    file.load(lambda document: pytest.fail(f"{document}"))


def test_too_large(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x.json").write_text(json.dumps("x" * 100))
    file = StateFile(tmp_path, "x.json", lost="it begins anew", most_bytes=50)
    file.load(lambda document: pytest.fail(f"{document}"))
    assert "too large" in caplog.text and "it begins anew" in caplog.text


def test_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disk that is full or read-only costs a line in the log, once."""
    (tmp_path / "file").touch()
    file = StateFile(tmp_path / "file", "x.json", lost="it begins anew")
    with caplog.at_level(logging.WARNING):
        file.save(1)
        file.save(2)
    assert len(caplog.records) == 1


def test_one_directory(tmp_path: Path) -> None:
    """All state lies in one directory, so that one volume keeps it; an empty setting keeps nothing."""
    config = AgentConfig(state_directory=str(tmp_path / "state"))
    (ranks,) = training.ranks.build(config, build_shared(config), config.schedule("ranks"))
    assert isinstance(ranks, RanksCollector)
    ranks.ledgers.save()
    assert [each.name for each in (tmp_path / "state").iterdir()] == ["goodput.json"]
    assert AgentConfig(state_directory="").state_path() is None
