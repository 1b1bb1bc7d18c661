"""Import finder and patches: modules stay as their loader made them, whatever they lack is said."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rankwatch.automatic import installing
from rankwatch.automatic.imports import Patch, when_imported
from rankwatch.automatic.visibility import Visibility
from rankwatch.conventions.vocabulary import Capability


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `library` with the modules `leaf` and `other`, not imported yet."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "leaf.py").write_text("def work(): return 1\n")
    (folder / "other.py").write_text("from library.leaf import work\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield folder
    assert sys.meta_path == finders, "no finder stays behind"
    for name in [each for each in sys.modules if each.partition(".")[0] == "library"]:
        del sys.modules[name]


def test_later_import(package: Path) -> None:
    """The patch runs after the module and before whoever imports it goes on."""
    when_imported({"library.leaf": lambda module: setattr(module, "work", lambda: 2)})
    assert importlib.import_module("library.other").work() == 2


def test_loaded_module(package: Path) -> None:
    leaf = importlib.import_module("library.leaf")
    seen: list[ModuleType] = []
    when_imported({"library.leaf": seen.append})
    assert seen == [leaf]


def test_no_trace(package: Path) -> None:
    """Source, loader and package state of a patched module are those of its own loader."""
    when_imported({"library.leaf": lambda _: None, "library": lambda _: None})
    leaf = importlib.import_module("library.leaf")
    assert type(leaf.__loader__) is SourceFileLoader and leaf.__spec__ is not None
    assert leaf.__spec__.loader is leaf.__loader__
    assert inspect.getsource(leaf.work) == "def work(): return 1\n"
    assert importlib.import_module("library").__path__ == [str(package)]


def test_looking_without_importing(package: Path) -> None:
    """A library that only asks for the spec, as transformers does, uses nothing up."""
    seen: list[ModuleType] = []
    when_imported({"library.leaf": seen.append})
    spec = importlib.util.find_spec("library.leaf")
    assert spec is not None and spec.loader is not None
    loader: Any = spec.loader
    assert loader.get_source("library.leaf") == "def work(): return 1\n"
    assert not loader.is_package("library.leaf") and seen == []
    assert importlib.import_module("library.leaf") is seen[0]


def test_failing_patch(package: Path) -> None:
    """The import succeeds, the other patches run, and the failure is reported."""
    failures: list[tuple[str, Exception]] = []
    seen: list[ModuleType] = []
    patches: dict[str, Patch] = {"library": lambda _: [][0], "library.leaf": seen.append}
    when_imported(patches, lambda name, error: failures.append((name, error)))
    assert importlib.import_module("library.leaf") is seen[0]
    assert [(name, type(error)) for name, error in failures] == [("library", IndexError)]


def test_failing_module(package: Path) -> None:
    """An import that fails, fails as always; the next one is patched."""
    (package / "leaf.py").write_text("raise ValueError('no')\n")
    seen: list[ModuleType] = []
    when_imported({"library.leaf": seen.append})
    with pytest.raises(ValueError, match="no"):
        importlib.import_module("library.leaf")
    (package / "leaf.py").write_text("x = 1\n")
    importlib.invalidate_caches()
    assert seen == [] and importlib.import_module("library.leaf") is seen[0]


def test_other_finders(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finders of others are asked, also one that asks all finders itself; two of ours both patch."""

    class Other:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            if name != "library.leaf":
                return None
            monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if each is not self])
            found = importlib.util.find_spec(name)
            assert found is not None
            found.origin = "other"
            return found

    monkeypatch.setattr(sys, "meta_path", [Other(), *sys.meta_path])
    seen: list[ModuleType] = []
    for _ in range(2):
        when_imported({"library.leaf": seen.append})
    leaf = importlib.import_module("library.leaf")
    assert leaf.__spec__ is not None and leaf.__spec__.origin == "other"
    assert seen == [leaf, leaf] and PathFinder in sys.meta_path
    monkeypatch.undo()


def test_stop(package: Path) -> None:
    seen: list[ModuleType] = []
    when_imported({"library.leaf": seen.append})()
    importlib.import_module("library.leaf")
    assert seen == []


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
