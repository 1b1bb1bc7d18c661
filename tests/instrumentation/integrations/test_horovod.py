"""Horovod, by a stand-in for its module: its last release is of 2023 and has to be built from source."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import rankwatch
from support.training.blackbox import box, header

STAND_IN = """
_initialized = False

def init():
    global _initialized
    _initialized = True

def _know(number):
    if not _initialized:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return number

def rank(): return _know(3)
def size(): return _know(8)
def local_rank(): return _know(1)
"""
"""What the integration calls, with the answers and the error of Horovod 0.28.1."""


@pytest.fixture
def integration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The integration, beside a Horovod that is not there in truth."""
    package = tmp_path / "packages" / "horovod"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "torch.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(package.parent))
    yield importlib.import_module("rankwatch.integrations.horovod")
    for name in ("rankwatch.integrations.horovod", "horovod", "horovod.torch"):
        sys.modules.pop(name, None)


def test_rank(integration: ModuleType, tmp_path: Path) -> None:
    """Rank, world size and local rank are those that Horovod tells, whatever the environment says."""
    hvd = importlib.import_module("horovod.torch")
    hvd.init()
    run = integration.start(run="job", directory=tmp_path / "boxes", flight_recorder=False, collectives=False)
    with run, run.step():
        pass
    found = header(box(tmp_path / "boxes")).identity
    assert (found.rank, found.world_size, found.local_rank) == (3, 8, 1)


def test_before_init(integration: ModuleType) -> None:
    """Before `hvd.init()` nobody knows the rank: one sentence."""
    importlib.import_module("horovod.torch")
    with pytest.raises(rankwatch.UsageError, match=r"does not know this rank yet: .* use hvd.init\(\)"):
        integration.start()


def test_without_binding(integration: ModuleType) -> None:
    """Which binding to ask is known by what the script has imported."""
    with pytest.raises(rankwatch.UsageError, match="no binding of Horovod is imported; import one of"):
        integration.start()
