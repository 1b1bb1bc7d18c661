"""An integration whose framework is not installed."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest


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
