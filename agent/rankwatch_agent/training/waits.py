"""Phases and collectives that wait for the end of the step that holds them."""

from __future__ import annotations

from bisect import bisect_left

from rankwatch_agent.training.split import Collective, Interval

_MOST = 4096
"""Phases or collectives kept for a step that does not end; beyond, the oldest are let go."""


class Waiting:
    """What was recorded since the last step that was settled. Who reads the records appends to the lists,
    in the order of the records: a call for each would cost more than all that is done with it here."""

    def __init__(self) -> None:
        self.phases: list[Interval] = []
        self.collectives: list[Collective] = []
        self._before_step = 0
        """Of the phases, those that were recorded before the step that is to be settled next."""

    def note_step(self) -> None:
        """A step was recorded; it is settled later."""
        self._before_step = len(self.phases)

    def let_go_of_oldest(self) -> list[Interval]:
        """Keep what waits within bounds; the phases that no step can hold any more."""
        phases, collectives = self.phases, self.collectives
        if len(collectives) > _MOST:
            del collectives[: len(collectives) - _MOST]
        if len(phases) <= _MOST:
            return []
        over = len(phases) - _MOST
        gone = phases[:over]
        del phases[:over]
        self._before_step = max(0, self._before_step - over)
        return gone

    def take_phases(self, start: float, end: float, until: float) -> tuple[list[Interval], list[Interval]]:
        """The phases within a step, and those that lie in no step.

        What begins from its end on, and before `until`, may lie in one to come, and is kept.
        """
        phases, before = self.phases, self._before_step
        later = phases[before:]
        if later and not (end <= min(later)[0] and max(later)[0] < until):
            later, before = [], len(phases)  # one came late, or is no honest record
        inside: list[Interval] = []
        outside: list[Interval] = []
        kept: list[Interval] = []
        for phase in phases[:before]:
            begun, ended, _ = phase
            if end <= begun < until:
                kept.append(phase)
            elif begun >= start and ended <= end:
                inside.append(phase)
            else:
                outside.append(phase)
        phases[:] = kept + later
        return inside, outside

    def take_collectives(self, start: float, end: float, until: float) -> list[Collective]:
        """The collectives enqueued within a step; likewise."""
        found = self.collectives
        if not found:
            return []
        found.sort()  # they come nearly in order, and three searches cost less than a look at each
        beyond = bisect_left(found, (end,))
        held = found[bisect_left(found, (start,)) : beyond]
        found[:] = found[beyond : bisect_left(found, (until,))]
        return held

    def take_ended(self, names: tuple[str, ...], moment: float) -> list[Interval]:
        """The phases of these names that ended by the moment, where no step waits."""
        if not any(name in names for _, _, name in self.phases):
            return []
        gone = [each for each in self.phases if each[2] in names and each[1] <= moment]
        self.phases[:] = [each for each in self.phases if not (each[2] in names and each[1] <= moment)]
        return gone
