"""What is visible of a run, from what its ranks say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from rankwatch.conventions import Capability, Unseen
from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Series


def of_run(
    ranks: Iterable[Mapping[Capability, Unseen | None]],
) -> dict[Capability, Unseen | None]:
    """Capability -> why ranks do not see it, by most of those that do not; None where every rank sees it.

    Left out is what no rank knows yet.
    """
    listed = list(ranks)
    found: dict[Capability, Unseen | None] = {}
    for capability in Capability:
        states = [each[capability] for each in listed if capability in each]
        reasons = Counter(why for why in states if why is not None)
        if states:
            found[capability] = reasons.most_common(1)[0][0] if reasons else None
    return found


def capability_series(run: str, ranks: Iterable[Mapping[Capability, Unseen | None]]) -> Iterator[Series]:
    """One series for each capability that is known; none for a run of explicit hooks."""
    declared = metric("rankwatch_run_capability_visible")
    for capability, why in of_run(ranks).items():
        yield Series(declared, (run, capability, why or ""), 1 if why is None else 0)
