"""An integration whose framework is not installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rankwatch
from rankwatch.automatic.visibility import Visibility
from rankwatch.blackbox.layout import Now


@pytest.mark.parametrize(
    ("integration", "package"),
    [
        ("jax", "jax"),
        ("keras", "keras"),
        ("horovod", "horovod"),
        ("ray_train", "ray"),
        ("transformers", "transformers"),
        ("accelerate", "accelerate"),
        ("lightning", "lightning"),
    ],
)
def test_one_sentence(integration: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import says in one sentence what is missing."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("frameworks", integration):  # afterwards they are as before, also where they were not loaded
        monkeypatch.setitem(sys.modules, f"rankwatch.integrations.{name}", ModuleType(name))
        monkeypatch.delitem(sys.modules, f"rankwatch.integrations.{name}")
    with pytest.raises(
        ImportError, match=f"^[^\n]* needs [A-Z][A-Za-z ]+, and {package} is not installed here$"
    ):
        importlib.import_module(f"rankwatch.integrations.{integration}")


def test_another_release_of_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAX that tells its rank, but lacks the modules that report: the run is recorded without them."""
    package = tmp_path / "packages" / "jax"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def process_index(): return 1\ndef process_count(): return 2\n")
    monkeypatch.syspath_prepend(str(package.parent))
    seen = Visibility()  # of this test only
    for module in ("visibility", "patching"):
        monkeypatch.setattr(f"rankwatch.automatic.{module}.visibility", seen)
    real = [name for name in sys.modules if name.startswith("jax.")]  # where another test has imported it
    for name in ("jax", *real, "rankwatch.integrations.jax"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
    started = importlib.import_module("rankwatch.integrations.jax").start(run="job", directory=tmp_path)
    with started, started.step():
        assert isinstance(started, rankwatch.Run)
    assert started.identity.rank == 1
    assert started._writer.integers[Now.ERRORS] == 2
