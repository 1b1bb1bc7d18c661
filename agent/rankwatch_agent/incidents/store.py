"""The directory that holds the evidence bundles: few of them, each complete or not there."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from rankwatch_agent.incidents.bundle import write_error
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.runtime.errors import CollectError, NotApplicable

_UNSAFE = re.compile(r"[^A-Za-z0-9._=@:+-]")
_NAME_BYTES = 100
_PARTIAL = ".partial-"
_BUNDLE = re.compile(r"\d{8}T\d{6}Z-.+")


class BundleStore:
    """The bundles below a directory.

    directory: made where it is missing, its parent is not: who wants evidence gives it a place.
    most_bundles: kept; the oldest gives way to a new one.
    """

    def __init__(self, directory: Path, *, most_bundles: int) -> None:
        self._directory = directory
        self._most_bundles = most_bundles
        self._swept = False

    def open(self) -> None:
        """Make the directory, once remove what an agent that was killed left half written.

        Raises NotApplicable where the parent does not exist, CollectError where the directory cannot be used.
        """
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            raise NotApplicable(
                f"{self._directory.parent} does not exist; evidence_directory has no place"
            ) from None
        except OSError as error:
            raise CollectError(f"could not make {self._directory}: {error.strerror}") from None
        if not os.access(self._directory, os.R_OK | os.W_OK | os.X_OK):
            raise CollectError(f"could not use {self._directory}: no permission to write there")
        if not self._swept:
            self._swept = True
            for name in self._names():
                if name.startswith(_PARTIAL):
                    shutil.rmtree(self._directory / name, ignore_errors=True)

    def bundles(self) -> list[str]:
        """Names of the bundles, the oldest first; raises CollectError."""
        return [name for name in self._names() if _BUNDLE.fullmatch(name)]

    def make_room(self) -> None:
        """Remove the oldest bundles, so that one more can be kept; raises CollectError."""
        bundles = self.bundles()
        for name in bundles[: max(0, len(bundles) - self._most_bundles + 1)]:
            shutil.rmtree(self._directory / name, ignore_errors=True)

    def begin(self, incident: Incident, wall: float) -> Path:
        """A new empty directory; `wall` is when the incident was opened, Unix time. Raises EvidenceError."""
        run = _UNSAFE.sub("_", incident.run)[:_NAME_BYTES]
        path = self._directory / f"{_PARTIAL}{_stamp(wall)}-{run}-{incident.kind.value}"
        shutil.rmtree(path, ignore_errors=True)
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            raise write_error(f"a directory in {self._directory}", error) from None
        return path

    def complete(self, partial: Path) -> Path:
        """Give a finished bundle its name; raises EvidenceError."""
        path = partial.with_name(partial.name.removeprefix(_PARTIAL))
        number = 1
        while os.path.lexists(path):  # the same run twice in one second
            number += 1
            path = partial.with_name(f"{partial.name.removeprefix(_PARTIAL)}-{number}")
        try:
            partial.rename(path)
        except OSError as error:
            raise write_error(str(path), error) from None
        return path

    def abandon(self, partial: Path) -> None:
        """Remove what was written of a bundle."""
        shutil.rmtree(partial, ignore_errors=True)

    def _names(self) -> list[str]:
        try:
            return sorted(path.name for path in self._directory.iterdir())
        except OSError as error:
            raise CollectError(f"could not list {self._directory}: {error.strerror}") from None


def _stamp(wall: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall))
