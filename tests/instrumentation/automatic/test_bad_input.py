"""Libraries that lack what is watched: they are imported as always, and what is not visible is said."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from rankwatch.automatic import installing
from rankwatch.automatic.imports import when_imported

PATCHES = [
    pytest.param(name, patch, id=f"{seam.__module__.rpartition('.')[2]}-{name}")
    for seam in installing._seams()
    for name, patch in seam().items()
]


@pytest.mark.parametrize(("name", "patch"), PATCHES)
def test_another_release(
    name: str, patch: Callable[[ModuleType], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module without any of the functions that a seam knows is imported all the same. That is noted: as not
    visible, or, where even the class is missing, as a failure of ours."""
    failures: list[Exception] = []
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    when_imported({name: patch}, lambda _, error: failures.append(error))
    # The second: the seam of a framework that is not installed here asks for a module of it.
    assert all(type(each) in (AttributeError, ModuleNotFoundError) for each in failures)
