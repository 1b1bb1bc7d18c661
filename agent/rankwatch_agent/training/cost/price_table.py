"""The price table: what a GPU costs an hour, from when until when, and what runs may spend. A TOML file.

A table that could be read in two ways is refused: two prices for one model and basis at one time, names that
are not known, times without an order. A wrong price is worse than none.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import Any

from rankwatch.conventions.states import PriceBasis
from rankwatch_agent.runtime.errors import UserError

_MAX_BYTES = 1 << 20
_MOST_ENTRIES = 2000
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)
_MOST_TEXT = 200
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class Price:
    """One price. Moments are Unix time."""

    gpu_model: str
    """Name of a GPU as NVML gives it, or a pattern of names with * and ?; cpu for ranks without one."""
    price_per_hour: float
    currency: str
    basis: PriceBasis
    valid_from: float = -math.inf
    valid_until: float = math.inf
    """The first moment at which it holds no more."""
    source: str = ""
    """Source of the price, for people."""

    def holds(self, model: str, moment: float) -> bool:
        """Return True if it is the price of the model then."""
        return self.valid_from <= moment < self.valid_until and fnmatchcase(model, self.gpu_model)

    @property
    def exactness(self) -> tuple[bool, int]:
        """Of several patterns that fit a model the most exact one counts: a plain name, else the longest."""
        return not _WILDCARD.search(self.gpu_model), len(self.gpu_model)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What runs of a name may spend, each."""

    run: str
    """Name of a run or pattern of names with * and ?: its short name, or its identity."""
    amount: float
    currency: str
    basis: PriceBasis


@dataclass(frozen=True)
class PriceTable:
    """All prices and budgets."""

    prices: tuple[Price, ...] = ()
    budgets: tuple[Budget, ...] = ()

    def of(self, model: str, moment: float) -> list[Price]:
        """Return the prices of a model at a Unix time: at most one of each basis."""
        found: dict[PriceBasis, Price] = {}
        for each in self.prices:
            if each.holds(model, moment):
                best = found.get(each.basis)
                if best is None or each.exactness > best.exactness:
                    found[each.basis] = each
        return list(found.values())

    def budget(self, names: Sequence[str]) -> Budget | None:
        """Return the first budget that fits one of a run's names."""
        return next(
            (each for each in self.budgets if any(fnmatchcase(name, each.run) for name in names)), None
        )


def load_price_table(path: Path) -> PriceTable:
    """Return the table in a file. Raises UserError with file, entry, field and what was expected."""
    found = _read(path)
    for key in found:
        if key not in ("price", "budget"):
            raise UserError(f"could not use {key!r:.60} in {path}: expected entries [[price]] and [[budget]]")
    prices = tuple(_entries(found, "price", path, _PRICE_FIELDS, _price))
    _refuse_overlaps(prices, path)
    return PriceTable(
        prices, tuple(_entries(found, "budget", path, _BUDGET_FIELDS, lambda fields, _: Budget(**fields)))
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"could not read price_table {path}: {error.strerror or error}") from None
    if len(data) > _MAX_BYTES:
        raise UserError(f"could not use price_table {path}: it is larger than {_MAX_BYTES >> 20} MiB")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"could not parse price_table {path}: {error}") from None


_Check = tuple[bool, Callable[[object], bool], str]
"""Whether a field must be there, what holds for it, and that in words."""


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_TEXT and value.isprintable()


_BASES = ", ".join(PriceBasis)
_MONEY: Mapping[str, _Check] = {
    "currency": (
        True,
        lambda value: isinstance(value, str) and bool(_CURRENCY.fullmatch(value)),
        "a currency such as EUR",
    ),
    "basis": (True, lambda value: isinstance(value, str) and value in set(PriceBasis), f"one of {_BASES}"),
}
_PRICE_FIELDS: Mapping[str, _Check] = {
    "gpu_model": (True, _is_text, "a name or pattern of names of GPUs, or cpu"),
    "price_per_hour": (True, _is_amount, "a number above 0"),
    **_MONEY,
    "valid_from": (False, lambda value: isinstance(value, date), "a date or time such as 2026-01-01"),
    "valid_until": (False, lambda value: isinstance(value, date), "a date or time such as 2027-01-01"),
    "source": (False, _is_text, f"a text of 1 to {_MOST_TEXT} characters"),
}
_BUDGET_FIELDS: Mapping[str, _Check] = {
    "run": (True, _is_text, "a name or pattern of names of runs"),
    "amount": (True, _is_amount, "a number above 0"),
    **_MONEY,
}


def _entries(
    found: Mapping[str, Any],
    kind: str,
    path: Path,
    fields: Mapping[str, _Check],
    make: Callable[[dict[str, Any], str], Any],
) -> Iterator[Any]:
    entries = found.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise UserError(f"could not use {kind} in {path}: expected entries [[{kind}]]")
    if len(entries) > _MOST_ENTRIES:
        raise UserError(f"could not use {path}: it has more than {_MOST_ENTRIES} entries [[{kind}]]")
    for number, entry in enumerate(entries, start=1):
        where = f"{kind} {number} of {path}"
        for name in entry:
            if name not in fields:
                raise UserError(f"could not use {name!r:.60} in {where}: expected {', '.join(fields)}")
        for name, (needed, holds, expected) in fields.items():
            if name not in entry:
                if needed:
                    raise UserError(f"could not use {where}: it has no {name}, expected {expected}")
            elif not holds(entry[name]):
                raise UserError(f"could not use {name} = {entry[name]!r:.60} in {where}: expected {expected}")
        yield make({**entry, "basis": PriceBasis(entry["basis"])}, where)


def _price(entry: dict[str, Any], where: str) -> Price:
    fields = {**entry}
    fields |= {name: _unix(entry[name]) for name in ("valid_from", "valid_until") if name in entry}
    price = Price(**fields)
    if not price.valid_from < price.valid_until:
        raise UserError(f"could not use {where}: valid_until is not after valid_from")
    return price


def _unix(value: date) -> float:
    """Return the Unix time of a date (its midnight in UTC), or of a time, in UTC where it names no zone."""
    at = value if isinstance(value, datetime) else datetime.combine(value, time_of_day())
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def _refuse_overlaps(prices: Sequence[Price], path: Path) -> None:
    by_key: dict[tuple[str, PriceBasis], list[tuple[int, Price]]] = {}
    for number, each in enumerate(prices, start=1):
        by_key.setdefault((each.gpu_model, each.basis), []).append((number, each))
    for (model, basis), entries in by_key.items():
        for (first, one), (second, other) in combinations(entries, 2):
            if max(one.valid_from, other.valid_from) < min(one.valid_until, other.valid_until):
                raise UserError(
                    f"could not use {path}: prices {first} and {second} are both valid at one time for "
                    f"{model!r} with basis {basis}"
                )
