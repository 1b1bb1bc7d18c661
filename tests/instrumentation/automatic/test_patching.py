"""Replaced functions of libraries: training gets the original's results and exceptions, whatever fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from rankwatch.automatic import patching, visibility
from rankwatch.automatic.patching import MOST_FAILURES, guarded, note_displaced, replace, watch
from rankwatch.automatic.visibility import Visibility
from rankwatch.conventions.vocabulary import Capability, Unseen


class Library:
    def double(self, value: int, *, more: int = 0) -> int:
        """Twice the value."""
        if value < 0:
            raise ValueError("negative")
        return 2 * value + more

    @staticmethod
    def static(value: int) -> int:
        return value

    @classmethod
    def name(cls) -> str:
        return cls.__name__


class Child(Library):
    pass


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Visibility]:
    fresh = Visibility()
    monkeypatch.setattr(visibility, "visibility", fresh)
    monkeypatch.setattr(patching, "visibility", fresh)
    before = dict(vars(Library))
    yield fresh
    for each in list(patching._replaced.values()):
        each.undo()
    assert dict(vars(Library)) == before


def doubling(original: Callable[..., int], _: object) -> Callable[..., int]:
    return lambda *args, **kwargs: 2 * original(*args, **kwargs)


def test_replace() -> None:
    """Once, with the signature and the documentation of the original."""
    signature = inspect.signature(Library.double)
    first = replace(Library, "double", doubling)
    assert replace(Library, "double", doubling) is first
    assert Library().double(3, more=1) == 14
    assert inspect.signature(Library.double) == signature and Library.double.__doc__ == "Twice the value."


def test_methods_of_a_class() -> None:
    assert replace(Library, "static", doubling) and Library.static(3) == 6
    assert replace(Library, "name", doubling) and Child.name() == "ChildChild"


def test_inherited() -> None:
    """A child of a class that is watched already is not watched twice; undoing restores inheritance."""
    own = replace(Child, "static", doubling)
    assert own is not None and (Child.static(1), Library.static(1)) == (2, 1)
    own.undo()
    assert "static" not in vars(Child)
    of_parent = replace(Library, "double", doubling)
    assert replace(Child, "double", doubling) is of_parent and Child().double(1) == 4


def test_names_of_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that holds the same function gets the wrapper too, unless it holds another one."""
    owner, other, foreign = ModuleType("owner"), ModuleType("other"), ModuleType("foreign")
    owner.f = other.f = lambda: 1  # type: ignore[attr-defined]
    foreign.f = lambda: 3  # type: ignore[attr-defined]
    for each in (other, foreign):
        monkeypatch.setitem(__import__("sys").modules, each.__name__, each)
    found = replace(owner, "f", doubling, also=("other", "foreign", "absent"))
    assert [each.f() for each in (owner, other, foreign)] == [2, 2, 3]
    assert found is not None
    found.undo()
    assert [each.f() for each in (owner, other, foreign)] == [1, 1, 3]


def test_absent(seen: Visibility) -> None:
    """A library that is too old for a hook is a capability that is not visible."""
    assert replace(Library, "nothing", doubling, shows=Capability.LOSS) is None
    assert seen._states == {Capability.LOSS: Unseen.TOO_OLD}


def test_watch() -> None:
    events: list[Any] = []
    watch(
        Library,
        "double",
        began=lambda self, value, more=0: events.append(value) or "token",
        ended=lambda token, result, error: events.append((token, result, type(error).__name__)),
    )
    assert Library().double(4) == 8
    with pytest.raises(ValueError, match="negative") as raised:
        Library().double(-1)
    assert events == [4, ("token", 8, "NoneType"), -1, ("token", None, "ValueError")]
    assert raised.value.__cause__ is None and raised.value.__context__ is None


@pytest.mark.parametrize("part", ["began", "ended"])
def test_own_failures(part: str, seen: Visibility) -> None:
    """Failures of ours never reach the caller. After several, ours is not called any more."""
    ours = Mock(side_effect=KeyError("ours"))
    watch(Library, "double", shows=Capability.BACKWARD, **{part: ours})
    assert [Library().double(1) for _ in range(MOST_FAILURES + 2)] == [2] * (MOST_FAILURES + 2)
    assert ours.call_count == MOST_FAILURES
    assert seen._states == {Capability.BACKWARD: Unseen.HOOK_FAILED}
    assert [str(error) for _, error in seen._failures] == ["'ours'"] * MOST_FAILURES


def test_callback() -> None:
    ours = Mock(side_effect=IndexError)
    call = guarded("hook", ours)
    assert [call() for _ in range(MOST_FAILURES + 2)] == [None] * (MOST_FAILURES + 2)
    assert ours.call_count == MOST_FAILURES


def other_library(function: Callable[..., int]) -> Callable[..., int]:
    """As other libraries wrap: it takes over the attributes of the function."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> int:
        return function(*args, **kwargs) + 100

    return call


def test_patched_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Library, "double", other_library(Library.double))
        found = replace(Library, "double", doubling)
        assert Library().double(1) == 2 * 102
        assert found is not None
        found.undo()
        assert Library().double(1) == 102


def test_patched_after(monkeypatch: pytest.MonkeyPatch, seen: Visibility) -> None:
    """Another library on top of ours: both act, nothing is patched twice, and undoing leaves theirs alone."""
    events: list[int] = []
    found = watch(Library, "double", began=lambda *_: events.append(1), shows=Capability.LOSS)
    theirs = other_library(Library.double)
    with monkeypatch.context() as patch:
        patch.setattr(Library, "double", theirs)
        assert found is not None and not found.in_place()
        assert watch(Library, "double", began=lambda *_: events.append(2)) is found
        assert (Library().double(1), events) == (102, [1])
        seen.sees(Capability.LOSS)
        note_displaced()
        assert seen.has_seen(Capability.LOSS)
        found.undo()
        assert Library.double is theirs and (Library().double(1), events) == (102, [1])
    setattr(Library, "double", found.original)  # noqa: B010 - mypy refuses an assignment to a method


def test_displaced(monkeypatch: pytest.MonkeyPatch, seen: Visibility) -> None:
    """Another library's function that does not call ours hides what ours would show."""
    watch(Library, "double", shows=Capability.LOSS)
    with monkeypatch.context() as patch:
        patch.setattr(Library, "double", lambda self, value: 7)
        note_displaced()
        assert Library().double(1) == 7
    assert seen._states == {Capability.LOSS: Unseen.REPLACED}
