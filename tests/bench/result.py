"""The result of a benchmark: rows for a reader, raw samples for a program, facts about the machine.

And summaries of a few noisy samples.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import NamedTuple


class BenchError(Exception):
    """Nothing could be measured. The message says what and why. A missed target is not an error."""


class Row(NamedTuple):
    """One line of a part's table."""

    what: str
    measured: str
    spread: str = ""
    """Spread of the samples, so that a reader sees what this machine can resolve."""
    target: str = ""
    met: bool | None = None
    """None if there is no target."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one benchmark."""

    title: str
    rows: tuple[Row, ...]
    overview: tuple[tuple[str, ...], ...] = ()
    """A table of its own above the rows, its head first."""
    notes: tuple[str, ...] = ()
    """Sentences a reader needs to judge the figures."""
    samples: Mapping[str, object] = field(default_factory=dict)
    """Every raw sample, ready for JSON; units are in the names."""


def limited(what: str, value: float, at_most: float, shown: Callable[[float], str], spread: str = "") -> Row:
    """A row with a target, met if the value is at most `at_most`."""
    return Row(what, shown(value), spread, f"<= {shown(at_most)}", value <= at_most)


def met(result: Result) -> bool:
    """Whether no target was missed."""
    return all(row.met is not False for row in result.rows)


_HEAD = ("what", "measured", "spread", "target", "result")
_VERDICTS = {True: "met", False: "MISSED", None: ""}


def as_markdown(result: Result) -> str:
    """The result as Markdown: title, table and notes."""
    lines = [(*row[:4], _VERDICTS[row.met]) for row in result.rows]
    notes = "".join(f"- {note}\n" for note in result.notes)
    overview = f"{_table(result.overview)}\n" if result.overview else ""
    return f"## {result.title}\n\n{overview}{_table((_HEAD, *lines))}\n{notes}"


def as_json(result: Result, part: str, **more: object) -> str:
    """The result with all samples, the moment and the machine, on one line."""
    document = {
        "part": part,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **more,
        "machine": describe_machine(),
        **asdict(result),
        "rows": [row._asdict() for row in result.rows],
    }
    return json.dumps(document) + "\n"


def _table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *body = (_line(line, widths) for line in lines)
    rule = _line(("-" * width for width in widths), widths)
    return "".join((head, rule, *body))


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |\n"


_PACKAGES = ("rankwatch", "torch", "prometheus-client", "opentelemetry-sdk")


def describe_machine(procfs: Path = Path("/proc")) -> dict[str, object]:
    """CPU, load, system and versions, ready for JSON; unknown ones are None."""
    return {
        "cpu_count": os.cpu_count(),
        "cpu_usable": len(os.sched_getaffinity(0)),
        "cpu_model": _cpu_model(procfs / "cpuinfo"),
        "load_1_minute": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _cpu_model(cpuinfo: Path) -> str | None:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Spread(NamedTuple):
    """Median, quartiles and extremes of samples, in their unit."""

    least: float
    lower: float
    median: float
    upper: float
    most: float

    def quartiles(self, shown: Callable[[float], str]) -> str:
        """The middle half, as text."""
        return f"{shown(self.lower)} to {shown(self.upper)} (quartiles)"

    def extremes(self, shown: Callable[[float], str]) -> str:
        """All samples, as text."""
        return f"{shown(self.least)} to {shown(self.most)} (range)"


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least a share (0 to 1) of the samples does not exceed."""
    if not samples:
        raise BenchError("could not summarise a measurement: there is no sample")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(samples: Sequence[float]) -> Spread:
    """Summarise the samples. Raises BenchError if there are none."""
    least, lower, upper, most = (quantile(samples, share) for share in (0.0, 0.25, 0.75, 1.0))
    return Spread(least, lower, median(samples), upper, most)
