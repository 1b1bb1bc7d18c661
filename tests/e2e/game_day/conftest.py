"""The game day that several files share: one Prometheus and one Alertmanager for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from support.e2e.game_day import GameDay

LONGEST = "test_run_life"
"""Its play takes twice as long as the others."""


@pytest.fixture(scope="session")
def game_day(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GameDay]:
    """The plays of all files with tests that ask for it have begun, whichever of these files comes first."""
    asking = [each for each in request.session.items if "game_day" in getattr(each, "fixturenames", ())]
    day = GameDay(tmp_path_factory.mktemp("game-day"))
    try:
        modules = sorted({each.module for each in asking}, key=_longest_first)  # type: ignore[attr-defined]
        day.begin([each.play for each in modules])
        yield day
    finally:
        day.end()


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest, game_day: GameDay) -> Iterator[Any]:
    """What the play of this file has returned."""
    with game_day.shown(request.module.play) as found:
        yield found


def _longest_first(module: ModuleType) -> tuple[bool, str]:
    return module.__name__ != LONGEST, module.__name__
