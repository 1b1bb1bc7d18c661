"""Faults for a running job: a file with one fault per line, checked once per step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from rankwatch_trainer.errors import UsageError
from rankwatch_trainer.faults.kinds import ScheduledFault
from rankwatch_trainer.faults.specification import parse_fault

_log = logging.getLogger(__name__)


class FaultFile:
    """The faults that a file asks for.

    The steps of a line count from the step in which the line is first seen. A fault ends when its line is
    removed. A line that cannot be read is ignored, and logged once on the rank that reports errors. Blank
    lines and # comments are allowed.
    """

    def __init__(self, path: Path, world_size: int, *, reports_errors: bool = True) -> None:
        self._path = path
        self._world_size = world_size
        self._reports_errors = reports_errors
        self._seen: tuple[int, int, int] | None = None
        self._faults: dict[str, ScheduledFault] = {}
        self._malformed: set[str] = set()

    def faults(self, present_step: int) -> Sequence[ScheduledFault]:
        """The faults now in the file. Costs one stat call while the file does not change."""
        try:
            status = self._path.stat()
        except OSError:
            self._seen, self._faults = None, {}
            return ()
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self._seen:
            self._seen = version
            self._read(present_step)
        return tuple(self._faults.values())

    def _read(self, present_step: int) -> None:
        try:
            content = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError as cause:
            _log.warning("could not read fault file %s: %s", self._path, cause.strerror)
            return
        lines = [line.strip() for line in content.splitlines()]
        wanted = [line for line in lines if line and not line.startswith("#")]
        known = self._faults
        self._faults = {}
        for line in wanted:
            fault = known.get(line) or self._parse(line, present_step)
            if fault is not None:
                self._faults[line] = fault

    def _parse(self, line: str, present_step: int) -> ScheduledFault | None:
        try:
            return parse_fault(line, present_step=present_step, world_size=self._world_size)
        except UsageError as cause:
            if self._reports_errors and line not in self._malformed:
                self._malformed.add(line)
                _log.warning("ignored a line of fault file %s: %s", self._path, cause)
            return None
