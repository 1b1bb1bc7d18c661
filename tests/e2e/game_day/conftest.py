"""The game day that several files share: one Prometheus and one Alertmanager for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.e2e.game_day import GameDay


@pytest.fixture(scope="session")
def game_day(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GameDay]:
    """The plays of all files with tests that ask for it have begun, whichever of these files comes first."""
    asking = [each for each in request.session.items if "game_day" in getattr(each, "fixturenames", ())]
    day = GameDay(tmp_path_factory.mktemp("game-day"))
    try:
        day.begin(list(dict.fromkeys(each.module.play for each in asking)))  # type: ignore[attr-defined]
        yield day
    finally:
        day.end()
