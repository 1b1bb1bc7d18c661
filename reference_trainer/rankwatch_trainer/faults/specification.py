"""Faults as text: `straggler:rank=2,factor=1.5,from=50,until=200`.

    <fault>[:<key>=<value>,...]

Keys of every fault: `rank` (every rank where absent), `from` (first step; the present one where
absent), `until` (first step without it); steps may be relative to the present one (`from=+5`).
Further keys are the fields of the fault.
"""

from __future__ import annotations

import inspect
import math
import textwrap
from dataclasses import Field, fields
from typing import Any

from rankwatch_trainer.errors import UsageError
from rankwatch_trainer.faults.kinds import FAULTS, Fault, ScheduledFault

_COMMON_KEYS = ("rank", "from", "until")

_WIDTH = 100
_COMMON = """\
faults, as in --fault straggler:rank=2,factor=1.5,from=50,until=200; every fault takes:
  rank=N       the rank it strikes; without it every rank
  from=STEP    its first step, counted from 1; +5 is five steps from now; without it the present step
  until=STEP   the first step without it; without it the end of the run, or one step where so marked
"""


def parse_fault(text: str, *, present_step: int, world_size: int) -> ScheduledFault:
    """The fault that the text describes. Raises UsageError naming the text, the key and what was expected."""
    name, _, parameters = text.strip().partition(":")
    try:
        kind = _fault_called(name.strip())
        values = _parse_parameters(parameters, kind)
        return _scheduled(kind, values, present_step, world_size)
    except ValueError as cause:
        raise UsageError(f"could not read fault {text.strip()!r}: {cause}") from cause


def _fault_called(name: str) -> type[Fault]:
    for kind in FAULTS:
        if kind.name == name:
            return kind
    raise ValueError(f"no fault is called {name!r}, expected one of {', '.join(k.name for k in FAULTS)}")


def _parse_parameters(text: str, kind: type[Fault]) -> dict[str, str]:
    allowed = (*_COMMON_KEYS, *_own_keys(kind))
    values: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or key not in allowed:
            raise ValueError(f"{part!r} is no parameter of {kind.name}, expected {', '.join(allowed)}")
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = value
    return values


def _own_keys(kind: type[Fault]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))  # type: ignore[arg-type]  # every Fault is a dataclass


def _scheduled(
    kind: type[Fault], values: dict[str, str], present_step: int, world_size: int
) -> ScheduledFault:
    own: dict[str, Any] = {key: _positive(key, values[key]) for key in _own_keys(kind) if key in values}
    start = _step("from", values["from"], present_step) if "from" in values else present_step
    until: float = math.inf if kind.lasting else start + 1
    if "until" in values:
        until = _step("until", values["until"], present_step)
        if until <= start:
            raise ValueError(f"until is step {until}, expected a step after {start}")
    rank = _rank(values["rank"], world_size) if "rank" in values else None
    return ScheduledFault(fault=kind(**own), rank=rank, from_step=start, until_step=until)


def _rank(text: str, world_size: int) -> int:
    if not _is_whole(text) or int(text) >= world_size:
        raise ValueError(f"rank is {text!r}, expected a whole number below the world size {world_size}")
    return int(text)


def _step(key: str, text: str, present_step: int) -> int:
    if not _is_whole(text.removeprefix("+")):
        raise ValueError(f"{key} is {text!r}, expected a step such as 50, or +5 from now")
    if not text.startswith("+") and int(text) == 0:
        raise ValueError(f"{key} is {text!r}, expected a step >= 1, or +0 for the present one")
    return int(text) + (present_step if text.startswith("+") else 0)


def _positive(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{key} is {text!r}, expected a number > 0")
    return value


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def describe_faults() -> str:
    """All faults with their own parameters, defaults and meaning; several lines."""
    return _COMMON + "".join(f"\n{_describe(kind)}" for kind in FAULTS)


def _describe(kind: type[Fault]) -> str:
    own = [_with_default(field) for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    marks = [*own, *(() if kind.lasting else ("one step",))]
    head = f"  {kind.name}" + (f" [{', '.join(marks)}]" if marks else "")
    meaning = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    return f"{head}\n{textwrap.fill(meaning, _WIDTH, initial_indent='      ', subsequent_indent='      ')}"


def _with_default(field: Field[Any]) -> str:
    endless = field.default == math.inf  # it cannot be asked for, only left out
    return field.name if endless else f"{field.name}={field.default}"
