"""Captures of CUDA graphs and questions for the flight recorder keep out of each other's way."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from rankwatch.blackbox import capturing
from rankwatch.blackbox.capturing import may_ask
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity


def may_be_asked(writer: Writer) -> bool:
    """Whether anybody may ask at this moment."""
    with may_ask(writer.path, os.geteuid()) as free:
        return free


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    writer = Writer(tmp_path, Identity(run="job"), phases=())
    writer.expect_questions()
    return writer


def test_capture(writer: Writer) -> None:
    """While a rank captures, nobody may ask; before and after, anybody may, several at once."""
    with may_ask(writer.path, os.geteuid()) as first, may_ask(writer.path, os.geteuid()) as second:
        assert first
        assert second
    writer.integers[Now.CAPTURING] = 1
    assert writer.wait_for_questions()
    assert not may_be_asked(writer)
    writer.integers[Now.CAPTURING] = 0
    assert may_be_asked(writer)


def test_question_under_way(writer: Writer) -> None:
    """A capture begins after the answer that is under way, and nobody asks in between."""
    with ThreadPoolExecutor(1) as training:
        with may_ask(writer.path, os.geteuid()) as free:
            assert free
            writer.integers[Now.CAPTURING] = 1
            begins = training.submit(writer.wait_for_questions)
            assert wait([begins], timeout=0.05).not_done
        assert begins.result(timeout=30.0)
    assert not may_be_asked(writer)


def test_endless_question(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever never ends a question holds a capture up for half a second, and not for ever."""
    monkeypatch.setattr(capturing, "MOST_SECONDS", 0.0)
    with may_ask(writer.path, os.geteuid()):
        assert not writer.wait_for_questions()
    assert writer.wait_for_questions()


@pytest.mark.parametrize("kind", ["missing", "directory", "short"])
def test_no_box(tmp_path: Path, kind: str) -> None:
    """A rank whose box says nothing may be asked: it announces no captures."""
    path = tmp_path / "0.blackbox"
    if kind == "directory":
        path.mkdir()
    elif kind == "short":
        path.write_bytes(b"RANKWBOX")
    with may_ask(path, os.geteuid()) as free:
        assert free


def test_no_right(writer: Writer) -> None:
    """Only root and the owner can hold the lock: others would stop questions, or hold up captures."""
    questions = writer.path.with_suffix(capturing.SUFFIX)
    assert questions.stat().st_mode & 0o777 == 0o600


def test_of_another(writer: Writer) -> None:
    """A file of somebody else says nothing about this rank."""
    with pytest.raises(PermissionError, match="not to user"), may_ask(writer.path, os.geteuid() + 1):
        pytest.fail("it was asked")
