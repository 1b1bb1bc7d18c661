"""`nvidia-smi`, asked with a deadline: the second opinion on every NVML series."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from support.gpu.smi_output import Answers, csv_answers, link_answers, tell_reasons, xml_answers

TIMEOUT_SECONDS = 60.0
"""Of one query: without persistence mode each one initialises the driver."""
_BAD_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')


class Run(NamedTuple):
    """How a call of nvidia-smi ended."""

    status: int
    output: str
    """Standard output and error."""


class SmiError(Exception):
    """nvidia-smi failed."""


def command_run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> Callable[..., Run]:
    """The program, as `Smi` calls it."""

    def run(*arguments: str) -> Run:
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {}), "LC_ALL": "C"},
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        return Run(done.returncode, done.stdout)

    return run


class Smi:
    """nvidia-smi of one machine. `run` calls it with arguments."""

    def __init__(self, run: Callable[..., Run], fields: Iterable[str]) -> None:
        self._run = run
        self._fields = list(fields)
        self._looked = False
        self.unknown: list[str] = []
        """Fields of --query-gpu that this nvidia-smi does not know."""

    def look(self) -> dict[str, Answers]:
        """Everything by UUID; raises SmiError."""
        cells = self._cells()
        elements = xml_answers(self._ask("-q", "-x"))
        links = self._links()
        answers = {
            uuid: {**elements.get(uuid, {}), **found, **links.get(uuid, {})} for uuid, found in cells.items()
        }
        for found in answers.values():
            tell_reasons(found)
        return answers

    def version(self) -> Answers:
        """`nvidia-smi --version`: name -> version; empty where it does not know the option."""
        done = self._run("--version")
        pairs = (line.partition(":") for line in done.output.splitlines() if not done.status)
        return {name.strip().upper(): words.strip() for name, _, words in pairs if words.strip()}

    def _cells(self) -> dict[str, Answers]:
        while True:
            # with units: a number that carries its unit proves more than one whose unit is assumed
            done = self._run(f"--query-gpu={','.join(self._fields)}", "--format=csv,noheader")
            bad = _BAD_FIELD.search(done.output)
            if not done.status and not bad:
                return csv_answers(self._fields, done.output)
            if bad is None or bad[1] not in self._fields or bad[1] == "uuid":
                raise SmiError(f"--query-gpu ended with {done.status}: {done.output[:500]}")
            self._fields.remove(bad[1])
            self.unknown.append(bad[1])

    def _links(self) -> dict[str, Answers]:
        status, counters, errors = (
            self._run("nvlink", *arguments) for arguments in (("-s",), ("-gt", "d"), ("-e",))
        )
        return link_answers(*("" if each.status else each.output for each in (status, counters, errors)))

    def _ask(self, *arguments: str) -> str:
        done = self._run(*arguments)
        if done.status:
            raise SmiError(f"{' '.join(arguments)} ended with {done.status}: {done.output[:500]}")
        return done.output
