"""The directory of evidence bundles. It holds few, each of them complete."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import msgspec

from rankwatch_agent.incidents.bundle import MANIFEST_NAME, write_error
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.turns import excess

_UNSAFE = re.compile(r"[^A-Za-z0-9._=@:+-]")
_NAME_BYTES = 100
_PARTIAL = ".partial-"
_BUNDLE = re.compile(r"\d{8}T\d{6}Z-.+")


class _Manifest(msgspec.Struct):
    """What the store needs of a manifest."""

    owner: int | None = None


class BundleStore:
    """Keeps the newest bundles below a directory.

    directory: created where it is missing, but not its parent.
    max_bundles: beyond this number, a new bundle replaces the oldest one of the user with most bundles.
    """

    def __init__(self, directory: Path, *, max_bundles: int) -> None:
        self._directory = directory
        self._most_bundles = max_bundles
        self._cleaned = False

    def open(self) -> None:
        """Creates the directory. The first call removes partial bundles that a killed agent left.

        Raises NotApplicable where the parent does not exist, CollectError where the directory cannot be used.
        """
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            raise NotApplicable(
                f"{self._directory.parent} does not exist; evidence_directory has no place"
            ) from None
        except OSError as error:
            raise CollectError(f"could not create {self._directory}: {error.strerror}") from None
        if not os.access(self._directory, os.R_OK | os.W_OK | os.X_OK):
            raise CollectError(f"could not use {self._directory}: no permission to write there")
        if not self._cleaned:
            self._cleaned = True
            for name in self._names():
                if name.startswith(_PARTIAL):
                    shutil.rmtree(self._directory / name, ignore_errors=True)

    def bundles(self) -> list[str]:
        """Returns the names of the bundles, oldest first. Raises CollectError."""
        return [name for name in self._names() if _BUNDLE.fullmatch(name)]

    def make_room(self) -> None:
        """Removes bundles so that one more fits: the oldest of the user with most. Raises CollectError."""
        owners = {name: self._owner(name) for name in self.bundles()}
        for name in excess(owners, owner=owners.__getitem__, most=self._most_bundles - 1):
            shutil.rmtree(self._directory / name, ignore_errors=True)

    def begin(self, incident: Incident, wall: float) -> Path:
        """Creates an empty directory for the bundle of an incident opened at Unix time `wall`.

        Raises EvidenceError.
        """
        run = _UNSAFE.sub("_", incident.run)[:_NAME_BYTES]
        path = self._directory / f"{_PARTIAL}{_stamp(wall)}-{run}-{incident.kind.value}"
        shutil.rmtree(path, ignore_errors=True)
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            raise write_error(f"a directory in {self._directory}", error) from None
        return path

    def complete(self, partial: Path) -> Path:
        """Gives a finished bundle its final name. Raises EvidenceError."""
        path = partial.with_name(partial.name.removeprefix(_PARTIAL))
        number = 1
        while os.path.lexists(path):  # two incidents of one run in one second
            number += 1
            path = partial.with_name(f"{partial.name.removeprefix(_PARTIAL)}-{number}")
        try:
            partial.rename(path)
        except OSError as error:
            raise write_error(str(path), error) from None
        return path

    def abandon(self, partial: Path) -> None:
        """Removes a partial bundle."""
        shutil.rmtree(partial, ignore_errors=True)

    def _owner(self, name: str) -> int | None:
        """Returns the user id in the manifest of a bundle; None where it has none."""
        try:
            text = (self._directory / name / MANIFEST_NAME).read_bytes()
            return msgspec.json.decode(text, type=_Manifest).owner
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _names(self) -> list[str]:
        try:
            return sorted(path.name for path in self._directory.iterdir())
        except OSError as error:
            raise CollectError(f"could not list {self._directory}: {error.strerror}") from None


def _stamp(wall: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall))
