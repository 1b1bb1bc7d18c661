"""Calls a function with a module once it has been imported: now if it is loaded, else after its import.

The finder only watches. It asks the finders behind it for the module, so that editable installs and the
finders of other libraries go on working, and lets the module's own loader load it. Afterwards the module
shows no trace of it. Once nothing is waited for any more, the finder is gone from `sys.meta_path`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], object]
"""Changes a module that was just imported."""
Failed = Callable[[str, Exception], object]
"""Called with the name of a module whose patch has raised, and with the exception."""


def when_imported(patches: Mapping[str, Patch], failed: Failed | None = None) -> Callable[[], None]:
    """Call each patch once with the module of its name. An exception of a patch never reaches the import.

    Returns a function that stops waiting for the modules that are not imported yet.
    """
    finder = _Watcher(failed or _ignore)
    for name, patch in patches.items():
        loaded = sys.modules.get(name)
        if loaded is None or getattr(getattr(loaded, "__spec__", None), "_initializing", False):
            finder.patches[name] = patch
        else:
            finder.call(name, patch, loaded)
    finder.install()
    return finder.remove


def _ignore(name: str, error: Exception) -> None: ...


class _Watcher:
    """A finder of modules that finds none itself."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        self.patches: dict[str, Patch] = {}
        """By the module that is waited for."""
        self._asking = threading.local()

    def install(self) -> None:
        if self.patches:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching."""
        self.patches.clear()
        self._leave()

    def _leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def call(self, name: str, patch: Patch, module: ModuleType) -> None:
        try:
            patch(module)
        except Exception as error:  # noqa: BLE001 - another release of the library; its import must succeed
            self._failed(name, error)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the other finders, with a loader that reports its end; None for others."""
        asking = getattr(self._asking, "name", "")
        if name not in self.patches or asking == name:
            return None
        self._asking.name = name  # a finder behind this one may ask all of them, this one included
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._asking.name = asking
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _ReportingLoader(spec.loader, self._imported)  # type: ignore[assignment]
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in [each for each in sys.meta_path if each is not self]:
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _imported(self, name: str, module: ModuleType) -> None:
        patch = self.patches.pop(name, None)
        if patch is not None:
            self.call(name, patch, module)
        if not self.patches:
            self._leave()


class _ReportingLoader:
    """The module's own loader; it puts itself back and reports once the module was executed."""

    def __init__(self, loader: Any, imported: Callable[[str, ModuleType], None]) -> None:
        self._loader = loader
        self._imported = imported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module as its own loader does, then report it."""
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imported(spec.name, module)
