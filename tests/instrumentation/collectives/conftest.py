"""A black box, a process group and the hook, for the tests of collectives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.collectives import CollectiveHook
from support.jobs.gloo import Recording, gloo


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


@pytest.fixture
def world() -> Iterator[Any]:
    """The default group of a gloo job with one rank."""
    with gloo() as group:
        yield group


@pytest.fixture
def hook(recording: Recording, world: Any) -> Iterator[CollectiveHook]:
    installed = CollectiveHook(recording.writer, recording.failures, None)
    yield installed
    installed.remove()
