"""An integration whose framework is not installed."""

from __future__ import annotations

import importlib
import sys

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
    monkeypatch.delitem(sys.modules, "rankwatch.integrations.frameworks", raising=False)
    monkeypatch.delitem(sys.modules, f"rankwatch.integrations.{integration}", raising=False)
    with pytest.raises(
        ImportError, match=f"^[^\n]* needs [A-Z][A-Za-z ]+, and {package} is not installed here$"
    ):
        importlib.import_module(f"rankwatch.integrations.{integration}")
