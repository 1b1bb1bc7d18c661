"""Values of files that change while the agent runs: certificates, tokens, headers, prices."""

from __future__ import annotations

import logging
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from rankwatch_agent.runtime.errors import UserError

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
"""Longest wait for the first value."""
PATIENCE_SECONDS = 0.5
"""Longest wait for a look at the files. A request that takes longer is late for Prometheus."""

_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*(?P<value>[\x20-\x7e]*)")
"""The name of a header (RFC 9110, token) and a value of printable ASCII."""

Value = TypeVar("Value")
_Signature = tuple[tuple[int, int, int, int] | None, ...]


class Reread(Generic[Value]):
    """The value that `load` reads from files, read again when they change. Safe for several threads.

    Kubernetes updates a secret by swapping a symbolic link, so a change is one of the file behind the path.
    `load` raises UserError for files that cannot be used: the constructor passes the error on; later the
    previous value stays in use, and the log reports it once per change.

    The files are looked at in a thread, one at a time: a file server that is gone holds up nobody.
    """

    def __init__(
        self, paths: Sequence[Path], load: Callable[[], Value], *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._paths = paths
        self._load = load
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._look: _Look | None = None
        """The one that goes on."""
        self._signature: _Signature | None = None
        self._values: list[Value] = []
        """The newest usable one."""
        self._error = UserError(f"could not read {self._names}: no answer within {START_SECONDS:g} s")
        """Why there is no first value."""
        if not self._looked(START_SECONDS) or not self._values:
            raise self._error

    def current(self) -> Value:
        """Return the value of the files now, or of their last usable version."""
        if not self._looked(self._patience_seconds):
            with self._lock:
                look = self._look
                if look is not None and not look.told:
                    look.told = True
                    logger.warning("%s: no answer; the previous version stays in use", self._names)
        return self._values[-1]

    @property
    def _names(self) -> str:
        return ", ".join(map(str, self._paths))

    def _looked(self, seconds: float) -> bool:
        """Look at the files; False if that takes longer."""
        with self._lock:
            look = self._look
            if look is None:
                look = self._look = _Look()
                try:
                    threading.Thread(target=self._go_and_look, name="reread", daemon=True).start()
                except RuntimeError:  # no thread can be started
                    self._look = None
                    return False
        return look.ended.wait(max(0.0, look.began + seconds - time.monotonic()))

    def _go_and_look(self) -> None:
        try:
            # Before loading, so that a change in between is noticed next time.
            signature = tuple(map(_file_signature, self._paths))
            if signature != self._signature:
                first, self._signature = self._signature is None, signature
                self._renew(first)
        finally:
            with self._lock:
                look, self._look = self._look, None
            assert look is not None
            look.ended.set()

    def _renew(self, first: bool) -> None:
        try:
            for path in self._paths:
                _refuse_other_kinds(path)
            self._values = [self._load()]
        except UserError as error:
            if first:
                self._error = error
            else:
                logger.warning("%s; the previous version stays in use", error)
        else:
            if not first:
                logger.info("%s changed; the new version is in use", self._names)


class _Look:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.ended = threading.Event()
        self.told = False
        """The log says that it takes long."""


def _refuse_other_kinds(path: Path) -> None:
    """Raise UserError for a FIFO, whose opening waits for a writer, and for all else that is no file."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return  # what loads it says why
    if not regular:
        raise UserError(f"could not use {path}: it is not a regular file")


def _file_signature(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def headers_source(path: Path | None) -> Callable[[], Mapping[str, str]]:
    """Return the headers in force, read again where the file changes; none without a file."""
    if path is None:
        return dict
    return Reread([path], lambda: load_headers(path)).current


def load_headers(path: Path) -> dict[str, str]:
    """Return the headers in the file. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"could not read otlp_headers_file {path}: {reason}") from None
    try:
        return parse_headers(text)
    except ValueError as error:
        raise UserError(f"could not use otlp_headers_file {path}: {error}") from None


def parse_headers(text: str) -> dict[str, str]:
    """Parse headers from lines NAME=VALUE. Empty lines and lines that begin with # are comments.

    Raises ValueError with the number of a wrong line, never with its content, which is secret.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _HEADER.fullmatch(stripped)
        if match is None:
            raise ValueError(f"expected NAME=VALUE in line {number}")
        found[match["name"]] = match["value"]
    return found
