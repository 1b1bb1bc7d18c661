"""Errors of NVLink 5 by subcode, and what each asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.sources.xid.nvlink5 import Nvlink5Error, Rule, rule_for

_ERRORS = metric("rankwatch_gpu_xid_subcode_errors_total")

OTHER_SUBCODE = "other"
"""Of all subcodes that no rule names."""
MAX_KEYS = 1024
"""Counts kept; a node of 16 GPUs on which everything fails has fewer. What comes beyond is not counted."""


class Advice(NamedTuple):
    """What one occurrence asks for."""

    action: str
    investigate: str
    """Empty where there is nothing to be looked at."""


class Nvlink5Counts:
    """Not for several threads at once. GPUs go by their PCI bus id until they are exported."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._named = frozenset[str]().union(*(rule.subcodes for rule in rules))
        self._counts: Counter[tuple[str, int, str, str]] = Counter()

    def take(self, error: Nvlink5Error, bus_id: str, *, otherwise: str) -> Advice:
        """Count one error; `otherwise` is the action of its code, for what no rule holds."""
        rule = rule_for(self._rules, error)
        action = otherwise if rule is None else rule.action_for(error)
        key = (bus_id, error.xid, error.subcode if error.subcode in self._named else OTHER_SUBCODE, action)
        if key in self._counts or len(self._counts) < MAX_KEYS:
            self._counts[key] += 1
        return Advice(action, "" if rule is None else rule.investigate)

    def series(self, name_of: Callable[[str], str]) -> Iterator[Series]:
        """Every count; `name_of` gives the GPU at a bus id."""
        for (bus_id, xid, subcode, action), count in self._counts.items():
            yield Series(_ERRORS, (name_of(bus_id), str(xid), subcode, action), count)
