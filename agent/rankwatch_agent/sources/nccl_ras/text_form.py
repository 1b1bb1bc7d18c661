"""Parses the text form of RAS's answer, the only one before NCCL 2.28.7. It is untrusted input.

Of communicators whose ranks agree it gives only the number, without launches. Of the others it says how many
ranks have launched how much, and names the ranks of the smaller parts.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.nccl_ras.communicators import (
    MAX_COMMUNICATORS,
    MAX_NAMED_RANKS,
    Absence,
    BehindRank,
    Communicator,
    MissingRank,
    Report,
)

_VERSION = re.compile(r"NCCL version [0-9A-Za-z.+_-]{1,40} compiled ")
_GROUP = re.compile(
    r" *(\d{1,9}) +(\d{1,9}) +\d{1,9} +\S{1,20} +(\d{1,9}) +\d{1,9} +([A-Z]{1,20}) +([A-Z,]{1,60})"
)
"""Group, communicators in it, nodes, ranks per node, ranks per communicator, ranks, status, errors."""
_HEADING = re.compile(r"#(\d{1,9})-\d{1,9} \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)")
_COUNTS = re.compile(r"  Communicator ranks have different .{1,60} operation counts")
_MANY = re.compile(
    r"  (\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)"
)
_ONE = re.compile(r"  Rank (\d{1,9}) has (?:launched up to operation (\d{1,18})|not launched any operations)")
_OF_MANY = re.compile(r"  Rank (\d{1,9}) -- ")
_NO_DATA = re.compile(r"  Missing communicator data from (\d{1,9}) rank")
_STATUS = re.compile(r"  (?:(\d{1,9}) ranks have|Rank \d{1,9} has) status NOCOMM")
_PROCESSES = re.compile(r"  Missing communicator data from (\d{1,9}) job process")
_DEAD = re.compile(r"  (\d{1,9}) job process(?:es)? (?:is|are) considered dead")
_END = "Warnings"
MAX_TEXT_BYTES = 8 << 20
"""Each named rank takes a line of 80 bytes."""


@dataclass
class _Section:
    """What the answer says of one communicator, under up to three headings."""

    size: int
    status: str
    lines: list[str] = field(default_factory=list)
    failed: bool = False
    uneven: bool = False
    missing: int = 0
    left: int = 0
    named: list[int] = field(default_factory=list)
    launched: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """Of the present kind of collective: launches, number of ranks with as many, and the named ones."""
    spread: int | None = None
    behind: int = 0
    late: dict[int, int] = field(default_factory=dict)

    def close_counts(self) -> None:
        """End the section of one kind of collective."""
        if not self.launched:
            return
        top = max(count for count, _, _ in self.launched)
        self.spread = max(self.spread or 0, top - min(count for count, _, _ in self.launched))
        self.behind = max(self.behind, sum(ranks for count, ranks, _ in self.launched if count < top))
        for count, _, named in self.launched:
            for rank in named if count < top else ():
                self.late[rank] = max(self.late.get(rank, 0), top - count)
        self.launched = []


def parse_text(body: bytes | bytearray) -> Report:
    """Parse the answer. Raises CollectError."""
    if len(body) > MAX_TEXT_BYTES:
        raise CollectError(
            f"could not read the answer of NCCL RAS: a text of more than {MAX_TEXT_BYTES} bytes"
        )
    lines = body.decode("utf-8", "replace").split("\n")
    if not any(map(_VERSION.match, lines[:10])) or not any(line.startswith(_END) for line in lines):
        raise CollectError("could not read the answer of NCCL RAS: it is not a status, or was cut off")
    groups = {int(found[1]): found for line in lines if (found := _GROUP.fullmatch(line))}
    dead, unresponsive = _first(_DEAD, lines), _first(_PROCESSES, lines)
    # For a single communicator the text does not tell dead processes from unresponsive ones.
    absence = Absence.DEAD if dead and not unresponsive else Absence.UNRESPONSIVE
    sections = _read(lines, groups)
    return Report(
        communicators=tuple(_communicator(name, each, absence) for name, each in sections.items()),
        unnamed=sum(int(found[2]) for found in groups.values() if found[5] == "OK"),
        processes_missing={Absence.DEAD: dead, Absence.UNRESPONSIVE: unresponsive},
    )


def _first(pattern: re.Pattern[str], lines: list[str]) -> int:
    return next((int(found[1]) for line in lines if (found := pattern.match(line))), 0)


def _read(lines: list[str], groups: dict[int, re.Match[str]]) -> dict[str, _Section]:
    """Map each hash to its section.

    Communicators whose hash is not unique are dropped, except for the first.
    """
    found: dict[str, _Section] = {}
    owner: dict[str, str] = {}
    section: _Section | None = None
    for line in lines:
        heading = _HEADING.fullmatch(line)
        if heading is not None:
            name, place = heading[2].zfill(16), line.partition(" ")[0]
            section = None
            group = groups.get(int(heading[1]))
            if group is None or owner.setdefault(name, place) != place or len(found) >= MAX_COMMUNICATORS:
                continue
            section = found.setdefault(name, _Section(int(group[3]), group[4]))
            section.failed |= heading[3] == "ERROR"
            section.uneven |= heading[3] == "MISMATCH"
        elif not line.strip():
            if section is not None:
                section.close_counts()
        elif section is not None and line.startswith("  "):
            section.lines.append(line)
            _take(section, line)
        else:
            section = None
    for each in found.values():
        each.close_counts()
    return found


def _take(section: _Section, line: str) -> None:
    if _COUNTS.match(line):
        section.close_counts()
    elif (found := _MANY.match(line)) is not None:
        section.launched.append((int(found[2] or 0), int(found[1]), []))
    elif (found := _ONE.match(line)) is not None:
        section.launched.append((int(found[2] or 0), 1, [int(found[1])]))
    elif (found := _NO_DATA.match(line)) is not None:
        section.missing += int(found[1])
    elif (found := _STATUS.match(line)) is not None:
        section.left += int(found[1] or 1)
    elif (found := _OF_MANY.match(line)) is not None:
        (section.launched[-1][2] if section.launched else section.named).append(int(found[1]))


def _communicator(name: str, section: _Section, absence: Absence) -> Communicator:
    absences = {absence: section.missing, Absence.LEFT: section.left}
    late = sorted(section.late.items())
    named = section.named if section.missing and len(section.named) == section.missing else []
    all_named = len(late) == section.behind
    return Communicator(
        name=name,
        size=section.size,
        fingerprint=hash(tuple(section.lines)),
        missing=section.missing + section.left,
        absences=frozenset(each for each, number in Counter(absences).items() if number),
        named_missing=tuple(MissingRank(rank, absence) for rank in named[:MAX_NAMED_RANKS]),
        failed=section.failed,
        starting=section.status == "INIT",
        ending=section.status in ("FINALIZE", "ABORT") and not section.uneven,
        uneven=section.uneven,
        spread=section.spread,
        behind=section.behind,
        named_behind=tuple(BehindRank(*each) for each in late)
        if all_named and len(late) <= MAX_NAMED_RANKS
        else (),
    )
