"""The catalogue of faults in words, as the help of the command line shows it."""

from __future__ import annotations

import inspect
import math
import textwrap
from dataclasses import Field, fields
from typing import Any

from rankwatch_trainer.faults.catalogue import FAULTS
from rankwatch_trainer.faults.fault import Fault

_WIDTH = 100
_COMMON = """\
faults, as in --fault straggler:rank=2,factor=1.5,from=50,until=200; every fault takes:
  rank=N       the rank it strikes; without it every rank
  from=STEP    its first step, counted from 1; +5 is five steps from now; without it the present step
  until=STEP   the first step without it; without it the end of the run, or one step where so marked
"""


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
