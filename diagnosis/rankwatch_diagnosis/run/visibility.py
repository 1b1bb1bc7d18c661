"""What zero-code recording sees of the training loop of a run, what it does not see, and where else the run
is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rankwatch.conventions import Capability, Unseen
from rankwatch_agent.training.run_series import of_run
from rankwatch_diagnosis.run.boxes import Boxes

Capabilities = Mapping[Capability, Unseen | None]
"""Capability -> why a rank does not see it; None where all ranks see it. Left out where it is not known."""


def capabilities(boxes: Boxes) -> Capabilities:
    """Those of the run; empty where all its calls are explicit."""
    return of_run(each.now.capabilities for each in boxes.by_rank.values())


def visible_lines(found: Capabilities) -> Iterator[str]:
    """A line with what is seen, and a line for each reason why something is not."""
    if seen := [each.value for each, why in found.items() if why is None]:
        yield f"visible:     {', '.join(seen)}"
    head = "not visible: "
    for line in unseen_parts(found):
        yield f"{head}{line}"
        head = " " * len(head)


def unseen_parts(found: Capabilities) -> Iterator[str]:
    """For each reason the capabilities that are not visible, and the reason."""
    by_reason: dict[Unseen, list[str]] = {}
    for each, why in found.items():
        if why is not None:
            by_reason.setdefault(why, []).append(each.value)
    for why, names in by_reason.items():
        yield f"{', '.join(names)}, because {why.sentence}"


def tracked(boxes: Boxes) -> tuple[str, ...]:
    """The pages of the run in its experiment trackers; of one without a page its kind and its run there."""
    found = (each for box in boxes.by_rank.values() for each in box.trackers)
    return tuple(dict.fromkeys(each.url or f"{each.kind.value} {each.run}" for each in found))
