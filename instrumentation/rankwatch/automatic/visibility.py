"""What zero-code recording can see in this process: kept until the black box opens, then written into it."""

from __future__ import annotations

import sys

from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.disabled import DisabledRun
from rankwatch.run import Run

IMPORTANT = (Capability.STEPS, Capability.DATA_WAIT, Capability.LOSS, Capability.CHECKPOINTS)
"""Capabilities that rank 0 reports on standard error if not visible. The others are in the record only."""
_IN_EVERY_LOOP = (Capability.STEPS, Capability.DATA_WAIT, Capability.LOSS)
_MOST_FAILURES = 20


class Visibility:
    """The state of each capability, and the failures of rankwatch's own hooks."""

    def __init__(self) -> None:
        self._states: dict[Capability, Unseen | None] = {}
        self._failures: list[tuple[str, Exception]] = []
        self._run: Run | DisabledRun | None = None
        self._said = False

    def sees(self, capability: Capability) -> None:
        """Note that the capability was seen. Cheap enough for every step."""
        if self._states.get(capability, Unseen.NOT_CALLED) is not None:
            self._states[capability] = None
            if self._run is not None:
                self._run.sees(capability)

    def cannot_see(self, capability: Capability, why: Unseen) -> None:
        """Note that the capability is not visible. The last call for a capability counts."""
        self._states[capability] = why
        if self._run is not None:
            self._run.cannot_see(capability, why)

    def has_seen(self, capability: Capability) -> bool:
        """Return True if the last word about the capability is that it is visible."""
        return self._states.get(capability, Unseen.NOT_CALLED) is None

    def failed(self, what: str, error: Exception) -> None:
        """Count a failure of rankwatch itself; it never reaches the training."""
        if isinstance(self._run, Run):
            self._run._failures.note(what, error)
        elif len(self._failures) < _MOST_FAILURES:
            self._failures.append((what, error))

    def attach(self, run: Run | DisabledRun) -> None:
        """Write what is known into the run that has begun, and from now on what becomes known."""
        self._run = run
        for capability, why in self._states.items():
            if why is None:
                run.sees(capability)
            else:
                run.cannot_see(capability, why)
        if isinstance(run, Run):
            for what, error in self._failures:
                run._failures.note(what, error)
            self._failures.clear()

    def missing(self) -> None:
        """Note the end of the wait for what every loop has: what was not seen by now is not visible."""
        for each in _IN_EVERY_LOOP:
            if each not in self._states:
                self.cannot_see(each, Unseen.NOT_CALLED)

    def say(self) -> None:
        """Say once, on rank 0, what of importance is not visible."""
        run = self._run
        if self._said or not isinstance(run, Run) or run.identity.rank != 0 or sys.stderr is None:
            return
        self._said = True
        by_reason: dict[Unseen, list[str]] = {}
        for each in IMPORTANT:
            if (why := self._states.get(each)) is not None:
                by_reason.setdefault(why, []).append(each.value)
        if by_reason:
            parts = (f"{', '.join(names)}, because {why.sentence}" for why, names in by_reason.items())
            print(f"rankwatch: not visible: {'; '.join(parts)}", file=sys.stderr, flush=True)


visibility = Visibility()
"""The one of this process."""
