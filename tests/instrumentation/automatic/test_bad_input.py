"""Libraries that lack what is watched: they are imported as always, and what is not visible is said."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from rankwatch.automatic import installing
from rankwatch.automatic.imports import when_imported
from rankwatch.automatic.visibility import Visibility
from rankwatch.conventions.vocabulary import Capability

PATCHES = [pytest.param(name, patch, id=name) for name, patch in installing.patches().items()]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(("name", "patch"), PATCHES)
def test_another_release(
    name: str, patch: Callable[[ModuleType], object], installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module without any of the functions that are watched is imported all the same. What it lacks is not
    visible. Where even the class is missing, or the rest of the library, that is noted once as a failure of
    ours, with a reason."""
    failures: list[Exception] = []
    package = name.partition(".")[0]
    if not installed and package != "torch":
        monkeypatch.setitem(sys.modules, package, None)
        for each in [each for each in sys.modules if each.startswith("rankwatch.integrations.")]:
            monkeypatch.delitem(sys.modules, each)
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    when_imported({name: patch}, lambda _, error: failures.append(error))
    assert len(failures) <= 1
    assert all(isinstance(each, AttributeError | ImportError) and str(each) for each in failures)


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("torch.utils.data.dataloader", Capability.DATA_WAIT),
        ("torch.compiler", Capability.FORWARD),
        ("torch._tensor", Capability.BACKWARD),
        ("torch.optim.optimizer", Capability.STEPS),
        ("torch.nn.utils.clip_grad", Capability.GRADIENT_NORM),
        ("torch.serialization", Capability.CHECKPOINTS),
    ],
)
def test_too_old(name: str, capability: Capability, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a module of torch cannot show without the functions that are watched is not visible, for that
    reason."""
    seen = Visibility()
    for module in sys.modules.copy():
        if module.startswith("rankwatch.automatic.") and hasattr(sys.modules[module], "visibility"):
            monkeypatch.setattr(f"{module}.visibility", seen)
    seen.sees(capability)
    for each in PATCHES:
        if each.values[0] == name:
            with contextlib.suppress(AttributeError):
                each.values[1](ModuleType(name))  # type: ignore[operator]
    assert not seen.has_seen(capability)
